// TensorBoard's event files, parsed by an independent reader: records, checksums and fields.

#include "isthmus/base/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

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

Fields fields_of(const std::string& message) {
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

std::uint32_t masked(const std::string& bytes) {
  const auto sum = crc32c(std::as_bytes(std::span(bytes)));
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (Reader in(file); !in.at_end();) {
    const auto length = in.take(8);
    EXPECT_EQ(in.number<std::uint32_t>(), masked(length));
    records.push_back(in.take(Reader(length).number<std::uint64_t>()));
    EXPECT_EQ(in.number<std::uint32_t>(), masked(records.back()));
  }
  return records;
}

/// The only file in a folder.
std::filesystem::path file_in(const TemporaryFolder& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U);
  return files.at(0);
}

TEST(EventFile, HoldsScalarsByStep) {
  const TemporaryFolder folder;
  EventFile out(folder.path());
  out.write(300, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
  out.write(301, {{"eval/loss", -1}});
  const auto file = file_in(folder);  // read while it is open, as during a run
  EXPECT_THAT(file.filename().string(), HasSubstr("tfevents"));
  const auto records = records_of(read_all(file));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(fields_of(records[0]).texts.at(3).at(0), "brain.Event:2");

  const auto event = fields_of(records[1]);
  EXPECT_EQ(event.numbers.at(2).at(0), 300U);
  EXPECT_GT(std::bit_cast<double>(event.numbers.at(1).at(0)), 1.6e9) << "seconds since 1970";
  const auto values = fields_of(event.texts.at(5).at(0)).texts.at(1);
  ASSERT_EQ(values.size(), 2U);
  const auto loss = fields_of(values[0]), lr = fields_of(values[1]);
  EXPECT_EQ(loss.texts.at(1).at(0), "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(loss.numbers.at(2).at(0))), 2.5F);
  EXPECT_EQ(lr.texts.at(1).at(0), "train/lr");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(lr.numbers.at(2).at(0))), 1e-3F);
  EXPECT_EQ(fields_of(records[2]).numbers.at(2).at(0), 301U);
}

TEST(EventFile, AFolderThatIsNoneIsNamed) {
  const TemporaryFolder folder;
  try {
    EventFile{folder / "none"};
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr("none/events.out.tfevents."));
  }
}

}  // namespace
}  // namespace isthmus
