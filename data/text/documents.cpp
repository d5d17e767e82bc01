#include "text/documents.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "text/document_input.h"
#include "text/live_input.h"
#include "text/text_files.h"
#include "unicode/utf8.h"

namespace isthmus::data {

void BadDocuments::add(const std::string& message) {
  if (policy_ == Policy::fail) data_error(message);
  ++count_;
  if (first_.size() < max_kept) first_.push_back(message);
}

namespace {

/// Position of the first byte that is not valid UTF-8; npos if all are.
std::size_t invalid_utf8(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::string_view::npos;
  // Binary search: every prefix that ends between characters and before the invalid byte is valid.
  std::size_t sound = 0, end = text.size();
  while (end - sound > 8) {
    auto middle = sound + (end - sound) / 2;
    for (int back = 0; back < 3 && middle > sound && continues_character(text[middle]); ++back) --middle;
    (simdjson::validate_utf8(text.data(), middle) ? sound : end) = middle;
  }
  while (sound < end) {
    const auto lead = static_cast<unsigned char>(text[sound]);
    const std::size_t wanted = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const auto length = std::min(wanted, text.size() - sound);
    if (!simdjson::validate_utf8(text.data() + sound, length)) break;
    sound += length;
  }
  return sound;
}

class Reader {
 public:
  Reader(const DocumentOptions& options, BadDocuments& bad, const Place& from,
         const std::function<bool(const Piece&)>& use, std::function<void(const Place&)> idle = {})
      : options_(options),
        bad_(bad),
        place_(from),
        use_(use),
        idle_([this, idle = std::move(idle)] { idle(place_); }),
        buffer_(piece_bytes + Lines::padding) {}

  void stream(LiveInput& live, DocumentFormat format) {
    name_ = live.is_socket() ? live.path() : "standard input";
    lines_ = format == DocumentFormat::jsonl;
    Input input(live);
    if (!live.open(place_.offset, place_.line)) return;
    if (!live.is_socket()) repeat_standard_input(input);
    static_cast<void>(lines_ ? lines(input, !live.is_socket()) : text(nullptr, input));
  }

  /// Returns false if `use` asked to stop.
  bool file(const DocumentFile& file) {
    const bool standard = file.path == standard_input_path;
    name_ = standard ? "standard input" : file.path;
    lines_ = file.format == DocumentFormat::jsonl;
    Input input(file);
    bool go_on = true;
    if (!input.problem().empty()) {
      bad(input.problem());
    } else {
      if (standard) {
        repeat_standard_input(input);
      } else {
        input.skip(place_.offset);
      }
      go_on = lines_ ? lines(input, standard) : text(standard ? nullptr : &file, input);
    }
    if (!go_on) return false;
    place_.offset = place_.line = 0;
    place_.inside = false;
    ++place_.file;
    return true;
  }
  [[nodiscard]] const Place& place() const { return place_; }

 private:
  void bad(const std::string& why) {
    bad_.add(fmt::format("{}, {}offset {}: {}", name_,
                         (lines_ ? fmt::format("line {}, ", place_.line + 1) : ""), place_.offset, why));
    ++place_.bad;
  }

  /// Reads what the interrupted run had read once more and checks it: standard input cannot seek.
  void repeat_standard_input(Input& input) {
    std::uint32_t checksum = 0;
    for (auto left = place_.offset; left > 0;) {
      const auto part = std::span(buffer_).first(std::min<std::uint64_t>(left, buffer_.size()));
      const auto got = input.read(part);
      checksum = crc32c(std::as_bytes(part.first(got)), checksum);
      left -= got;
      if (got == part.size()) continue;
      data_error(
          fmt::format("standard input: has ended after {} bytes; feed it again from "
                      "the start: the interrupted run had read {}",
                      place_.offset - left, place_.offset));
    }
    if (checksum == place_.checksum) return;
    data_error(
        fmt::format("standard input: its first {} bytes differ from what the "
                    "interrupted run had read; feed the same data again",
                    place_.offset));
  }

  bool emit(std::string_view text, bool first, bool last, bool resumable) {
    return use_({text, first, last, resumable, place_});
  }

  /// The error of an input that has ended, also if it ended too early. Empty if there was no error.
  static std::string problem_at_end(const Input& input) {
    if (auto problem = input.problem(); !problem.empty()) return problem;
    if (input.missing() == 0) return {};
    return fmt::format("has become shorter while it was read: {} bytes at its end are missing",
                       input.missing());
  }

  // ---- text ----

  /// `file` is the input's file; null if it can be read only once.
  bool text(const DocumentFile* file, Input& input) {
    const bool once = file == nullptr;
    if (options_.require_utf8 && !once && !place_.inside && !all_utf8(*file)) return true;
    bool first = !place_.inside;
    std::size_t kept = 0;  // bytes at the front that the last piece left over
    while (true) {
      if (input.quiet()) idle_();
      const auto got = input.read(std::span(buffer_).subspan(kept, piece_bytes - kept));
      if (input.cut_off()) return false;
      const std::string_view all(buffer_.data(), kept + got);
      const bool last = all.size() < piece_bytes;
      if (last) {
        if (const auto problem = problem_at_end(input); !problem.empty()) {
          bad(problem);
          // End the document that has begun.
          return first || emit({}, first, true, true);
        }
        if (first && all.empty()) {
          ++place_.empty;
          return true;
        }
      }
      const auto piece = last ? all : all.substr(0, piece_end(all));
      // A file was checked before; standard input cannot be read twice.
      if (options_.require_utf8) {
        if (const auto at = invalid_utf8(piece); at != std::string_view::npos) refuse_utf8(at);
      }
      if (!emit(piece, first, last, true)) return false;
      advance(piece.size(),
              once ? crc32c(std::as_bytes(std::span(piece)), place_.checksum) : place_.checksum);
      place_.inside = !last;
      if (last) return true;
      first = false;
      kept = all.size() - piece.size();
      std::memmove(buffer_.data(), buffer_.data() + piece.size(), kept);
    }
  }

