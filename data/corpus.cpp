#include "isthmus/data/corpus.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "documents.h"
#include "id_files.h"
#include "isthmus/base/error.h"
#include "isthmus/data/sampler.h"
#include "megatron.h"
#include "store_format.h"
#include "store_reader.h"
#include "text_batch.h"
#include "token_source.h"
#include "token_stream.h"
#include "utf8.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::data, message); }

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
  /// The held-out part may begin behind one of these.
  void bound_by(std::uint32_t separator) { separator_ = separator; }
  /// What is appended from here on is held out.
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
  std::string place(std::uint64_t token) const override { return "token " + std::to_string(token); }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  bool narrow_ids_;
  std::vector<std::uint16_t> narrow_;
  std::vector<std::uint32_t> wide_;
  std::optional<std::uint64_t> heldout_begin_;
  std::optional<std::uint32_t> separator_;
  Digest fingerprint_;
};

/// How many of a document's tokens are held out at its end: the fraction, but at least one window.
std::uint64_t tail_tokens(std::uint64_t tokens, const DataConfig& config) {
  if (config.heldout <= 0) return 0;
  const auto fraction = static_cast<std::uint64_t>(static_cast<double>(tokens) * config.heldout);
  return std::min(tokens, std::max(fraction, static_cast<std::uint64_t>(config.seq_len) + 1));
}

/// A number from the first bytes of the name's hash: an order of files that has nothing to do with their
/// names.
std::uint64_t hash_of_name(const std::string& name) {
  std::uint64_t number = 0;
  std::memcpy(&number, Hasher().update(name).finish().bytes.data(), sizeof number);
  return number;
}

/// Which files are held out: in the order of their hashes, each one that brings the sum nearer to the wanted
/// fraction of the bytes; the smallest file if none does.
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

/// How many of the first `bytes` of a file, in which more follow, are of whole characters of UTF-8. What
/// cannot be read, or is no UTF-8, is told of by who reads the file.
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

/// How many of the first `bytes` of a file are of whole lines.
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

/// Drops empty files and what lies beyond `limit` bytes, and of a line of JSONL or a character of UTF-8, if
/// that is what is read, all of what `limit` would divide. Returns a note if that was something.
std::string apply_limit(std::vector<DocumentFile>& files, std::uint64_t limit, bool utf8) {
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
  return "data.max_bytes: of " + std::to_string(total) + " bytes of text in " + std::to_string(count) +
         " files only the first " + std::to_string(kept) + " bytes, in " + std::to_string(files.size()) +
         " files, are used";
}

/// Documents to ids, with a separator behind each.
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
      // Where a document ends is told by the file, or by this.
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
  notes.push_back("data.on_bad: " + std::to_string(bad.count()) +
                  " bad documents were left out, the first: " + bad.first().front());
}

/// What ends a document among ids; nothing where it is not known.
std::optional<std::uint32_t> separator_of(const DataConfig& config, const Tokenizer& tokenizer) {
  if (config.separator >= 0) return static_cast<std::uint32_t>(config.separator);
  if (config.tokenizer.starts_with("vocab:")) return {};
  return tokenizer.separator();
}

/// What ends documents where it is known, and what attention is bounded by, must be the same.
void check_mask(const std::string& path, std::uint32_t separator, const DataConfig& config,
                const Tokenizer& tokenizer) {
  const auto expected = separator_of(config, tokenizer);
  if (!config.document_mask || !expected || *expected == separator) return;
  throw Error(ErrorKind::config, "data.document_mask is true, and documents of " + path + " end with id " +
                                     std::to_string(separator) + ", but data.separator is " +
                                     std::to_string(config.separator) + "; expected " +
                                     std::to_string(separator));
}

std::unique_ptr<TokenSource> read_text(const std::string& path, bool is_folder, const DataConfig& config,
                                       const Tokenizer& tokenizer, std::vector<std::string>& notes) {
  check_mask(path, tokenizer.separator(), config, tokenizer);
  BadDocuments bad(config.on_bad == "skip" ? BadDocuments::Policy::skip : BadDocuments::Policy::fail);
  auto files = find_documents({&path, 1}, {}, bad);
  const auto note =
      apply_limit(files, static_cast<std::uint64_t>(config.max_bytes), reads_utf8(config.tokenizer));
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
    fail("data.path " + path + " holds no text" + (note.empty() ? "" : "; " + note));
  }
  if (files.front().format != DocumentFormat::text) tokens->bound_by(tokenizer.separator());
  Hasher hasher;
  hasher.update("text corpus");
  // A file that was named itself may have another name on each machine.
  for (std::size_t i = 0; i < files.size(); ++i)
    hasher.update((is_folder ? files[i].name : std::string()) + '\0').update(digests[i].hex());
  tokens->set_fingerprint(hasher.finish());
  return tokens;
}

