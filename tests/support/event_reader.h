#pragma once
// TensorBoard's event files, parsed by a reader of its own: records, checksums and fields; and what
// TensorBoard shows of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/checksum.h"
#include "isthmus/base/event_file.h"
#include "temporary_folder.h"

namespace isthmus::events {

/// A message's numbers and texts by field; a repeated field has its values in order.
struct Fields {
  std::map<int, std::vector<std::uint64_t>> numbers;
  std::map<int, std::vector<std::string>> texts;
};

class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] bool at_end() const { return at_ == bytes_.size(); }
  std::string take(std::size_t count) {
    if (count > bytes_.size() - at_) throw std::runtime_error("the bytes end too early");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) return value;
    }
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

inline Fields fields_of(const std::string& message) {
  Fields fields;
  for (Reader in(message); !in.at_end();) {
    const auto tag = in.varint();
    const auto field = static_cast<int>(tag >> 3);
    switch (tag & 7) {
      case 0:
        fields.numbers[field].push_back(in.varint());
        break;
      case 1:
        fields.numbers[field].push_back(in.number<std::uint64_t>());
        break;
      case 2:
        fields.texts[field].push_back(in.take(in.varint()));
        break;
      case 5:
        fields.numbers[field].push_back(in.number<std::uint32_t>());
        break;
      default:
        throw std::runtime_error("a field of an unknown type");
    }
  }
  return fields;
}

inline std::uint32_t masked(const std::string& bytes) {
  const auto sum = crc32c(std::as_bytes(std::span(bytes)));
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
}

inline std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (Reader in(file); !in.at_end();) {
    const auto length = in.take(8);
    EXPECT_EQ(in.number<std::uint32_t>(), masked(length));
    records.push_back(in.take(Reader(length).number<std::uint64_t>()));
    EXPECT_EQ(in.number<std::uint32_t>(), masked(records.back()));
  }
  return records;
}

/// Values by step, of each tag.
using Shown = std::map<std::string, std::map<std::uint64_t, float>>;

/// The values that TensorBoard shows of a folder: it reads the files in the order of their names, and at a
/// restart drops the values of that step and later ones. Fails the test if a step repeats or goes back
/// otherwise.
inline Shown shown_in(const std::filesystem::path& folder) {
  Shown shown;
  auto files = event_files_in(folder);
  std::ranges::sort(files);
  for (const auto& file : files) {
    for (const auto& record : records_of(read_all(file))) {
      const auto event = fields_of(record);
      const auto step = event.numbers.contains(2) ? event.numbers.at(2).at(0) : 0;
      if (event.texts.contains(7)) {
        EXPECT_EQ(fields_of(event.texts.at(7).at(0)).numbers.at(1).at(0), 1U) << "expected SessionLog.START";
        for (auto& [tag, values] : shown) values.erase(values.lower_bound(step), values.end());
      }
      if (!event.texts.contains(5)) continue;
      const auto summary = fields_of(event.texts.at(5).at(0));
      for (const auto& text : summary.texts.at(1)) {
        const auto value = fields_of(text);
        auto& values = shown[value.texts.at(1).at(0)];
        EXPECT_TRUE(values.empty() || values.rbegin()->first < step)
            << value.texts.at(1).at(0) << " goes back to step " << step << " in " << file;
        values[step] = std::bit_cast<float>(static_cast<std::uint32_t>(value.numbers.at(2).at(0)));
      }
    }
  }
  return shown;
}

}  // namespace isthmus::events
