// Finds the files that hold documents, and decides how much of each is read.

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "isthmus/base/error.h"
#include "text/document_input.h"
#include "text/documents.h"
#include "text/text_files.h"
#include "unicode/utf8.h"

namespace isthmus::data {

namespace fs = std::filesystem;

namespace {

DocumentFormat format_by_name(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson" ? DocumentFormat::jsonl
                                                                       : DocumentFormat::text;
}

/// Says what the file contains and what to do if it is not text by its extension; otherwise empty.
std::string_view other_than_text(const fs::path& path) {
  const auto ending = path.extension();
  if (ending == ".bin" || ending == ".idx")
    return "it holds token ids, not text; set data.path to it, or move it elsewhere";
  if (ending == ".parquet" || ending == ".arrow" || ending == ".feather")
    return "it holds tables, not text; pipe them in as JSONL (docs/data.md has the command)";
  for (const auto* packed : {".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip", ".tar", ".tgz"}) {
    if (ending == packed) return "it is packed; unpack it, or pipe its content into '-'";
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
    if (status.type() == fs::file_type::not_found) return bad_.add(path + ": does not exist");
    if (error) return bad_.add(path + ": " + error.message());
    if (fs::is_directory(status)) {
      const auto found = find_text_files(path, [this](const std::string& message) { bad_.add(message); });
      for (const auto& file : found) add_file(file.path, file.name, file.bytes);
    } else if (fs::is_regular_file(status)) {
      add_file(path, path, fs::file_size(path, error));
    } else {
      bad_.add(path + ": is neither a file nor a folder; pipe its output into '-'");
    }
  }

 private:
  void add_file(const fs::path& path, const std::string& name, std::uint64_t bytes) {
    if (const auto what = other_than_text(path); !what.empty())
      return bad_.add(path.string() + ": " + std::string(what));
    files.push_back({path.string(), name, bytes, format_by_name(path)});
  }

  BadDocuments& bad_;
};

// ---- how much of each is read ----

/// How many of the first `bytes` of a file, which has more, belong to whole UTF-8 characters. Reports no read
/// errors and no invalid UTF-8: the code that reads the file does.
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

/// How many of the first `bytes` of a file belong to whole lines.
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
    if (standard) config_error("'-' (standard input) is named twice");
    if (!standard_input) config_error("'-' (standard input) needs --jsonl or --text to set its format");
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
  return fmt::format(
      "data.max_bytes: of {} bytes of text in {} files only the first {} bytes, in {} files, are used", total,
      count, kept, files.size());
}

}  // namespace isthmus::data