/// A store tells what made it.
std::unique_ptr<TokenSource> open_checked_store(const std::string& path, const DataConfig& config,
                                                const Tokenizer& tokenizer) {
  auto store = open_store(path);
  const auto& spec = store->info().spec;
  const bool only_ids = config.tokenizer.starts_with("vocab:");
  if (!only_ids && spec.tokenizer != tokenizer.fingerprint()) {
    fail(path + ": was made with a tokenizer of " + std::to_string(spec.vocab_size) + " ids, fingerprint " +
         spec.tokenizer.hex().substr(0, 16) + ", but data.tokenizer " + config.tokenizer + " has " +
         std::to_string(tokenizer.vocab_size()) + ", fingerprint " +
         tokenizer.fingerprint().hex().substr(0, 16) + "; expected the one that made it");
  }
  if (only_ids && spec.vocab_size > tokenizer.vocab_size()) {
    fail(path + ": has ids of a vocabulary of " + std::to_string(spec.vocab_size) +
         "; expected data.tokenizer " + "vocab:" + std::to_string(spec.vocab_size) + " or more, not " +
         config.tokenizer);
  }
  check_mask(path, spec.separator, config, tokenizer);
  return store;
}

/// A folder of nothing but .bin files: shards, in the order of their names. Empty if it is anything else.
std::vector<fs::path> shards_of(const fs::path& folder) {
  std::vector<fs::path> shards;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; it != end; it.increment(error)) {
    if (error) fail(folder.string() + ": " + error.message());
    if (it->path().filename().string().starts_with('.')) continue;
    if (it->path().extension() != ".bin" || !it->is_regular_file(error)) return {};
    shards.push_back(it->path());
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

constexpr const char* what_there_is =
    "a text or JSONL file, a folder of such, a chunk store, a .bin file or a folder of them, or a Megatron "
    "data set";

std::unique_ptr<TokenSource> open_source(const std::string& path, const DataConfig& config,
                                         const Tokenizer& tokenizer, std::vector<std::string>& notes) {
  if (path.empty()) fail(std::string("data.path is not set: name ") + what_there_is);
  const auto separator = separator_of(config, tokenizer);
  if (const auto prefix = megatron_prefix(path)) return open_megatron(*prefix);
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    fail("data.path " + path + " does not exist: name " + what_there_is);
  if (is_store(path)) return open_checked_store(path, config, tokenizer);
  if (fs::is_directory(status)) {
    const fs::path folder(path);
    if (fs::exists(folder / store::journal_name) && fs::exists(folder / store::blocks_name)) {
      fail(
          "data.path " + path +
          " is a chunk store that is not complete: the isthmus data tokenize that made it goes on when it is "
          "started again");
    }
    std::vector<std::unique_ptr<TokenSource>> shards;
    for (const auto& shard : shards_of(path)) shards.push_back(open_id_file(shard, separator));
    if (!shards.empty()) return join_sources(std::move(shards), separator);
    return read_text(path, true, config, tokenizer, notes);
  }
  if (!fs::is_regular_file(status))
    fail("data.path " + path + (error ? ": " + error.message() : " is neither a file nor a folder"));
  if (fs::path(path).extension() == ".bin") return open_id_file(path, separator);
  return read_text(path, false, config, tokenizer, notes);
}

void check_length(const std::string& name, const DataSet& set, const DataConfig& config) {
  const auto window = static_cast<std::uint64_t>(config.seq_len) + 1;
  const auto refuse = [&](const char* part, Split split, const char* advice) {
    fail(name + ": the " + part + " part of the corpus has " + std::to_string(set.tokens(split)) +
         " tokens, but one window of data.seq_len " + std::to_string(config.seq_len) + " needs " +
         std::to_string(window) + ": use " + advice);
  };
  if (set.tokens(Split::train) < window)
    refuse("training", Split::train, "more text or a smaller data.seq_len");
  if (config.heldout > 0 && set.tokens(Split::heldout) < window)
    refuse("held-out", Split::heldout, "a larger data.heldout, more text or a smaller data.seq_len");
}

}  // namespace

struct Corpus::Contents {
  explicit Contents(const DataConfig& config) : tokenizer(make_tokenizer(config.tokenizer)) {
    if (config.is_stream()) {
      throw Error(ErrorKind::config,
                  "data.source is pipe: a stream is read by the workers of a run alone; expected files");
    }
    begin(config);
    for (const auto& part : config.parts())
      add(open_source(part.path, config, *tokenizer, notes), part.path, part.weight, config);
    check_separator(config);
    fingerprint = sets.front().fingerprint();
    if (sets.size() == 1) return;
    Hasher hasher;
    hasher.update("mixture");
    for (const auto& set : sets) hasher.update(set.fingerprint().hex());
    fingerprint = hasher.finish();
  }

