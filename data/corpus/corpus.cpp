#include "isthmus/data/corpus.h"

#include <fmt/format.h>
#include <algorithm>
#include <cassert>
#include <filesystem>
#include <optional>

#include "corpus/text_corpus.h"
#include "corpus/token_stream.h"
#include "ids/bin_folder.h"
#include "ids/token_source.h"
#include "isthmus/base/error.h"
#include "isthmus/data/sampler.h"
#include "isthmus/data/store.h"
#include "store/open_ids.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

/// Tokens to hold out at the end: the fraction, but at least one window.
std::uint64_t tail_tokens(std::uint64_t tokens, const DataConfig& config) {
  if (config.heldout <= 0) return 0;
  const auto fraction = static_cast<std::uint64_t>(static_cast<double>(tokens) * config.heldout);
  return std::min(tokens, std::max(fraction, static_cast<std::uint64_t>(config.seq_len) + 1));
}

/// The id that ends a document; nullopt if unknown.
std::optional<std::uint32_t> separator_of(const DataConfig& config, const Tokenizer& tokenizer) {
  if (config.separator >= 0) return static_cast<std::uint32_t>(config.separator);
  if (config.tokenizer.starts_with("vocab:")) return {};
  return tokenizer.separator();
}

/// Throws Error(config) if attention is bounded by an id that does not end documents.
void check_mask(const std::string& path, std::uint32_t separator, const DataConfig& config,
                const Tokenizer& tokenizer) {
  const auto expected = separator_of(config, tokenizer);
  if (!config.document_mask || !expected || *expected == separator) return;
  config_error(
      fmt::format("data.document_mask is true, and documents of {} end with id "
                  "{}, but data.separator is {}; expected {}",
                  path, separator, config.separator, separator));
}

/// Throws if the store was made with another tokenizer or vocabulary.
void check_store(const std::string& path, const StoreSpec& spec, const DataConfig& config,
                 const Tokenizer& tokenizer) {
  const bool only_ids = config.tokenizer.starts_with("vocab:");
  if (!only_ids && spec.tokenizer != tokenizer.fingerprint()) {
    data_error(
        fmt::format("{}: was made with a tokenizer of {} ids, fingerprint {}, but data.tokenizer {} has {}, "
                    "fingerprint {}; expected the tokenizer that made it",
                    path, spec.vocab_size, spec.tokenizer.hex().substr(0, 16), config.tokenizer,
                    tokenizer.vocab_size(), tokenizer.fingerprint().hex().substr(0, 16)));
  }
  if (only_ids && spec.vocab_size > tokenizer.vocab_size()) {
    data_error(
        fmt::format("{}: has ids of a vocabulary of {}; expected data.tokenizer vocab:{} or more, not {}",
                    path, spec.vocab_size, spec.vocab_size, config.tokenizer));
  }
  check_mask(path, spec.separator, config, tokenizer);
}

constexpr const char* what_there_is =
    "a text or JSONL file, a folder of those, a chunk store, a .bin file or a folder of them, or a Megatron "
    "data set";

/// `name` is the data set's in messages.
std::unique_ptr<TokenSource> open_source(const std::string& path, const std::string& name,
                                         const DataConfig& config, const Tokenizer& tokenizer,
                                         std::vector<std::string>& notes) {
  if (path.empty()) data_error(std::string("data.path is not set: name ") + what_there_is);
  const auto check = [&](const StoreSpec& spec) { check_store(path, spec, config, tokenizer); };
  if (auto ids = open_ids(path, separator_of(config, tokenizer), check)) return ids;
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) data_error(name + " does not exist: name " + what_there_is);
  if (!fs::is_directory(status) && !fs::is_regular_file(status))
    data_error(name + (error ? ": " + error.message() : " is neither a file nor a folder"));
  check_mask(path, tokenizer.separator(), config, tokenizer);
  return read_text(path, name, config, tokenizer, notes);
}

/// Throws unless one part of a data set has at least one window.
void check_length(const DataSet& set, Split split, const DataConfig& config, const char* advice) {
  const auto window = static_cast<std::uint64_t>(config.seq_len) + 1;
  if (set.tokens(split) >= window) return;
  data_error(fmt::format(
      "{}: the {} part of the corpus has {} tokens, but one window of data.seq_len {} needs {}: use {}",
      set.name(), split == Split::train ? "training" : "held-out", set.tokens(split), config.seq_len, window,
      advice));
}

DataConfig without_heldout(DataConfig config) {
  config.heldout = 0;
  return config;
}

}  // namespace

struct Corpus::Contents {
  explicit Contents(const DataConfig& config) : tokenizer(make_tokenizer(config.tokenizer)) {
    if (config.is_stream()) {
      config_error("data.path is a stream: only the workers of a run can read a stream; expected files");
    }
    begin(config);
    for (const auto& part : config.parts()) add_part(part, config);
    end(config);
  }

  Contents(const DataConfig& config, StreamOptions options) : tokenizer(make_tokenizer(config.tokenizer)) {
    begin(config);
    if (!config.val_path.empty()) options.heldout_tokens = 0;
    check_mask(config.path, tokenizer->separator(), config, *tokenizer);
    sets.emplace_back(std::make_unique<TokenStream>(config, *tokenizer, options), tokenizer->vocab_size(),
                      config.path);
    if (config.val_path.empty()) heldout_sets.push_back(sets.back());
    end(config);
  }

  Contents(const DataConfig& config, std::unique_ptr<const TokenSource> source)
      : tokenizer(make_tokenizer(config.tokenizer)) {
    begin(config);
    add(std::move(source), {config.path, 1}, config);
    end(config);
  }

