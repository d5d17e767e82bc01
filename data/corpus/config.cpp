#include "isthmus/data/config.h"

#include <fmt/format.h>
#include <charconv>
#include <cmath>
#include <string_view>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "order/mixture.h"
#include "text/live_input.h"

namespace isthmus::data {
namespace {

constexpr std::size_t max_parts = Mixture::pattern;  // each needs a slot in the pattern

MixturePart parse_part(std::string_view text) {
  const auto equals = text.rfind('=');
  const auto path = trimmed(text.substr(0, equals));
  double weight = 0;
  if (equals != std::string_view::npos && !path.empty()) {
    const auto number = trimmed(text.substr(equals + 1));
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
    const bool whole = error == std::errc{} && end == number.data() + number.size();
    if (whole && std::isfinite(weight) && weight > 0) return {std::string(path), weight};
  }
  config_error("data.mixture has \"" + std::string(trimmed(text)) +
               "\"; expected PATH = WEIGHT with a weight above 0");
}

}  // namespace

std::vector<MixturePart> parse_mixture(const std::string& text) {
  std::vector<MixturePart> parts;
  std::string_view rest = text;
  while (true) {
    const auto end = rest.find(';');
    const auto part = rest.substr(0, end);
    if (!trimmed(part).empty() || end != std::string_view::npos) parts.push_back(parse_part(part));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (parts.size() > max_parts) {
    config_error(
        fmt::format("data.mixture names {} data sets; expected {} at most", parts.size(), max_parts));
  }
  if (parts.size() >= 2) return parts;
  config_error("data.mixture is \"" + text +
               "\"; expected at least two data sets, as PATH = WEIGHT; PATH = WEIGHT");
}

std::string to_string(const std::vector<MixturePart>& parts) {
  std::string text;
  for (const auto& part : parts) {
    char weight[32];
    const auto [end, error] = std::to_chars(weight, weight + sizeof weight, part.weight);
    text += (text.empty() ? "" : "; ") + part.path + " = " + std::string(weight, end);
  }
  return text;
}

std::vector<MixturePart> DataConfig::parts() const {
  if (mixture.empty()) return {{path, 1}};
  if (!path.empty()) config_error("data.path and data.mixture are both set; expected one of them");
  auto out = parse_mixture(mixture);
  double sum = 0;
  for (const auto& part : out) sum += part.weight;
  if (!std::isfinite(sum))
    config_error("the weights of data.mixture add up to infinity; expected smaller weights");
  for (auto& part : out) part.weight /= sum;
  return out;
}

bool is_live(const std::string& path) {
  return path == LiveInput::standard_input || path.find("://") != std::string::npos;
}

void DataConfig::check_only_heldout(const std::string& held_out) const {
  if (heldout == default_heldout) return;
  config_error(fmt::format("data.heldout is {}, but {}; expected no data.heldout (its default is {})",
                           heldout, held_out, default_heldout));
}

void DataConfig::check() const {
  if (!val_path.empty()) {
    if (is_live(val_path))
      config_error("data.val_path is " + val_path + ", a stream; expected files, which can be read again");
    check_only_heldout("data.val_path is " + val_path);
  }
  if (!is_stream()) return;
  const auto refuse = [](const std::string& why) { config_error("data.path is a stream and " + why); };
  if (!mixture.empty()) refuse("data.mixture is set too; expected only data.path: streams are not mixed");
  check_live_path("data.path", path);
  if (tokenizer.starts_with("vocab:"))
    refuse("data.tokenizer is " + tokenizer + ", which reads no text; expected a tokenizer for text");
  if (format == "text" && path != LiveInput::standard_input)
    refuse("data.format is text; expected jsonl: lines separate the documents of a socket");
}

}  // namespace isthmus::data
