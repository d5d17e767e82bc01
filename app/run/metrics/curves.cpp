#include "run/metrics/curves.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

struct Curve {
  const char* key;
  std::string_view tag;
};
constexpr auto of_a_step = std::to_array<Curve>({{"loss", "train/loss"},
                                                 {"lr", "train/lr"},
                                                 {"grad_norm", "train/grad_norm"},
                                                 {"tokens_per_second", "train/tokens_per_second"},
                                                 {"utilization", "train/utilization"},
                                                 {"stall_seconds", "outer/stall_seconds"},
                                                 {"rounds", "outer/rounds"}});

/// A number, also if it is not finite (see Metrics).
std::optional<double> curve_number(const Json& line, const char* key) {
  const auto at = line.find(key);
  if (at == line.end()) return {};
  if (at->is_number()) return at->get<double>();
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  if (*at == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (*at == "inf") return infinity;
  if (*at == "-inf") return -infinity;
  return {};
}

}  // namespace

std::optional<Scalars> scalars_in(const Json& line) {
  if (!line.is_object()) return {};
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_unsigned()) return {};
  Scalars out{.step = step->get<std::uint64_t>(), .in_order = true, .values = {}};
  const auto add = [&](std::string_view tag, const std::optional<double>& value) {
    if (value) out.values.emplace_back(tag, *value);
  };
  if (line.contains("eval_loss")) {
    add("eval/loss", curve_number(line, "eval_loss"));
  } else if (line.contains("eval_nats")) {
    out.in_order = false;
    const auto nats = curve_number(line, "eval_nats"), tokens = curve_number(line, "eval_tokens");
    if (nats && tokens && *tokens > 0) add("eval/loss_of_share", *nats / *tokens);
    add("outer/drift", curve_number(line, "drift"));
  } else {
    for (const auto& [key, tag] : of_a_step) add(tag, curve_number(line, key));
  }
  return out.values.empty() ? std::nullopt : std::optional(std::move(out));
}

std::vector<std::string> last_lines(const fs::path& file, std::uint64_t max_bytes) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const auto size = static_cast<std::uint64_t>(in.tellg());
  const auto from = size - std::min(size, max_bytes);
  in.seekg(static_cast<std::streamoff>(from));
  std::vector<std::string> lines;
  std::string line;
  if (from > 0) std::getline(in, line);  // only its end
  while (std::getline(in, line) && !in.eof()) lines.push_back(std::move(line));
  return lines;
}

Curves::Curves(fs::path folder, const fs::path& metrics, AppendFile::Say say)
    : folder_(std::move(folder)), say_(std::move(say)) {
  std::error_code none;
  for (const auto& file : event_files_in(folder_)) {
    const auto size = fs::file_size(file, none);
    earlier_ += none ? 0 : size;
  }
  constexpr std::uint64_t enough = 1 << 20;  // for the newest evaluation, too
  for (const auto& line : last_lines(metrics, enough)) {
    if (const auto scalars = scalars_in(Json::parse(line, nullptr, false)))
      static_cast<void>(order_of(*scalars));
  }
}

/// A resumed run reports the evaluation of its first step again, before that step. The agreed step stands
/// still while no rounds commit.
Curves::Order Curves::order_of(const Scalars& scalars) {
  auto& last = scalars.in_order ? ordered_ : other_;
  const bool goes_back = last > scalars.step;
  if (last == scalars.step || (goes_back && !scalars.in_order)) return Order::repeated;
  last = scalars.step;
  if (!goes_back) return Order::next;
  if (other_ >= scalars.step) other_ = scalars.step == 0 ? std::nullopt : std::optional(scalars.step - 1);
  return Order::went_back;
}

void Curves::add(const Json& line) {
  const auto scalars = scalars_in(line);
  if (failed_ || !scalars) return;
  auto order = order_of(*scalars);
  // An earlier process may have ended with just the step that this one makes again.
  if (scalars->in_order && std::exchange(begins_, false) && order == Order::repeated)
    order = Order::went_back;
  if (order == Order::repeated) return;
  try {
    if (!file_) file_.emplace(folder_, say_);
    if (order == Order::went_back) file_->restart(scalars->step);
    file_->write(scalars->step, scalars->values);
  } catch (const Error& error) {
    failed_ = true;
    say_(std::string(error.what()) + "; TensorBoard will not show these curves");
  }
}

}  // namespace isthmus::app
