#include "documents.h"

#include <fcntl.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "isthmus/base/aligned.h"
#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "live_input.h"
#include "text_files.h"
#include "utf8.h"

namespace isthmus::data {

namespace fs = std::filesystem;

void BadDocuments::add(const std::string& message) {
  if (policy_ == Policy::fail) throw Error(ErrorKind::data, message);
  ++count_;
  if (first_.size() < most_kept) first_.push_back(message);
}

namespace {

constexpr std::string_view standard_input_path = "-";

// ---- which files ----

DocumentFormat format_of(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson" ? DocumentFormat::jsonl
                                                                       : DocumentFormat::text;
}

/// What the file is, if its ending says that it is not text.
std::string_view other_than_text(const fs::path& path) {
  const auto ending = path.extension();
  if (ending == ".bin" || ending == ".idx")
    return "it holds token ids already, not text; let data.path name it, or move it elsewhere";
  if (ending == ".parquet" || ending == ".arrow" || ending == ".feather")
    return "it holds tables, not text; pipe them in as JSONL (docs/data.md has the line)";
  for (const auto* packed : {".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip", ".tar", ".tgz"}) {
    if (ending == packed) return "it is packed; unpack it, or pipe what it holds into '-'";
  }
  return {};
}

class FileList {
 public:
  explicit FileList(BadDocuments& bad) : bad_(bad) {}
  std::vector<DocumentFile> files;

  void add(const std::string& path) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) return bad_.add(path + ": is not there");
    if (error) return bad_.add(path + ": " + error.message());
    if (fs::is_directory(status)) {
      const auto found = find_text_files(path, [this](const std::string& message) { bad_.add(message); });
      for (const auto& file : found) add_file(file.path, file.name, file.bytes);
    } else if (fs::is_regular_file(status)) {
      add_file(path, path, fs::file_size(path, error));
    } else {
      bad_.add(path + ": is neither a file nor a folder; pipe what it gives into '-'");
    }
  }

 private:
  void add_file(const fs::path& path, const std::string& name, std::uint64_t bytes) {
    if (const auto what = other_than_text(path); !what.empty())
      return bad_.add(path.string() + ": " + std::string(what));
    files.push_back({path.string(), name, bytes, format_of(path)});
  }

  BadDocuments& bad_;
};

// ---- how much of them ----

/// How many of the first `bytes` of a file, in which more follow, are of whole characters of UTF-8. What
/// cannot be read, or is no UTF-8, is told of by who reads the file.
std::uint64_t whole_characters(const std::string& path, std::uint64_t bytes) {
  constexpr std::uint64_t longest = 4;
  const auto begin = bytes - std::min(bytes, longest - 1);
  std::string around(bytes - begin + 1, ' ');
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(static_cast<std::streamoff>(begin)) ||
      !file.read(around.data(), static_cast<std::streamsize>(around.size())))
    return bytes;
  for (auto at = around.size(); at-- > 0;) {
    if (!continues_character(around[at])) return begin + at;
  }
  return bytes;
}

/// How many of the first `bytes` of a file are of whole lines.
std::uint64_t whole_lines(const std::string& path, std::uint64_t bytes) {
  constexpr std::uint64_t part = 64 << 10;
  std::ifstream file(path, std::ios::binary);
  std::string some;
  for (auto end = bytes; end > 0;) {
    const auto begin = end - std::min(end, part);
    some.resize(end - begin);
    if (!file.seekg(static_cast<std::streamoff>(begin)) ||
        !file.read(some.data(), static_cast<std::streamsize>(some.size())))
      return bytes;
    if (const auto at = some.rfind('\n'); at != std::string::npos) return begin + at + 1;
    end = begin;
  }
  return 0;
}

// ---- what is in them ----

