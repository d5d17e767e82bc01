#include "run/process/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "isthmus/base/error.h"

namespace isthmus::app {

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos;
}

void check_name(const std::string& what, const std::string& name) {
  if (!is_plain_name(name)) {
    throw Error(ErrorKind::config,
                what + " is '" + name +
                    "'; expected up to 64 letters, digits, '.', '_' and '-', not beginning "
                    "with '.': it names a folder");
  }
}

void check_member_name(const std::string& what, const std::string& name) {
  check_name(what, name);
  constexpr auto taken = std::to_array<std::string_view>(
      {"config.yaml", "coordinator", "dashboard.token", "fetched", "launch.json", "launch.log", "launch.seen",
       "mail", "metrics.jsonl", "run.secret", "stores", "summary.json", "wandb"});
  const auto is_of = [&name](std::string_view own) {
    return name == own || name.starts_with(std::string(own) + '.');
  };
  if (std::ranges::any_of(taken, is_of))
    throw Error(ErrorKind::config,
                fmt::format("{} is '{}', which is reserved for the run's own files; choose another name",
                            what, name));
}

}  // namespace isthmus::app
