#pragma once
// The `data` section of a config.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::data {

/// One data set of a mixture.
struct MixturePart {
  std::string path;
  double weight = 1;  ///< > 0
};

/// "PATH = WEIGHT; PATH = WEIGHT": 2 to 1024 parts, weights above 0, which add up to whatever they do.
/// Throws Error(config) naming what is wrong.
[[nodiscard]] std::vector<MixturePart> parse_mixture(const std::string& text);
[[nodiscard]] std::string to_string(const std::vector<MixturePart>& parts);

struct DataConfig {
  std::string source = "files";
  std::string path;
  std::string mixture;
  std::string tokenizer = "bytes";
  std::int64_t seq_len = 256;
  double heldout = 0.02;
  std::int64_t separator = -1;
  bool document_mask = false;
  std::int64_t prefetch = 2;
  std::int64_t threads = 2;
  std::int64_t shuffle_blocks = 16;
  std::int64_t max_bytes = std::int64_t{4} << 30;
  std::string format = "jsonl";
  std::string store;
  std::string text_field = "text";
  std::string on_bad = "fail";

  /// What the corpus consists of, with weights that add up to 1: the mixture, or all of `path`.
  [[nodiscard]] std::vector<MixturePart> parts() const;
  [[nodiscard]] bool is_stream() const { return source == "pipe"; }
  [[nodiscard]] bool reads_standard_input() const { return is_stream() && path == "-"; }
  /// Throws Error(config) naming the key where a stream is asked for that there cannot be.
  void check() const;

  void serialize(config::Archive& ar) {
    using enum config::Scope;
    ar({"source",
        &source,
        per_site,
        "files, or pipe: a live stream of documents, which is trained on as it comes and put into a store",
        -config::unbounded,
        config::unbounded,
        {"files", "pipe"}});
    ar({"path", &path, per_site,
        "text or JSONL file, folder of such (read recursively), chunk store, .bin file of nanoGPT's or "
        "llm.c's "
        "or a folder of them, or Megatron data set (its prefix); of a stream: - (standard input), "
        "tcp://HOST:PORT or unix:///PATH"});
    ar({"mixture", &mixture, per_site,
        "several of these in place of path, with weights: \"web.bin = 0.7; code.bin = 0.3\""});
    // What must agree is the vocabulary, not where its file lies: members compare
    // Corpus::tokenizer_fingerprint().
    ar({"tokenizer", &tokenizer, per_site,
        "bytes, a Hugging Face tokenizer.json (byte-level BPE), a SentencePiece .model file, or vocab:N for "
        "a .bin file of another tokenizer with N ids"});
    ar({"seq_len", &seq_len, agreed, "tokens in a sequence", 1, 1 << 20});
    ar({"heldout", &heldout, agreed, "fraction of the corpus that is kept for evaluation; 0 keeps none", 0,
        0.5});
    ar({"separator", &separator, agreed,
        "token id that stands between documents of a .bin file; -1: the tokenizer's, of vocab:N none", -1,
        4294967294.0});
    ar({"document_mask", &document_mask, agreed,
        "tokens attend to their own document only, not to those before it in the sequence"});
    ar({"prefetch", &prefetch, per_site,
        "batches that each of the loader's stages (two with a GPU, else one) may be ahead", 1, 64});
    ar({"threads", &threads, per_site, "threads that read and unpack what lies on the disk", 1, 64});
    ar({"shuffle_blocks", &shuffle_blocks, agreed,
        "blocks (128 KiB, or a store's own) from anywhere in the data set whose windows are mixed with each "
        "other; text is mixed as a whole",
        1, 256});
    ar({"max_bytes", &max_bytes, agreed,
        "bytes of text that are read at most (ids are read as they are used, however many)", 1});
    ar({"format",
        &format,
        per_site,
        "format of a stream: jsonl, one document per line, or text, all of standard input as one document",
        -config::unbounded,
        config::unbounded,
        {"jsonl", "text"}});
    ar({"store", &store, per_site,
        "folder in which each worker keeps the store of its stream, under its name; empty: stores in the "
        "run's "
        "folder"});
    ar({"text_field", &text_field, per_site, "name of the JSONL field that holds the text"});
    ar({"on_bad",
        &on_bad,
        per_site,
        "documents that cannot be used (not UTF-8, no JSON, unreadable files): fail, or skip and count them",
        -config::unbounded,
        config::unbounded,
        {"fail", "skip"}});
  }
};

}  // namespace isthmus::data