/// Where the first byte is that no UTF-8 has; npos for none.
std::size_t invalid_utf8(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::string_view::npos;
  // Its length is found by halves: every prefix that ends between characters is sound up to the bad one.
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

/// A file, standard input or a stream that is read once from its begin to its end.
class Input {
 public:
  explicit Input(LiveInput& live)
      : live_(&live), standard_(true), number_(-1), left_(DocumentFile::unknown) {}
  /// Not open where it cannot be, then problem() says why.
  explicit Input(const DocumentFile& file)
      : standard_(file.path == standard_input_path),
        number_(standard_ ? STDIN_FILENO : ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC)),
        left_(file.bytes) {
    if (number_ < 0) error_ = errno;
  }
  ~Input() {
    if (!standard_ && number_ >= 0) ::close(number_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// What has gone wrong so far, or nothing.
  [[nodiscard]] std::string problem() const {
    return error_ == 0 ? "" : "cannot be read: " + std::generic_category().message(error_);
  }
  /// Fills `bytes` unless there is an end before, an error too; the number that it has filled.
  std::size_t read(std::span<char> bytes) {
    std::size_t filled = 0;
    while (filled < bytes.size()) {
      const auto got = read_some(bytes.subspan(filled));
      if (got == 0) break;
      filled += got;
    }
    return filled;
  }
  /// As many as there are, one at least unless there is an end.
  std::size_t read_some(std::span<char> bytes) {
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
  [[nodiscard]] bool live() const { return live_ != nullptr; }
  /// Whether a stream has nothing to read at present.
  [[nodiscard]] bool quiet() const { return live() && live_->quiet(); }
  /// Whether the last read() found no end, but a connection that is gone or a wish to stop.
  [[nodiscard]] bool cut_off() const { return live() && (live_->broken() || live_->stopped()); }
  /// Dials again what was cut off. False if nobody wants that.
  [[nodiscard]] bool go_on(const Place& from) const {
    return cut_off() && live_->open(from.offset, from.line);
  }
  void skip(std::uint64_t bytes) {
    assert(!standard_ && bytes <= left_);
    if (::lseek(number_, static_cast<off_t>(bytes), SEEK_SET) < 0) error_ = errno;
    left_ -= bytes;
  }
  /// What should have been read and was not.
  [[nodiscard]] std::uint64_t missing() const { return left_ == DocumentFile::unknown ? 0 : left_; }

 private:
  LiveInput* live_ = nullptr;
  bool standard_;
  int number_;
  std::uint64_t left_;
  int error_ = 0;
};

/// That is not cleared before it is written.
using Buffer = AlignedVector<char>;

/// The lines of an input, one after the other, in a buffer that has as many bytes behind each as the parser
/// wants.
class Lines {
 public:
  static constexpr std::size_t padding = simdjson::SIMDJSON_PADDING;
  /// The buffer has a piece and the padding at least. `idle` is called where a stream has nothing to read;
  /// `whole` says whether the end of a line that is too long is looked for, which may never come.
  Lines(Input& input, std::uint64_t longest, bool whole, Buffer& buffer, const std::function<void()>& idle)
      : input_(input),
        longest_(static_cast<std::size_t>(longest)),
        whole_(whole),
        buffer_(buffer),
        idle_(idle) {
    assert(buffer_.size() >= piece_bytes + padding);
  }

  struct Line {
    std::string_view text;    ///< without its end; of one that is too long the begin
    std::uint64_t bytes = 0;  ///< of all of it, with its end
    std::uint32_t checksum = 0;
    bool too_long = false;
  };
  /// Nothing at the end, or where a stream was cut off: then what was read of a line is forgotten.
  /// `checksum` is of what was before; it is carried on if `sum` says so.
  std::optional<Line> next(bool sum, std::uint32_t checksum) {
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
        // None of it is kept: only its end is looked for.
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

 private:
  Line ended(Line line, std::size_t length, std::size_t newline) {
    used_ = length + newline;
    line.bytes += used_;
    line.text = {buffer_.data() + begin_, length};
    line.too_long |= length > longest_;
    if (sum_) line.checksum = crc(used_, line.checksum);
    return line;
  }
  void drop(Line& line, std::size_t length) {
    if (sum_) line.checksum = crc(length, line.checksum);
    line.bytes += length;
    begin_ += length;
  }
  [[nodiscard]] std::uint32_t crc(std::size_t length, std::uint32_t before) const {
    return crc32c(std::as_bytes(std::span(buffer_).subspan(begin_, length)), before);
  }
  /// Reads on behind what is there, for which the buffer grows as far as a line may. False at the end.
  bool fill() {
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

  Input& input_;
  std::size_t longest_;
  bool whole_;
  Buffer& buffer_;
  const std::function<void()>& idle_;
  std::size_t begin_ = 0, end_ = 0, used_ = 0;
  bool sum_ = false;
};

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

  /// False when it was told to stop.
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
    bad_.add(name_ + ", " + (lines_ ? "line " + std::to_string(place_.line + 1) + ", " : "") + "offset " +
             std::to_string(place_.offset) + ": " + why);
    ++place_.bad;
  }

  /// What was read before must be read once more: nobody can go back in it.
  void repeat_standard_input(Input& input) {
    std::uint32_t checksum = 0;
    for (auto left = place_.offset; left > 0;) {
      const auto part = std::span(buffer_).first(std::min<std::uint64_t>(left, buffer_.size()));
      const auto got = input.read(part);
      checksum = crc32c(std::as_bytes(part.first(got)), checksum);
      left -= got;
      if (got == part.size()) continue;
      throw Error(ErrorKind::data, "standard input: has ended after " + std::to_string(place_.offset - left) +
                                       " bytes, of which the run that is gone on with had read " +
                                       std::to_string(place_.offset));
    }
    if (checksum == place_.checksum) return;
    throw Error(ErrorKind::data, "standard input: its first " + std::to_string(place_.offset) +
                                     " bytes are not those that the run that is gone on with had read");
  }

  bool emit(std::string_view text, bool first, bool last, bool resumable) {
    return use_({text, first, last, resumable, place_});
  }

  /// Also of an end that came too early. Empty where all is well.
  static std::string problem_at_end(const Input& input) {
    if (auto problem = input.problem(); !problem.empty()) return problem;
    if (input.missing() == 0) return {};
    return "has become shorter while it was read: " + std::to_string(input.missing()) +
           " bytes at its end are missing";
  }

  // ---- text ----

  /// `file` is the input's, where it can be read twice.
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
          // A document that has begun ends here.
          return first || emit({}, first, true, true);
        }
        if (first && all.empty()) {
          ++place_.empty;
          return true;
        }
      }
      const auto piece = last ? all : all.substr(0, piece_end(all));
      // Of a file this was looked at before; of standard input it cannot be taken back.
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
    throw Error(ErrorKind::data, name_ + ", offset " + std::to_string(place_.offset + at) +
                                     ": not UTF-8, which this tokenizer reads");
  }

  /// Reads the whole file, so that nothing of a bad one is used.
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
      if (last) return true;  // and how it ended is seen when it is read for good
      before += piece.size();
      kept = all.size() - piece.size();
      std::memmove(buffer_.data(), buffer_.data() + piece.size(), kept);
    }
  }

  // ---- JSONL ----

  bool lines(Input& input, bool sum) {
    live_ = input.live();
    const bool whole = !live_ || bad_.policy() == BadDocuments::Policy::skip;
    Lines all(input, options_.longest_line, whole, buffer_, idle_);
    do {
      while (const auto line = all.next(sum, place_.checksum)) {
        if (line->too_long) {
          bad("a line of " + std::to_string(line->bytes) + " bytes" + (whole ? "" : " or more") +
              "; expected " + std::to_string(options_.longest_line) + " at most");
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

  /// Nothing for a line that has no document.
  std::optional<std::string_view> text_of(std::string_view line) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (place_.offset == 0 && line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return std::nullopt;
    simdjson::dom::element document;
    simdjson::dom::object object;
    std::string_view text;
    // The bytes behind the line are there: see Lines.
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
  Buffer buffer_;  ///< a piece at least; of JSONL as much as the longest line so far
  simdjson::dom::parser parser_;
  // Of the file that is read:
  std::string name_;
  bool lines_ = false, live_ = false, ended_ = false;
};

}  // namespace

std::vector<DocumentFile> find_documents(std::span<const std::string> paths,
                                         std::optional<DocumentFormat> standard_input, BadDocuments& bad) {
  FileList list(bad);
  bool standard = false;
  for (const auto& path : paths) {
    if (path != standard_input_path) {
      list.add(path);
      continue;
    }
    if (standard) throw Error(ErrorKind::config, "'-' (standard input) is named twice");
    if (!standard_input)
      throw Error(ErrorKind::config,
                  "'-' (standard input) needs --jsonl or --text: nothing else says what comes");
    standard = true;
    list.files.push_back({path, path, DocumentFile::unknown, *standard_input});
  }
  return std::move(list.files);
}

std::string keep_first(std::vector<DocumentFile>& files, std::uint64_t limit, bool utf8) {
  const auto drop_empty = [&] {
    std::erase_if(files, [](const DocumentFile& file) { return file.bytes == 0; });
  };
  drop_empty();
  const auto count = files.size();
  std::uint64_t total = 0, kept = 0;
  for (auto& file : files) {
    const auto left = limit - std::min(limit, total);
    total += file.bytes;
    if (left > 0 && left < file.bytes) {
      const bool jsonl = file.format == DocumentFormat::jsonl;
      file.bytes = jsonl ? whole_lines(file.path, left) : utf8 ? whole_characters(file.path, left) : left;
    }
    if (left == 0) file.bytes = 0;
    kept += file.bytes;
  }
  if (total <= limit) return {};
  drop_empty();
  return "data.max_bytes: of " + std::to_string(total) + " bytes of text in " + std::to_string(count) +
         " files only the first " + std::to_string(kept) + " bytes, in " + std::to_string(files.size()) +
         " files, are used";
}

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
