#pragma once
// The `data` section of a config.

#include <cstdint>
#include <string>

#include "isthmus/base/config.h"

namespace isthmus::data {

struct DataConfig {
  std::string path;
  std::string tokenizer = "bytes";
  std::int64_t seq_len = 256;
  double heldout = 0.02;
  std::int64_t prefetch = 2;
  std::int64_t max_bytes = std::int64_t{4} << 30;

  void serialize(config::Archive& ar) {
    using enum config::Scope;
    ar({"path", &path, per_site, "text file, folder of text files (read recursively) or nanoGPT .bin file"});
    // What must agree is the vocabulary, not where its file lies: members compare
    // Corpus::tokenizer_fingerprint().
    ar({"tokenizer", &tokenizer, per_site,
        "bytes, a SentencePiece .model file, or vocab:N for a .bin file of another tokenizer with N ids"});
    ar({"seq_len", &seq_len, agreed, "tokens in a sequence", 1, 1 << 20});
    ar({"heldout", &heldout, agreed, "fraction of the corpus that is kept for evaluation; 0 keeps none", 0,
        0.5});
    ar({"prefetch", &prefetch, per_site, "batches that each of the loader's two stages may be ahead", 1, 64});
    ar({"max_bytes", &max_bytes, agreed,
        "bytes of text that are read at most (.bin files are mapped, not read)", 1});
  }
};

}  // namespace isthmus::data
