#include "records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync::log {
namespace {

namespace fs = std::filesystem;

// A header has a few dozen bytes per tensor.
constexpr std::uint64_t largest_header = std::uint64_t{256} << 20;

struct FileName {
  std::uint64_t fragment = 0;
  protocol::Round round = 0;
};

/// Reads a number from the front of `text`.
bool take_number(std::string_view& text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}
bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// The numbers in a fragment file's name; nullopt for other names.
std::optional<FileName> parse(std::string_view name) {
  FileName parsed;
  const bool is_one = take_word(name, "fragment_") && take_number(name, parsed.fragment) &&
                      take_word(name, "_round_") && take_number(name, parsed.round) && name == ".log";
  if (!is_one) return std::nullopt;
  return parsed;
}

}  // namespace

RecordRule record_of(const quant::OuterStep& rule) {
  return {rule.lr, rule.momentum, rule.nesterov ? 1U : 0U};
}

quant::OuterStep rule_of(const RecordRule& record) {
  return {.lr = record.lr, .momentum = record.momentum, .nesterov = record.nesterov != 0, .alpha = 0};
}

std::uint64_t body_size(const LogHeader& header, FragmentId fragment, RecordKind kind) {
  return kind == RecordKind::snapshot ? 2 * sizeof(float) * header.fragments.at(fragment).size
                                      : sizeof(RecordRule) + header.result_size(fragment);
}

Digest seed_of(const LogHeader& header) { return hash_of(to_file(header)); }

fs::path fragment_file(const fs::path& folder, FragmentId fragment, protocol::Round round) {
  return folder / fmt::format("fragment_{:04}_round_{:012}.log", fragment, round);
}

protocol::Round first_round(const fs::path& file) {
  const auto name = parse(file.filename().string());
  return name ? name->round : 0;
}

std::vector<std::vector<fs::path>> fragment_files(const fs::path& folder, const LogHeader& header) {
  std::vector<std::vector<fs::path>> files(header.fragments.size());
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = parse(entry.path().filename().string());
    if (!name) continue;
    const auto refuse = [&](const std::string& reason) {
      throw Error(ErrorKind::data, "the log's file " + entry.path().string() + " cannot be used: " + reason);
    };
    if (name->fragment >= files.size())
      refuse("the log's header has " + std::to_string(files.size()) + " fragments");
    const auto fragment = static_cast<FragmentId>(name->fragment);
    std::error_code error;
    const auto size = fs::file_size(entry.path(), error);
    if (error) refuse(error.message());
    const auto least = record_size(header, fragment, RecordKind::snapshot);
    if (size < least)
      refuse("it has " + std::to_string(size) + " bytes; its snapshot alone takes " + std::to_string(least));
    files[fragment].push_back(entry.path());
  }
  for (auto& of_fragment : files) std::ranges::sort(of_fragment, std::greater(), first_round);
  return files;
}

LogHeader read_header(const fs::path& folder) {
  const auto path = folder / header_name;
  const File file(path, File::Mode::read);
  const auto size = file.size();
  if (size > largest_header) throw Error(ErrorKind::data, path.string() + " is too large for a log's header");
  Bytes bytes(size);
  if (!file.read(bytes)) throw Error(ErrorKind::data, path.string() + " became shorter while it was read");
  return header_from(bytes, path);
}

RecordReader::RecordReader(const fs::path& file, const LogHeader& header, FragmentId fragment)
    : path_(file),
      header_(header),
      fragment_(fragment),
      seed_(seed_of(header)),
      file_(file, File::Mode::read),
      size_(file_.size()) {}

void RecordReader::refuse(const std::string& reason) const {
  throw Error(ErrorKind::data, "the log's file " + path_.string() + " cannot be used at byte " +
                                   std::to_string(begin_) + ": " + reason);
}

bool RecordReader::next() {
  const auto kind = next_ == 0 ? RecordKind::snapshot : RecordKind::round;
  const auto length = body_size(header_, fragment_, kind);
  const auto whole = record_size(header_, fragment_, kind);
  if (body_unread_) file_.skip(head_.length + record_checksum_size);
  body_unread_ = false;
  begin_ = next_;
  if (size_ - begin_ < whole) {
    torn_ = size_ > begin_;
    if (kind == RecordKind::snapshot) refuse("it ends inside its snapshot");
    return false;
  }
  if (!file_.read(head_bytes_)) refuse("it became shorter while it was read");
  const auto head = from_bytes<RecordHead>(head_bytes_);
  if (head.kind != kind || head.length != length || head.fragment != fragment_)
    refuse("expected a " + std::string(kind == RecordKind::round ? "round" : "snapshot") + " of fragment " +
           std::to_string(fragment_));
  const auto expected = kind == RecordKind::round ? head_.round + 1 : first_round(path_);
  if (head.round != expected)
    refuse("it has round " + std::to_string(head.round) + "; expected " + std::to_string(expected));
  head_ = head;
  next_ = begin_ + whole;
  body_unread_ = true;
  return true;
}

std::span<const std::byte> RecordReader::body() {
  body_.resize(head_.length);
  Digest checksum;
  if (!file_.read(body_) || !file_.read(std::as_writable_bytes(std::span(checksum.bytes))))
    refuse("it became shorter while it was read");
  body_unread_ = false;
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(seed_.bytes)))
      .update(head_bytes_)
      .update(std::span<const std::byte>(body_));
  if (hasher.finish() != checksum) refuse("its checksum is wrong: it is damaged, or of another log");
  return body_;
}

}  // namespace isthmus::outer_sync::log
