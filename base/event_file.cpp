#include "isthmus/base/event_file.h"

#include <unistd.h>

#include <chrono>
#include <span>
#include <string>
#include <utility>

#include "isthmus/base/checksum.h"

namespace isthmus {
namespace {

/// A Protocol Buffers message, written field by field.
class Message {
 public:
  void number(int field, std::uint64_t value) {
    tag(field, 0);
    varint(value);
  }
  void fixed(int field, double value) {
    tag(field, 1);
    append(value);
  }
  void fixed(int field, float value) {
    tag(field, 5);
    append(value);
  }
  void text(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_.append(value);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void tag(int field, int type) { varint(static_cast<std::uint64_t>(field << 3 | type)); }
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_.push_back(static_cast<char>(value | 128));
    bytes_.push_back(static_cast<char>(value));
  }
  template <class T>
  void append(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes_;
};

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string path_name() {
  return "events.out.tfevents." + std::to_string(static_cast<std::uint64_t>(seconds_since_epoch())) + "." +
         std::to_string(getpid());
}

/// A checksum of bytes that contain checksums would be weak, so TFRecord masks it.
std::uint32_t masked_checksum(std::span<const std::byte> bytes) {
  const auto sum = crc32c(bytes);
  return (sum >> 15 | sum << 17) + 0xa282ead8U;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, AppendFile::Say say)
    : file_(folder / path_name(), std::move(say)) {
  Message event;
  event.fixed(1, seconds_since_epoch());
  event.text(3, "brain.Event:2");
  write_record(event.bytes());
}

void EventFile::write(std::uint64_t step, const std::vector<std::pair<std::string_view, double>>& scalars) {
  Message summary;
  for (const auto& [name, number] : scalars) {
    Message value;
    value.text(1, name);
    value.fixed(2, static_cast<float>(number));
    summary.text(1, value.bytes());
  }
  Message event;
  event.fixed(1, seconds_since_epoch());
  event.number(2, step);
  event.text(5, summary.bytes());
  write_record(event.bytes());
}

void EventFile::write_record(std::string_view event) {
  std::string record;
  const auto put = [&](const auto& value) {
    record.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const std::uint64_t length = event.size();
  put(length);
  put(masked_checksum(std::as_bytes(std::span(&length, 1))));
  record += event;
  put(masked_checksum(std::as_bytes(std::span(event))));
  file_.append(record);
}

}  // namespace isthmus
