#pragma once
// Reads documents of text: streams them out of text files, folders, JSONL files and standard input, with at
// most a piece of a document, or one line of JSONL, in memory.

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

/// One file of documents: a text file is one document, a JSONL file has one per line.
struct DocumentFile {
  std::string path;  ///< "-" is standard input
  std::string name;  ///< relative to the folder that was given, with '/'; otherwise the path
  /// Bytes to read; a file that has fewer when it is read has shrunk. Unknown for standard input.
  std::uint64_t bytes = 0;
  DocumentFormat format = DocumentFormat::text;
  static constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
};

struct DocumentOptions {
  std::string text_field = "text";  ///< field of a JSONL object
  /// Whether text that is not UTF-8 is a bad document. (JSONL always is UTF-8.) Text files are then read
  /// twice, so that nothing of a bad one is used; standard input cannot be read twice, so it is an error
  /// there.
  bool require_utf8 = false;
  std::uint64_t max_line = std::uint64_t{64} << 20;  ///< maximum bytes of a line of JSONL
};

/// Handles documents that cannot be used.
class BadDocuments {
 public:
  enum class Policy : std::uint8_t { fail, skip };
  explicit BadDocuments(Policy policy) : policy_(policy) {}
  /// Throws Error(data) with the message, or counts it, depending on the policy.
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

/// A position from which reading can continue, and counts of what came before it.
struct Place {
  std::uint64_t file = 0;      ///< number of the file
  std::uint64_t offset = 0;    ///< offset in the file
  std::uint64_t line = 0;      ///< lines of JSONL before it
  std::uint32_t checksum = 0;  ///< CRC32C of standard input before it
  bool inside = false;         ///< whether a text document has begun before it
  std::uint64_t bytes = 0;     ///< bytes read in all files so far
  std::uint64_t empty = 0;     ///< documents without a byte, which are left out
  std::uint64_t bad = 0;       ///< documents that were skipped

  friend bool operator==(const Place&, const Place&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(file, offset, line, checksum, inside, bytes, empty, bad);
  }
};

/// At most 1 MiB of a document, which ends at a line's end if it has one, else between characters. The cuts
/// depend only on the document.
struct Piece {
  std::string_view text;   ///< valid during the call; empty only if it is also the last piece
  bool first = false;      ///< first piece of its document
  bool last = false;       ///< last piece of its document
  bool resumable = false;  ///< whether reading from `place` returns this piece first
  Place place;
};

/// Finds the files of `paths`, in their order: a file, a folder (all files below it, in the byte order of
/// their names; names that start with a dot are left out), or "-". Files that end in .jsonl or .ndjson are
/// JSONL. Unreadable files and files that are not text by their extension (.bin, .parquet, .gz ...) are bad
/// documents. Throws Error(config) for "-" without a format, or twice.
[[nodiscard]] std::vector<DocumentFile> find_documents(std::span<const std::string> paths,
                                                       std::optional<DocumentFormat> standard_input,
                                                       BadDocuments& bad);

/// Drops empty files and everything beyond `limit` bytes (`data.max_bytes`), including a line of JSONL or, if
/// `utf8`, a character that would be cut. Returns a sentence for the user if the limit was exceeded, else an
/// empty string.
[[nodiscard]] std::string keep_first(std::vector<DocumentFile>& files, std::uint64_t limit, bool utf8);

/// Calls `use` for each piece of each document, in order, until it returns false. Returns the place where
/// reading ended. Throws Error(data) naming file, offset (and line) and reason for bad documents, unless
/// `bad` skips them.
Place for_each_document(std::span<const DocumentFile> files, const DocumentOptions& options,
                        BadDocuments& bad, const Place& from, const std::function<bool(const Piece&)>& use);

/// The same for a stream, until it ends or is stopped. A socket's stream ends with a line that has no text
/// but "end": true; a partial line is discarded when the connection breaks. `idle` is called when nothing can
/// be read at present, with the place up to which all documents were passed on.
Place for_each_document(LiveInput& stream, DocumentFormat format, const DocumentOptions& options,
                        BadDocuments& bad, const Place& from, const std::function<bool(const Piece&)>& use,
                        const std::function<void(const Place&)>& idle);

}  // namespace isthmus::data