  void advance(std::uint64_t bytes, std::uint32_t checksum) {
    place_.offset += bytes;
    place_.bytes += bytes;
    place_.checksum = checksum;
  }

  [[noreturn]] void refuse_utf8(std::size_t at) const {
    data_error(
        fmt::format("{}, offset {}: not UTF-8, which this tokenizer reads", name_, place_.offset + at));
  }

  /// Reads the whole file first, so that nothing of a bad one is used.
  bool all_utf8(const DocumentFile& file) {
    Input input(file);
    std::uint64_t before = 0;
    for (std::size_t kept = 0;;) {
      const auto got = input.read(std::span(buffer_).subspan(kept, piece_bytes - kept));
      const std::string_view all(buffer_.data(), kept + got);
      const bool last = all.size() < piece_bytes;
      const auto piece = last ? all : all.substr(0, piece_end(all));
      if (const auto at = invalid_utf8(piece); at != std::string_view::npos) {
        place_.offset = before + at;
        bad("not UTF-8, which this tokenizer reads");
        return false;
      }
      if (last) return true;  // a read error is found by the second read
      before += piece.size();
      kept = all.size() - piece.size();
      std::memmove(buffer_.data(), buffer_.data() + piece.size(), kept);
    }
  }

  // ---- JSONL ----

  bool lines(Input& input, bool sum) {
    live_ = input.live();
    const bool whole = !live_ || bad_.policy() == BadDocuments::Policy::skip;
    Lines all(input, options_.max_line, whole, buffer_, idle_);
    do {
      while (const auto line = all.next(sum, place_.checksum)) {
        if (line->too_long) {
          bad(fmt::format("a line of {} bytes{}; expected {} at most", line->bytes, (whole ? "" : " or more"),
                          options_.max_line));
        } else if (const auto text = text_of(line->text); text && !cut(*text)) {
          return false;
        }
        if (ended_) return true;
        advance(line->bytes, line->checksum);
        ++place_.line;
      }
    } while (input.go_on(place_));
    if (live_) return !input.cut_off();
    if (const auto problem = problem_at_end(input); !problem.empty()) bad(problem);
    return true;
  }

  /// Returns nullopt if the line has no document.
  std::optional<std::string_view> text_of(std::string_view line) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (place_.offset == 0 && line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return std::nullopt;
    simdjson::dom::element document;
    simdjson::dom::object object;
    std::string_view text;
    // Lines keeps padding behind the line.
    if (const auto error = parser_.parse(line.data(), line.size(), false).get(document)) {
      bad("not a line of JSON: " + std::string(simdjson::error_message(error)));
    } else if (document.get(object) != simdjson::SUCCESS) {
      bad("not an object of JSON");
    } else if (const auto missing = object.at_key(options_.text_field).error(); missing) {
      if (live_ && object.at_key("end").get(ended_) == simdjson::SUCCESS && ended_) return std::nullopt;
      bad("has no field \"" + options_.text_field + "\"");
    } else if (object.at_key(options_.text_field).get(text) != simdjson::SUCCESS) {
      bad("its field \"" + options_.text_field + "\" is not a string");
    } else if (text.empty()) {
      ++place_.empty;
    } else {
      return text;
    }
    return std::nullopt;
  }

  bool cut(std::string_view text) {
    for (bool first = true;; first = false) {
      const bool last = text.size() < piece_bytes;
      const auto piece = last ? text : text.substr(0, piece_end(text.substr(0, piece_bytes)));
      if (!emit(piece, first, last, first)) return false;
      if (last) return true;
      text.remove_prefix(piece.size());
    }
  }

  const DocumentOptions& options_;
  BadDocuments& bad_;
  Place place_;
  const std::function<bool(const Piece&)>& use_;
  std::function<void()> idle_;
  Lines::Buffer buffer_;  ///< holds at least a piece; for JSONL, the longest line so far
  simdjson::dom::parser parser_;
  // The current file:
  std::string name_;
  bool lines_ = false, live_ = false, ended_ = false;
};

}  // namespace

Place for_each_document(std::span<const DocumentFile> files, const DocumentOptions& options,
                        BadDocuments& bad, const Place& from, const std::function<bool(const Piece&)>& use) {
  Reader reader(options, bad, from, use);
  while (reader.place().file < files.size() && reader.file(files[reader.place().file])) {
  }
  return reader.place();
}

Place for_each_document(LiveInput& stream, DocumentFormat format, const DocumentOptions& options,
                        BadDocuments& bad, const Place& from, const std::function<bool(const Piece&)>& use,
                        const std::function<void(const Place&)>& idle) {
  Reader reader(options, bad, from, use, idle);
  reader.stream(stream, format);
  return reader.place();
}

}  // namespace isthmus::data