  /// A data set with what is held out of it, if there is no data.val_path: files of their own, or a part of
  /// it.
  void add_part(const MixturePart& part, const DataConfig& config) {
    const auto name = (config.mixture.empty() ? "data.path " : "data.mixture: ") + part.path;
    for (const auto& file : read_bin_folder(part.path).ignored) {
      notes.push_back(fmt::format("{}: {} is ignored: by its name it is neither for training nor held out",
                                  part.path, file));
    }
    std::unique_ptr<TokenSource> heldout;
    if (config.val_path.empty() && config.heldout > 0)
      heldout = open_heldout_ids(part.path, separator_of(config, *tokenizer));
    if (heldout)
      config.check_only_heldout("the folder " + part.path + " has files that are held out by their names");
    const auto training = heldout || !config.val_path.empty() ? without_heldout(config) : config;
    add(open_source(part.path, name, training, *tokenizer, notes), part, training);
    if (!heldout) return;
    heldout_sets.pop_back();
    add_heldout(std::move(heldout), name, part.weight, config);
  }

  void add(std::unique_ptr<const TokenSource> source, const MixturePart& part, const DataConfig& config) {
    const auto all = source->tokens();
    const auto wanted = tail_tokens(all, config);
    auto begin = config.heldout > 0 ? source->heldout_begin(wanted) : all;
    // Hold out whole documents only if something is left to train on.
    if (begin <= static_cast<std::uint64_t>(config.seq_len)) begin = all - std::min(wanted, all);
    learn_separator(source->separator());
    sets.emplace_back(std::move(source), tokenizer->vocab_size(), begin, part.path, part.weight);
    check_length(sets.back(), Split::train, config, "more text or a smaller data.seq_len");
    if (config.heldout > 0) {
      check_length(sets.back(), Split::heldout, config,
                   "a larger data.heldout, more text or a smaller data.seq_len");
    }
    heldout_sets.push_back(sets.back());
  }

  /// A held-out set that is no part of a training set.
  void add_heldout(std::unique_ptr<const TokenSource> source, const std::string& name, double weight,
                   const DataConfig& config) {
    learn_separator(source->separator());
    heldout_sets.emplace_back(std::move(source), tokenizer->vocab_size(), 0, name, weight);
    const auto& set = heldout_sets.back();
    check_length(set, Split::heldout, config, "a longer file or a smaller data.seq_len");
    for (const auto& other : sets) {
      if (other.stream() == nullptr && other.fingerprint() == set.fingerprint()) {
        data_error(name + ": the held-out set has the same content as " + other.name() +
                   ", which is trained on; expected another file");
      }
    }
    apart = true;
  }

  void begin(const DataConfig& config) {
    if (!config.val_path.empty()) config.check_only_heldout("data.val_path is " + config.val_path);
    separator = separator_of(config, *tokenizer);
    knows_separator = separator.has_value();
  }

  /// After all data sets were added.
  void end(const DataConfig& config) {
    if (!config.val_path.empty()) {
      const auto name = "data.val_path " + config.val_path;
      auto source = open_heldout_ids(config.val_path, separator_of(config, *tokenizer));
      if (!source) source = open_source(config.val_path, name, without_heldout(config), *tokenizer, notes);
      heldout_sets.clear();
      add_heldout(std::move(source), name, 1, config);
    }
    check_separator(config);
    fingerprint = sets.front().fingerprint();
    if (sets.size() > 1) {
      Hasher hasher;
      hasher.update("mixture");
      for (const auto& set : sets) hasher.update(set.fingerprint().hex());
      fingerprint = hasher.finish();
    }
    if (!apart) return;
    Hasher hasher;
    hasher.update("held out apart").update(fingerprint.hex());
    for (const auto& set : heldout_sets) hasher.update(set.fingerprint().hex());
    fingerprint = hasher.finish();
  }

  /// Takes the separator that all data sets report, if neither config nor tokenizer define it.
  void learn_separator(std::optional<std::uint32_t> of_set) {
    if (knows_separator) return;
    if (sets.empty()) separator = of_set;
    if (separator != of_set) separator.reset();
  }

  void check_separator(const DataConfig& config) {
    document_mask = config.document_mask;
    if (document_mask && !separator) {
      config_error(
          "data.document_mask is true, but the id that separates documents is not known with tokenizer " +
          config.tokenizer + "; set it with data.separator");
    }
    if (separator && *separator >= tokenizer->vocab_size()) {
      config_error(fmt::format("data.separator is {}; expected an id of the vocabulary of {}", *separator,
                               tokenizer->vocab_size()));
    }
  }

  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<std::uint32_t> separator;
  bool knows_separator = false, document_mask = false;
  std::vector<DataSet> sets, heldout_sets;
  bool apart = false;  ///< whether a held-out set is no part of a training set
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

std::span<const DataSet> Corpus::heldout_sets() const { return contents_->heldout_sets; }

std::uint64_t Corpus::tokens(Split split) const {
  std::uint64_t sum = 0;
  for (const auto& set : split == Split::train ? sets() : heldout_sets()) sum += set.tokens(split);
  return sum;
}

void Corpus::read(Split split, std::uint64_t begin, std::span<std::int64_t> out) const {
  assert(begin <= tokens(split) && out.size() <= tokens(split) - begin);
  for (const auto& set : split == Split::train ? sets() : heldout_sets()) {
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

bool has_heldout_files(const std::string& path) { return !read_bin_folder(path).heldout.empty(); }

const Digest& Corpus::fingerprint() const { return contents_->fingerprint; }

const std::vector<std::string>& Corpus::notes() const { return contents_->notes; }

}  // namespace isthmus::data
