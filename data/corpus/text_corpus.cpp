#include "corpus/text_corpus.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "ids/id_files.h"
#include "isthmus/base/error.h"
#include "isthmus/base/hash.h"
#include "text/documents.h"
#include "tokenize/text_batch.h"

namespace isthmus::data {
namespace {

/// Ids of text, in memory, in as few bytes as the vocabulary allows.
class TextTokens : public TokenSource {
 public:
  explicit TextTokens(std::uint32_t vocab_size) : narrow_ids_(id_width(vocab_size) == 2) {}
  void append(std::span<const std::uint32_t> ids) {
    if (narrow_ids_) {
      narrow_.insert(narrow_.end(), ids.begin(), ids.end());
    } else {
      wide_.insert(wide_.end(), ids.begin(), ids.end());
    }
  }
  void reserve(std::uint64_t tokens) { narrow_ids_ ? narrow_.reserve(tokens) : wide_.reserve(tokens); }
  /// Lets the held-out part begin after one of these ids.
  void bound_by(std::uint32_t separator) { separator_ = separator; }
  /// Everything appended from here on is held out.
  void begin_heldout() { heldout_begin_ = tokens(); }
  void set_fingerprint(const Digest& fingerprint) { fingerprint_ = fingerprint; }

  std::uint64_t tokens() const override { return narrow_ids_ ? narrow_.size() : wide_.size(); }
  std::uint32_t width() const override { return narrow_ids_ ? 2 : 4; }
  std::uint64_t block_tokens() const override { return 0; }
  std::uint64_t heldout_begin(std::uint64_t wanted) const override {
    if (heldout_begin_) return *heldout_begin_;
    const auto plain = tokens() - std::min(wanted, tokens());
    return separator_ ? begin_of_document(*this, wanted, *separator_).value_or(plain) : plain;
  }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    const void* from = narrow_ids_ ? static_cast<const void*>(narrow_.data() + begin) : wide_.data() + begin;
    std::memcpy(out, from, count * width());
  }
  std::string place(std::uint64_t token) const override { return fmt::format("token {}", token); }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  bool narrow_ids_;
  std::vector<std::uint16_t> narrow_;
  std::vector<std::uint32_t> wide_;
  std::optional<std::uint64_t> heldout_begin_;
  std::optional<std::uint32_t> separator_;
  Digest fingerprint_;
};

/// A number from the hash of the name, to order files independently of their names.
std::uint64_t hash_of_name(const std::string& name) {
  std::uint64_t number = 0;
  std::memcpy(&number, Hasher().update(name).finish().bytes.data(), sizeof number);
  return number;
}

/// Chooses the files to hold out: in the order of their hashes, each file that brings the sum nearer to the
/// wanted fraction of the bytes; the smallest file if no file does.
std::vector<bool> choose_heldout(const std::vector<DocumentFile>& files, double fraction) {
  std::vector<bool> chosen(files.size(), false);
  if (fraction <= 0 || files.size() < 2) return chosen;
  std::vector<std::size_t> order(files.size());
  std::vector<std::uint64_t> hash(files.size());
  double total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    order[i] = i;
    hash[i] = hash_of_name(files[i].name);
    total += static_cast<double>(files[i].bytes);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return hash[a] < hash[b]; });
  double left = total * fraction;
  for (const auto i : order) {
    const auto bytes = static_cast<double>(files[i].bytes);
    if (bytes == 0 || bytes / 2 > left) continue;
    chosen[i] = true;
    left -= bytes;
  }
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) {
    const auto smallest =
        std::min_element(files.begin(), files.end(),
                         [](const DocumentFile& a, const DocumentFile& b) { return a.bytes < b.bytes; });
    chosen[static_cast<std::size_t>(smallest - files.begin())] = true;
  }
  return chosen;
}

/// Turns documents into ids, with a separator after each.
class TextReader {
 public:
  TextReader(const DataConfig& config, const Tokenizer& tokenizer, BadDocuments& bad, TextTokens& tokens)
      : tokenizer_(tokenizer), bad_(bad), tokens_(tokens) {
    options_.text_field = config.text_field;
    options_.require_utf8 = reads_utf8(config.tokenizer);
  }

  /// Returns the hash of the text.
  Digest read(const DocumentFile& file) {
    Hasher hasher;
    const auto separator = tokenizer_.separator();
    for_each_document({&file, 1}, options_, bad_, {}, [&](const Piece& piece) {
      hasher.update(piece.text);
      ids_.clear();
      tokenizer_.encode(piece.text, ids_);
      if (piece.last) ids_.push_back(separator);
      // A text file is one document; otherwise the hash has to mark where documents end.
      if (piece.last && file.format != DocumentFormat::text) hasher.update(std::uint64_t{separator});
      tokens_.append(ids_);
      return true;
    });
    return hasher.finish();
  }

 private:
  const Tokenizer& tokenizer_;
  BadDocuments& bad_;
  TextTokens& tokens_;
  DocumentOptions options_;
  std::vector<std::uint32_t> ids_;
};

void add_skipped(const BadDocuments& bad, std::vector<std::string>& notes) {
  if (bad.count() == 0) return;
  notes.push_back(fmt::format("data.on_bad: {} bad documents were left out, the first: {}", bad.count(),
                              bad.first().front()));
}

}  // namespace

std::unique_ptr<TokenSource> read_text(const std::string& path, const std::string& name,
                                       const DataConfig& config, const Tokenizer& tokenizer,
                                       std::vector<std::string>& notes) {
  BadDocuments bad(config.on_bad == "skip" ? BadDocuments::Policy::skip : BadDocuments::Policy::fail);
  auto files = find_documents({&path, 1}, {}, bad);
  const auto note =
      keep_first(files, static_cast<std::uint64_t>(config.max_bytes), reads_utf8(config.tokenizer));
  if (!note.empty()) notes.push_back(note);
  auto tokens = std::make_unique<TextTokens>(tokenizer.vocab_size());
  const auto heldout = choose_heldout(files, config.heldout);
  std::uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.bytes + 1;
  if (config.tokenizer == "bytes") tokens->reserve(bytes);
  TextReader reader(config, tokenizer, bad, *tokens);
  std::vector<Digest> digests(files.size());
  for (const bool split : {false, true}) {
    if (split && files.size() > 1) tokens->begin_heldout();
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (heldout[i] == split) digests[i] = reader.read(files[i]);
    }
  }
  add_skipped(bad, notes);
  if (tokens->tokens() == 0) {
    data_error(name + " holds no text" + (note.empty() ? "" : "; " + note));
  }
  if (files.front().format != DocumentFormat::text) tokens->bound_by(tokenizer.separator());
  const bool is_folder = std::filesystem::is_directory(path);
  Hasher hasher;
  hasher.update("text corpus");
  // A file that was given by name may have another name on each machine.
  for (std::size_t i = 0; i < files.size(); ++i)
    hasher.update((is_folder ? files[i].name : std::string()) + '\0').update(digests[i].hex());
  tokens->set_fingerprint(hasher.finish());
  return tokens;
}

}  // namespace isthmus::data
