#include "isthmus/base/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <span>
#include <string>
#include <system_error>
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

constexpr std::string_view prefix = "events.out.tfevents.", prefix_aside = "events.out.old.";

/// Seconds in the name of an event file; 0 if it has none.
std::uint64_t seconds_in(const std::filesystem::path& file) {
  const auto name = file.filename().string();
  std::uint64_t seconds = 0;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), seconds);
  return seconds;
}

/// Later than all event files in the folder, even if the clock was set back.
std::string new_name(const std::filesystem::path& folder) {
  auto seconds = static_cast<std::uint64_t>(seconds_since_epoch());
  for (const auto& file : event_files_in(folder)) seconds = std::max(seconds, seconds_in(file) + 1);
  return std::string(prefix) + std::to_string(seconds) + "." + std::to_string(getpid());
}

/// A checksum of bytes that contain checksums would be weak, so TFRecord masks it.
std::uint32_t masked_checksum(std::span<const std::byte> bytes) {
  const auto sum = crc32c(bytes);
  return (sum >> 15 | sum << 17) + 0xa282ead8U;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, AppendFile::Say say)
    : file_(folder / new_name(folder), std::move(say)) {
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

void EventFile::restart(std::uint64_t step) {
  constexpr std::uint64_t start = 1;
  Message session;
  session.number(1, start);
  Message event;
  event.fixed(1, seconds_since_epoch());
  event.number(2, step);
  event.text(7, session.bytes());
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

std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().filename().string().starts_with(prefix)) files.push_back(entry.path());
  }
  return files;
}

std::size_t set_event_files_aside(const std::filesystem::path& folder) {
  const auto files = event_files_in(folder);
  for (const auto& file : files) {
    const auto rest = file.filename().string().substr(prefix.size());
    std::filesystem::rename(file, folder / (std::string(prefix_aside) + rest));
  }
  return files.size();
}

}  // namespace isthmus
