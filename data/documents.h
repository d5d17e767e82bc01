#pragma once
// Documents of text, as people have them: streamed out of text files, folders, JSONL files and standard
// input, with no more in memory than a piece of one, or one line of JSONL.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/data/document_format.h"

namespace isthmus::data {

class LiveInput;

/// One file of documents: a text file is one document, a JSONL file one for each line.
struct DocumentFile {
  std::string path;  ///< "-" is standard input
  std::string name;  ///< relative to the folder that was named, with '/'; else the path
  /// What is read of it: a file that has fewer when it is read has shrunk. Not known of standard input.
  std::uint64_t bytes = 0;
  DocumentFormat format = DocumentFormat::text;
  static constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
};

struct DocumentOptions {
  std::string text_field = "text";  ///< of JSONL
  /// Text that is not UTF-8 is a bad document. (JSONL is UTF-8 always.) Each text file is then read twice, so
  /// that nothing of a bad one is used; of standard input, which cannot be, it is an error.
  bool require_utf8 = false;
  std::uint64_t longest_line = std::uint64_t{64} << 20;  ///< bytes of a line of JSONL, at most
};

/// What is done about documents that cannot be used.
class BadDocuments {
 public:
  enum class Policy : std::uint8_t { fail, skip };
  explicit BadDocuments(Policy policy) : policy_(policy) {}
  /// Throws Error(data) with the message, or counts it.
  void add(const std::string& message);
  [[nodiscard]] Policy policy() const { return policy_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// The first few messages.
  [[nodiscard]] const std::vector<std::string>& first() const { return first_; }

 private:
  static constexpr std::size_t max_kept = 8;
  Policy policy_;
  std::uint64_t count_ = 0;
  std::vector<std::string> first_;
};

/// From where reading can go on, and what there was before it.
struct Place {
  std::uint64_t file = 0;      ///< number of the file
  std::uint64_t offset = 0;    ///< in it
  std::uint64_t line = 0;      ///< lines before it, of JSONL
  std::uint32_t checksum = 0;  ///< CRC32C of what was before it, of standard input
  bool inside = false;         ///< a document of text has begun before it
  std::uint64_t bytes = 0;     ///< read in all files so far
  std::uint64_t empty = 0;     ///< documents without a byte, which are left out
  std::uint64_t bad = 0;       ///< documents that were skipped

  friend bool operator==(const Place&, const Place&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(file, offset, line, checksum, inside, bytes, empty, bad);
  }
};

/// At most 1 MiB of a document, ending at a line's end where there is one, else between characters. Where it
/// is cut depends on the document alone.
struct Piece {
  std::string_view text;   ///< valid during the call; empty only where it is also the last
  bool first = false;      ///< of its document
  bool last = false;       ///< of its document
  bool resumable = false;  ///< whether reading on from `place` gives this piece first
  Place place;
};

/// The files that the paths name, in their order: a file, a folder (all below it, in the byte order of their
/// names; names that start with a dot are left out), or "-". Files that end in .jsonl or .ndjson are JSONL.
/// What cannot be read, and files whose ending says that they are not text (.bin, .parquet, .gz ...), are bad
/// documents. Throws Error(config) for "-" without a format, or twice.
[[nodiscard]] std::vector<DocumentFile> find_documents(std::span<const std::string> paths,
                                                       std::optional<DocumentFormat> standard_input,
                                                       BadDocuments& bad);

/// Drops empty files and what lies beyond `limit` bytes (`data.max_bytes`), and of a line of JSONL or, if
/// that is what is read, a character of UTF-8 all of what `limit` would divide. Returns a sentence for the
/// user if that was something.
[[nodiscard]] std::string keep_first(std::vector<DocumentFile>& files, std::uint64_t limit, bool utf8);

/// Calls `use` for each piece of each document, in order, until it returns false. What it returns is the
/// place of the end. Throws Error(data) naming file, offset (and line) and reason, as `bad` has it.
Place for_each_document(std::span<const DocumentFile> files, const DocumentOptions& options,
                        BadDocuments& bad, const Place& from, const std::function<bool(const Piece&)>& use);

/// The same of a stream, until it ends or is stopped. A socket ends with a line that has no text but "end":
/// true; what was read of a line when it breaks is dropped. `idle` is called where nothing is there to be
/// read: all before the place has been given.
Place for_each_document(LiveInput& stream, DocumentFormat format, const DocumentOptions& options,
                        BadDocuments& bad, const Place& from, const std::function<bool(const Piece&)>& use,
                        const std::function<void(const Place&)>& idle);

}  // namespace isthmus::data
