#pragma once
// Text to a chunk store, in one pass: read, tokenise, compress, write. Memory is a few MiB for each thread,
// however large the text is.

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
  std::vector<std::string> sources;  ///< files, folders, "-" (standard input)
  std::optional<DocumentFormat> standard_input;
  std::filesystem::path out;
  std::string tokenizer = "bytes";
  StoreCodec codec = StoreCodec::zstd;
  std::int32_t level = 1;
  std::uint32_t block_tokens = 65536;
  std::uint32_t threads = 0;  ///< threads that tokenise, and as many again that compress; 0: one for each
                              ///< core
  std::string text_field = "text";
  bool skip_bad = false;
  /// Seconds between commits, from which an interrupted run can continue; 0: commit every block.
  double commit_every = 5;
};

struct TokenizeProgress {
  std::uint64_t source_bytes = 0;
  std::uint64_t all_source_bytes = 0;  ///< 0 if unknown
  std::uint64_t tokens = 0, documents = 0, stored_bytes = 0;
};

struct TokenizeReport {
  StoreInfo info;
  std::uint64_t resumed_at = 0;  ///< ids written by the interrupted run
  std::uint64_t bytes_read = 0;  ///< bytes of documents read by this process
  std::vector<std::string> bad;  ///< messages about the first few documents that this process skipped
  double seconds = 0;
};

/// Makes the store, or continues an interrupted run with the same result. The store's bytes depend only on
/// the sources, the tokenizer and the options, not on the number of threads. Each document is tokenised in
/// pieces of at most 1 MiB (documents.h) and followed by the separator. The caller's thread calls `progress`
/// after every block. Throws Error(data) naming file, offset and reason, also if there are no documents;
/// Error(config) for the options.
TokenizeReport tokenize(const TokenizeOptions& options,
                        const std::function<void(const TokenizeProgress&)>& progress);

}  // namespace isthmus::data
