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

/// Parses "PATH = WEIGHT; PATH = WEIGHT": 2 to 1024 parts with weights above 0, which need not add up to 1.
/// Throws Error(config) with the invalid part and what was expected.
[[nodiscard]] std::vector<MixturePart> parse_mixture(const std::string& text);
[[nodiscard]] std::string to_string(const std::vector<MixturePart>& parts);

/// Whether this is a live stream: -, tcp://HOST:PORT or unix:///PATH.
[[nodiscard]] bool is_live(const std::string& path);

struct DataConfig {
  static constexpr double default_heldout = 0.02;

  std::string path;
  std::string mixture;
  std::string val_path;
  std::string tokenizer = "bytes";
  std::int64_t seq_len = 256;
  double heldout = default_heldout;
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

  /// The data sets of the corpus, with weights that add up to 1: those of `mixture`, or all of `path`.
  [[nodiscard]] std::vector<MixturePart> parts() const;
  [[nodiscard]] bool is_stream() const { return is_live(path); }
  [[nodiscard]] bool reads_standard_input() const { return path == "-"; }
  /// Throws Error(config) naming the key if a stream or a held-out set is configured in a way that is not
  /// supported.
  void check() const;
  /// Throws Error(config) if data.heldout is set although `held_out` (like "data.val_path is x.bin") already
  /// decides what is held out.
  void check_only_heldout(const std::string& held_out) const;

  void serialize(config::Archive& ar) {
    using enum config::Scope;
    ar({"path", &path, per_site,
        "corpus: text or JSONL file, folder of those (read recursively), chunk store, nanoGPT or llm.c .bin "
        "file or a folder of them (val.bin in it is held out), or Megatron data set (its prefix); or a live "
        "stream of documents, which "
        "is trained on as it arrives and saved in a store: - (standard input), tcp://HOST:PORT or "
        "unix:///PATH"});
    ar({"mixture", &mixture, per_site,
        "several data sets with weights, instead of path: \"web.bin = 0.7; code.bin = 0.3\""});
    ar({"val_path", &val_path, per_site,
        "held-out set, of any kind that path can be but a stream; training then uses all of path or mixture. "
        "Empty: val.bin of a folder (or files like fineweb_val_000000.bin), or the fraction heldout"});
    // Members compare Corpus::tokenizer_fingerprint(): they need the same vocabulary, not the same path to
    // it.
    ar({"tokenizer", &tokenizer, per_site,
        "tokenizer: bytes, a Hugging Face tokenizer.json (byte-level BPE), a SentencePiece .model file, or "
        "vocab:N for .bin files made with another tokenizer of N ids"});
    ar({"seq_len", &seq_len, agreed, "tokens in a sequence", 1, 1 << 20});
    ar({"heldout", &heldout, agreed,
        "fraction of the corpus to keep for evaluation, if neither val_path nor a val.bin is the held-out "
        "set; 0 "
        "keeps none",
        0, 0.5});
    ar({"separator", &separator, agreed,
        "token id between the documents of a .bin file; -1: the tokenizer's separator (vocab:N has none)", -1,
        4294967294.0});
    ar({"document_mask", &document_mask, agreed,
        "let tokens attend only to their own document, not to earlier ones in the same sequence"});
    ar({"prefetch", &prefetch, per_site,
        "batches that each stage of the loader (two stages with a GPU, else one) may prepare ahead", 1, 64});
    ar({"threads", &threads, per_site, "threads that read and decompress data from disk", 1, 64});
    ar({"shuffle_blocks", &shuffle_blocks, agreed,
        "blocks (128 KiB, or the store's block size) from all over the data set, among which windows are "
        "shuffled; text is shuffled as a whole",
        1, 256});
    ar({"max_bytes", &max_bytes, agreed,
        "maximum bytes of text to read (token ids are read as they are used and have no limit)", 1});
    ar({"format",
        &format,
        per_site,
        "format of a stream: jsonl (one document per line) or text (all of standard input is one document)",
        -config::unbounded,
        config::unbounded,
        {"jsonl", "text"}});
    ar({"store", &store, per_site,
        "folder in which each worker keeps the store of its stream, under its own name; empty: the folder "
        "stores in the run's folder"});
    ar({"text_field", &text_field, per_site, "JSONL field that holds the text"});
    ar({"on_bad",
        &on_bad,
        per_site,
        "what to do with unusable documents (not UTF-8, invalid JSON, unreadable file): fail, or skip and "
        "count them",
        -config::unbounded,
        config::unbounded,
        {"fail", "skip"}});
  }
};

}  // namespace isthmus::data
