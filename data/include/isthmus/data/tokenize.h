#pragma once
// Text to a chunk store, in one pass: read, tokenise, compress, write. Memory is a few MiB for each thread,
// however much text there is.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/data/document_format.h"
#include "isthmus/data/store.h"

namespace isthmus::data {

struct TokenizeOptions {
  std::vector<std::string> sources;  ///< files, folders, "-"
  std::optional<DocumentFormat> standard_input;
  std::filesystem::path out;
  std::string tokenizer = "bytes";
  StoreCodec codec = StoreCodec::zstd;
  std::int32_t level = 1;
  std::uint32_t block_tokens = 65536;
  std::uint32_t threads = 0;  ///< that tokenise, and as many that compress; 0: as many as there are cores
  std::string text_field = "text";
  bool skip_bad = false;
  /// Seconds between two points from which an interrupted run can go on; 0: at every block.
  double commit_every = 5;
};

struct TokenizeProgress {
  std::uint64_t source_bytes = 0;
  std::uint64_t all_source_bytes = 0;  ///< 0 where it is not known
  std::uint64_t tokens = 0, documents = 0, stored_bytes = 0;
};

struct TokenizeReport {
  StoreInfo info;
  std::uint64_t resumed_at = 0;  ///< ids that were there already
  std::uint64_t bytes_read = 0;  ///< by this process, of documents
  std::vector<std::string> bad;  ///< the first few documents that were skipped by this process
  double seconds = 0;
};

/// Makes the store, or goes on making it where it was interrupted: it ends with the same bytes. These depend
/// on the sources, the tokenizer and the options alone, not on the number of threads. Each document is
/// tokenised in pieces of at most 1 MiB (documents.h) and followed by the separator. `progress` is called
/// after every block, by the caller's thread. Throws Error(data) naming file, offset and reason, and where
/// there are no documents; Error(config) for the options.
TokenizeReport tokenize(const TokenizeOptions& options,
                        const std::function<void(const TokenizeProgress&)>& progress);

}  // namespace isthmus::data
