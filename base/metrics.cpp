#include "isthmus/base/metrics.h"

#include <cmath>
#include <fstream>
#include <utility>

namespace isthmus {

namespace {

void name_non_finite(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (auto& item : value) name_non_finite(item);
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::isnan(number)) value = "nan";
    if (std::isinf(number)) value = number > 0 ? "inf" : "-inf";
  }
}

// A killed process may have left half a line; the next line must not be appended to it.
bool ends_in_mid_line(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  char last = '\n';
  if (in.seekg(-1, std::ios::end)) in.get(last);
  return last != '\n';
}

}  // namespace

Metrics::Metrics(const std::filesystem::path& file, AppendFile::Say say) {
  mend_ = ends_in_mid_line(file);
  file_.emplace(file, std::move(say));
}

void Metrics::write(const nlohmann::ordered_json& line) {
  if (!file_) return;
  auto copy = line;
  name_non_finite(copy);
  // Names come from hosts and users: invalid UTF-8 must not end a run.
  auto text = copy.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  const std::lock_guard lock(mutex_);
  const auto before = file_->size();
  file_->append((mend_ ? "\n" : "") + text + '\n');
  if (file_->size() > before) mend_ = false;  // on a full disk the line may have been left out
  if (copy_) copy_(std::move(text));
}

}  // namespace isthmus
