#include "text/document_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "isthmus/base/checksum.h"
#include "text/live_input.h"
#include "text/text_files.h"

namespace isthmus::data {

// ---- Input ----

Input::Input(LiveInput& live) : live_(&live), standard_(true), number_(-1), left_(DocumentFile::unknown) {}

Input::Input(const DocumentFile& file)
    : standard_(file.path == standard_input_path),
      number_(standard_ ? STDIN_FILENO : ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC)),
      left_(file.bytes) {
  if (number_ < 0) error_ = errno;
}

Input::~Input() {
  if (!standard_ && number_ >= 0) ::close(number_);
}

std::string Input::problem() const {
  return error_ == 0 ? "" : "cannot be read: " + std::generic_category().message(error_);
}

std::size_t Input::read(std::span<char> bytes) {
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const auto got = read_some(bytes.subspan(filled));
    if (got == 0) break;
    filled += got;
  }
  return filled;
}

std::size_t Input::read_some(std::span<char> bytes) {
  if (live_ != nullptr) return live_->read(bytes);
  const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), left_));
  if (error_ != 0 || wanted == 0) return 0;
  ssize_t got = -1;
  do {
    got = ::read(number_, bytes.data(), wanted);
  } while (got < 0 && errno == EINTR);
  if (got < 0) error_ = errno;
  if (got <= 0) return 0;
  if (left_ != DocumentFile::unknown) left_ -= static_cast<std::uint64_t>(got);
  return static_cast<std::size_t>(got);
}

bool Input::quiet() const { return live() && live_->quiet(); }
bool Input::cut_off() const { return live() && (live_->broken() || live_->stopped()); }
bool Input::go_on(const Place& from) const { return cut_off() && live_->open(from.offset, from.line); }

void Input::skip(std::uint64_t bytes) {
  assert(!standard_ && bytes <= left_);
  if (::lseek(number_, static_cast<off_t>(bytes), SEEK_SET) < 0) error_ = errno;
  left_ -= bytes;
}

// ---- Lines ----

Lines::Lines(Input& input, std::uint64_t longest, bool whole, Buffer& buffer,
             const std::function<void()>& idle)
    : input_(input),
      longest_(static_cast<std::size_t>(longest)),
      whole_(whole),
      buffer_(buffer),
      idle_(idle) {
  assert(buffer_.size() >= piece_bytes + padding);
}

std::optional<Lines::Line> Lines::next(bool sum, std::uint32_t checksum) {
  sum_ = sum;
  begin_ += used_;
  used_ = 0;
  Line line{{}, 0, checksum, false};
  for (std::size_t seen = 0;;) {
    const auto* const from = buffer_.data() + begin_;
    const auto length = end_ - begin_;
    if (const auto* const found = static_cast<const char*>(std::memchr(from + seen, '\n', length - seen)))
      return ended(line, static_cast<std::size_t>(found - from), 1);
    if (length > longest_) {
      // Only the line's end is still needed.
      line.too_long = true;
      drop(line, length);
      if (!whole_) return line;
    }
    seen = end_ - begin_;
    if (fill()) continue;
    if (input_.cut_off()) {
      begin_ = end_ = 0;
      return std::nullopt;
    }
    if (end_ == begin_ && line.bytes == 0) return std::nullopt;
    return ended(line, end_ - begin_, 0);
  }
}

Lines::Line Lines::ended(Line line, std::size_t length, std::size_t newline) {
  used_ = length + newline;
  line.bytes += used_;
  line.text = {buffer_.data() + begin_, length};
  line.too_long |= length > longest_;
  if (sum_) line.checksum = crc(used_, line.checksum);
  return line;
}

void Lines::drop(Line& line, std::size_t length) {
  if (sum_) line.checksum = crc(length, line.checksum);
  line.bytes += length;
  begin_ += length;
}

std::uint32_t Lines::crc(std::size_t length, std::uint32_t before) const {
  return crc32c(std::as_bytes(std::span(buffer_).subspan(begin_, length)), before);
}

/// Reads more bytes behind those in the buffer, which grows as far as a line may. False at the end.
bool Lines::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (input_.quiet()) idle_();
  if (end_ + padding == buffer_.size())
    buffer_.resize(std::min(2 * (buffer_.size() - padding), longest_ + piece_bytes) + padding);
  const auto got = input_.read_some(std::span(buffer_).subspan(end_, buffer_.size() - padding - end_));
  end_ += got;
  return got > 0;
}

}  // namespace isthmus::data
