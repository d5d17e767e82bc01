#include "isthmus/outer_sync/log/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync::log {
namespace {

/// The header, with tensors in the order of their data.
std::string header_of(std::span<const TensorView> tensors, std::map<std::string, std::string> metadata,
                      ValueType type) {
  const bool is_bf16 = type == ValueType::bf16;
  metadata.emplace("format", "pt");
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    const auto end = at + tensor.values.size() * (is_bf16 ? 2 : 4);
    if (header.contains(tensor.name))
      throw Error(ErrorKind::data, "a safetensors file cannot hold a second tensor named " + tensor.name);
    header[tensor.name] = {
        {"dtype", is_bf16 ? "BF16" : "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  // Replaces invalid UTF-8: the metadata may come from an untrusted source.
  auto text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return static_cast<std::uint16_t>(bits >> 16 | 0x40U);  // rounding could make it infinite
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

void write_bf16(const File& out, std::span<const float> values) {
  constexpr std::size_t at_once = 1 << 18;  // elements
  std::vector<std::uint16_t> part(std::min(at_once, values.size()));
  while (!values.empty()) {
    const auto some = values.first(std::min(at_once, values.size()));
    std::ranges::transform(some, part.begin(), bf16_of);
    out.write(std::as_bytes(std::span(part).first(some.size())));
    values = values.subspan(some.size());
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, ValueType type) {
  const auto header = header_of(tensors, metadata, type);
  const std::uint64_t length = header.size();
  replace_file(file, [&](const File& out) {
    out.write(std::as_bytes(std::span(&length, 1)));
    out.write(std::as_bytes(std::span(header)));
    for (const auto& tensor : tensors) {
      type == ValueType::bf16 ? write_bf16(out, tensor.values) : out.write(std::as_bytes(tensor.values));
    }
  });
}

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t longest_header = 100'000'000;  // bytes, the limit of the format's own reader
constexpr std::size_t max_extents = 8;
constexpr int deepest_json = 4;
constexpr const char* metadata_name = "__metadata__";

/// Bytes per element, for all dtypes with whole bytes; 0 for any other.
std::uint64_t size_of(const std::string& dtype) {
  static constexpr std::array<std::pair<std::string_view, std::uint64_t>, 14> sizes = {{{"F64", 8},
                                                                                        {"I64", 8},
                                                                                        {"U64", 8},
                                                                                        {"F32", 4},
                                                                                        {"I32", 4},
                                                                                        {"U32", 4},
                                                                                        {"F16", 2},
                                                                                        {"BF16", 2},
                                                                                        {"I16", 2},
                                                                                        {"U16", 2},
                                                                                        {"F8_E4M3", 1},
                                                                                        {"F8_E5M2", 1},
                                                                                        {"I8", 1},
                                                                                        {"U8", 1}}};
  const auto* found = std::ranges::find(sizes, dtype, &std::pair<std::string_view, std::uint64_t>::first);
  if (found != sizes.end()) return found->second;
  return dtype == "BOOL" ? 1 : 0;
}

/// An untrusted name, escaped and shortened for a message.
std::string shown(const std::string& name) {
  auto text = Json(name.substr(0, 100)).dump(-1, ' ', true, Json::error_handler_t::replace);
  return name.size() > 100 ? text + "..." : text;
}

/// Rejects too deep nesting, and duplicate names in one object, because readers differ in which one they use.
class HeaderGuard {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    if (depth > deepest_json) problem_ = "it is nested too deeply";
    const auto level = static_cast<std::size_t>(std::min(depth, deepest_json));
    if (event == Json::parse_event_t::object_start && level < deepest_json) names_[level + 1].clear();
    if (event == Json::parse_event_t::key && !names_[level].insert(value.get<std::string>()).second)
      problem_ = "the name " + shown(value.get<std::string>()) + " occurs twice";
    return problem_.empty();
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::array<std::set<std::string>, deepest_json + 1> names_;
  std::string problem_;
};

/// The numbers of a list of whole numbers from 0 to 2^53; nullopt for anything else.
std::optional<std::vector<std::int64_t>> whole_numbers(const Json& tensor, const char* name) {
  if (!tensor.contains(name) || !tensor[name].is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto& number : tensor[name]) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > (std::uint64_t{1} << 53))
      return std::nullopt;
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

/// Product of the extents; nullopt beyond 2^53.
std::optional<std::uint64_t> product(const std::vector<std::int64_t>& shape) {
  std::uint64_t elements = 1;
  for (const auto extent : shape) {
    if (extent > 0 && elements > (std::uint64_t{1} << 53) / static_cast<std::uint64_t>(extent))
      return std::nullopt;
    elements *= static_cast<std::uint64_t>(extent);
  }
  return elements;
}

float of_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return sign * (fraction == 0 ? INFINITY : NAN);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

/// Decodes one element.
float value_of(const std::string& dtype, const std::byte* bytes) {
  if (dtype == "F32") {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return dtype == "BF16" ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16) : of_half(bits);
}

}  // namespace

void SafetensorsFile::refuse(const std::string& reason) const {
  throw Error(ErrorKind::data, path().string() + " is not a usable safetensors file: " + reason);
}

std::string SafetensorsFile::header_text() {
  const auto size = file_.size();
  std::uint64_t length = 0;
  if (size < sizeof length || !file_.read_at(0, std::as_writable_bytes(std::span(&length, 1))))
    refuse("it has " + std::to_string(size) + " bytes; expected 8 bytes and a header");
  const auto most = std::min(longest_header, size - sizeof length);
  if (length > most)
    refuse("its header claims " + std::to_string(length) + " bytes; expected at most " +
           std::to_string(most));
  std::string text(length, ' ');
  if (!file_.read_at(sizeof length, std::as_writable_bytes(std::span(text))))
    refuse("its header is cut short");
  data_begin_ = sizeof length + length;
  return text;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(file, File::Mode::read) {
  const auto text = header_text();
  HeaderGuard guard;
  Json header;
  try {
    header = Json::parse(text, std::ref(guard));
  } catch (const Json::exception& error) {
    refuse(std::string("its header is not JSON: ") + error.what());
  }
  if (!guard.problem().empty()) refuse("in its header " + guard.problem());
  if (!header.is_object() || !text.starts_with('{')) refuse("its header is not a JSON object");

  for (const auto& item : header.items()) {
    const auto& name = item.key();
    const auto& entry = item.value();
    if (name == metadata_name) {
      for (const auto& note : entry.items()) {
        if (note.value().is_string()) metadata_[note.key()] = note.value().get<std::string>();
      }
      continue;
    }
    const auto wrong = [&](const std::string& reason) { refuse("tensor " + shown(name) + " " + reason); };
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) wrong("has no dtype");
    Tensor tensor{.name = name, .dtype = entry["dtype"].get<std::string>(), .shape = {}};
    const auto element_bytes = size_of(tensor.dtype);
    if (element_bytes == 0)
      wrong("has dtype " + shown(tensor.dtype) + "; expected a dtype of the safetensors format");
    auto shape = whole_numbers(entry, "shape");
    if (!shape || shape->size() > max_extents)
      wrong("has no shape; expected up to " + std::to_string(max_extents) + " whole numbers");
    const auto elements = product(*shape);
    const auto offsets = whole_numbers(entry, "data_offsets");
    if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1])
      wrong("has no data_offsets; expected where its data begins and ends");
    const auto bytes = static_cast<std::uint64_t>((*offsets)[1] - (*offsets)[0]);
    if (!elements || bytes % element_bytes != 0 || bytes / element_bytes != *elements)
      wrong("has " + std::to_string(bytes) + " bytes of data; its shape and dtype " + tensor.dtype +
            " need another size");
    tensor.shape = std::move(*shape);
    tensor.begin = static_cast<std::uint64_t>((*offsets)[0]);
    tensor.elements = *elements;
    tensors_.push_back(std::move(tensor));
  }
  std::ranges::stable_sort(tensors_, {}, [](const Tensor& t) { return std::pair(t.begin, t.elements); });

  std::uint64_t end = 0;
  for (const auto& tensor : tensors_) {
    if (tensor.begin != end)
      refuse("the data of tensor " + shown(tensor.name) + " begins at " + std::to_string(tensor.begin) +
             "; expected " + std::to_string(end) + ", the end of the previous tensor");
    end += tensor.elements * size_of(tensor.dtype);
  }
  if (end != file_.size() - data_begin_)
    refuse("its tensors have " + std::to_string(end) + " bytes, and " +
           std::to_string(file_.size() - data_begin_) + " follow the header");
}

void SafetensorsFile::read(const Tensor& tensor, std::span<float> out) const {
  if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16")
    refuse("tensor " + shown(tensor.name) + " has dtype " + tensor.dtype + "; expected F32, F16 or BF16");
  constexpr std::size_t at_once = 1 << 18;  // elements
  const auto width = size_of(tensor.dtype);
  std::vector<std::byte> bytes(std::min<std::size_t>(at_once, out.size()) * width);
  for (std::size_t done = 0; done < out.size();) {
    const auto part = std::span(bytes).first(std::min(bytes.size(), (out.size() - done) * width));
    if (!file_.read_at(data_begin_ + tensor.begin + done * width, part)) refuse("it was cut short");
    for (std::size_t i = 0; i < part.size(); i += width, ++done) {
      out[done] = value_of(tensor.dtype, part.data() + i);
      if (!std::isfinite(out[done]))
        refuse("tensor " + shown(tensor.name) + " has a value that is not finite, element " +
               std::to_string(done));
    }
  }
}

}  // namespace isthmus::outer_sync::log