  Contents(const DataConfig& config, const StreamOptions& options)
      : tokenizer(make_tokenizer(config.tokenizer)) {
    begin(config);
    check_mask(config.path, tokenizer->separator(), config, *tokenizer);
    sets.emplace_back(std::make_unique<TokenStream>(config, *tokenizer, options), tokenizer->vocab_size(),
                      config.path);
    check_separator(config);
    fingerprint = sets.front().fingerprint();
  }

  Contents(const DataConfig& config, std::unique_ptr<const TokenSource> source)
      : tokenizer(make_tokenizer(config.tokenizer)) {
    begin(config);
    add(std::move(source), config.path, 1, config);
    check_separator(config);
    fingerprint = sets.front().fingerprint();
  }

  void add(std::unique_ptr<const TokenSource> source, const std::string& name, double weight,
           const DataConfig& config) {
    const auto all = source->tokens();
    const auto wanted = tail_tokens(all, config);
    auto begin = config.heldout > 0 ? source->heldout_begin(wanted) : all;
    // Whole documents are held out as long as there is something left to train on.
    if (begin <= static_cast<std::uint64_t>(config.seq_len)) begin = all - std::min(wanted, all);
    learn_separator(source->separator());
    sets.emplace_back(std::move(source), tokenizer->vocab_size(), begin, name, weight);
    check_length(name, sets.back(), config);
  }

  void begin(const DataConfig& config) {
    separator = separator_of(config, *tokenizer);
    knows_separator = separator.has_value();
  }

  /// What all data sets say of themselves, where neither config nor tokenizer know it.
  void learn_separator(std::optional<std::uint32_t> of_set) {
    if (knows_separator) return;
    if (sets.empty()) separator = of_set;
    if (separator != of_set) separator.reset();
  }

  void check_separator(const DataConfig& config) {
    document_mask = config.document_mask;
    if (document_mask && !separator) {
      throw Error(ErrorKind::config,
                  "data.document_mask is true and what separates documents is not known with tokenizer " +
                      config.tokenizer + "; expected its id in data.separator");
    }
    if (separator && *separator >= tokenizer->vocab_size()) {
      throw Error(ErrorKind::config, "data.separator is " + std::to_string(*separator) +
                                         "; expected an id of the vocabulary of " +
                                         std::to_string(tokenizer->vocab_size()));
    }
  }

  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<std::uint32_t> separator;
  bool knows_separator = false, document_mask = false;
  std::vector<DataSet> sets;
  Digest fingerprint;
  std::vector<std::string> notes;
};

Corpus::Corpus(const DataConfig& config) : contents_(std::make_unique<const Contents>(config)) {}
Corpus::Corpus(const DataConfig& config, const StreamOptions& options)
    : contents_(std::make_unique<const Contents>(config, options)) {}
Corpus::Corpus(const DataConfig& config, std::unique_ptr<const TokenSource> source)
    : contents_(std::make_unique<const Contents>(config, std::move(source))) {}
Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;

const Tokenizer& Corpus::tokenizer() const { return *contents_->tokenizer; }

std::optional<std::uint32_t> Corpus::separator() const { return contents_->separator; }

std::int64_t Corpus::mask_separator() const {
  return contents_->document_mask ? std::int64_t{contents_->separator.value()} : -1;
}

std::span<const DataSet> Corpus::sets() const { return contents_->sets; }

std::uint64_t Corpus::tokens(Split split) const {
  std::uint64_t sum = 0;
  for (const auto& set : sets()) sum += set.tokens(split);
  return sum;
}

void Corpus::read(Split split, std::uint64_t begin, std::span<std::int64_t> out) const {
  assert(begin <= tokens(split) && out.size() <= tokens(split) - begin);
  for (const auto& set : sets()) {
    const auto here = set.tokens(split);
    if (begin < here && !out.empty()) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(here - begin, out.size()));
      std::vector<std::uint32_t> ids(count);
      set.read(split, begin, count, sizeof ids[0], reinterpret_cast<std::byte*>(ids.data()));
      std::copy(ids.begin(), ids.end(), out.begin());
      out = out.subspan(count);
      begin += count;
    }
    begin -= std::min(begin, here);
  }
}

void Corpus::commit() const {
  if (auto* stream = sets().front().stream()) stream->commit();
}

std::optional<std::uint64_t> Corpus::stored_sequences(std::int64_t seq_len) const {
  const auto* stream = sets().front().stream();
  if (stream == nullptr || stream->ended()) return {};
  return window_count(stream->stored_tokens(), static_cast<std::uint64_t>(seq_len));
}

const Digest& Corpus::fingerprint() const { return contents_->fingerprint; }

const std::vector<std::string>& Corpus::notes() const { return contents_->notes; }

}  // namespace isthmus::data
