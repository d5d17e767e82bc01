// Reads arbitrary bytes as a file of documents: each document is returned or counted as bad, nothing else is
// returned, and reading resumed at any place returns the rest.
//
// Input: a byte of options (bit 0: JSONL, bit 1: only UTF-8, bits 2 to 4: maximum length of a line), then the
// file.

#include <simdjson.h>

#include <fstream>

#include "fuzz_folder.h"
#include "fuzz_support.h"
#include "isthmus/base/error.h"
#include "text/documents.h"

using namespace isthmus;
using namespace isthmus::data;
using quant::require;

namespace {

struct Given {
  std::string text;
  bool first, last;
  Place place;
};

std::vector<Given> read(std::span<const DocumentFile> files, const DocumentOptions& options,
                        const Place& from, Place& end) {
  std::vector<Given> all;
  BadDocuments bad(BadDocuments::Policy::skip);
  end = for_each_document(files, options, bad, from, [&](const Piece& piece) {
    require(piece.resumable || !piece.first, "the start of a document is not resumable");
    require(all.empty() ? piece.first || from.inside : piece.first == all.back().last,
            "a piece that belongs to no document");
    all.push_back({std::string(piece.text), piece.first, piece.last, piece.place});
    return true;
  });
  require(end.bad == from.bad + bad.count(), "wrong count of bad documents");
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static const auto path = (folder.path / "documents").string();
  if (size == 0) return 0;
  const std::string content(reinterpret_cast<const char*>(data + 1), size - 1);
  std::ofstream(path, std::ios::binary) << content;
  const bool jsonl = (data[0] & 1) != 0;
  const DocumentFile files[] = {
      {path, path, content.size(), jsonl ? DocumentFormat::jsonl : DocumentFormat::text}};
  DocumentOptions options;
  options.require_utf8 = (data[0] & 2) != 0;
  options.max_line = std::uint64_t{8} << (data[0] >> 2 & 7);
  Place end;
  const auto all = read(files, options, {}, end);
  require(all.empty() || all.back().last, "a document without an end");
  require(end.file == 1, "not all was read");
  if (jsonl) {
    require(end.bytes == content.size(), "wrong count of bytes");
    for (const auto& piece : all) {
      require(!piece.text.empty() && simdjson::validate_utf8(piece.text.data(), piece.text.size()),
              "text that JSON cannot contain");
    }
  } else if (end.bad == 0) {
    std::string text;
    for (const auto& piece : all) text += piece.text;
    require(text == content && end.bytes == content.size(), "text differs from the file");
    require(end.empty == (content.empty() ? 1 : 0), "wrong count of empty documents");
  } else {
    require(all.empty() && options.require_utf8 && !simdjson::validate_utf8(content.data(), content.size()),
            "valid text was reported as bad");
  }
  if (all.empty()) return 0;
  // Resumes at the middle piece.
  const auto& from = all[all.size() / 2];
  Place again_end;
  const auto again = read(files, options, from.place, again_end);
  require(again.size() == all.size() - all.size() / 2 && again_end == end,
          "resumed reading gives other pieces");
  for (std::size_t i = 0; i < again.size(); ++i)
    require(again[i].text == all[all.size() / 2 + i].text, "resumed reading gives other text");
  return 0;
}
