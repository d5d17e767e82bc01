#include "run/output/json_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "isthmus/base/error.h"

namespace isthmus::app {

JsonOutput::JsonOutput(bool wanted) {
  if (!wanted) return;
  std::fflush(stdout);
  // Child processes do not get it: their standard output is standard error too.
  standard_output_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (standard_output_ < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    throw Error(ErrorKind::data,
                std::string("--json: standard output cannot be used: ") + std::strerror(errno));
}

JsonOutput::~JsonOutput() {
  if (!wanted()) return;
  std::fflush(stdout);
  dup2(standard_output_, STDOUT_FILENO);
  close(standard_output_);
}

void JsonOutput::print(const nlohmann::ordered_json& document) {
  if (!wanted()) return;
  using Handler = nlohmann::ordered_json::error_handler_t;
  const auto text = document.dump(2, ' ', false, Handler::replace) + '\n';
  for (std::string_view rest = text; !rest.empty();) {
    const auto written = write(standard_output_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw Error(ErrorKind::data, std::string("cannot write to standard output: ") + std::strerror(errno));
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace isthmus::app
