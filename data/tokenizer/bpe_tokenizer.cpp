#include "tokenizer/bpe_tokenizer.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>

#include "isthmus/base/error.h"
#include "tokenizer/bpe_added.h"
#include "tokenizer/bpe_merges.h"
#include "tokenizer/bpe_pattern.h"
#include "tokenizer/bpe_spec.h"
#include "unicode/newer_characters.h"
#include "unicode/normal_form.h"
#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

constexpr std::size_t max_text = std::numeric_limits<std::uint32_t>::max() / 2;

std::uint64_t hash_of_word(std::string_view word) {
  std::uint64_t hash = word.size(), eight = 0;
  for (; word.size() >= sizeof eight; word.remove_prefix(sizeof eight)) {
    std::memcpy(&eight, word.data(), sizeof eight);
    hash = mixed(hash ^ eight) * 31;
  }
  eight = 0;
  std::memcpy(&eight, word.data(), word.size());
  return mixed(hash ^ eight);
}

/// Remembers words of this text and where their ids are in the output; a word replaces another one with the
/// same hash. Made for each call, so it needs no lock; a text of 1 MiB repeats most of its words.
class WordCache {
 public:
  static constexpr std::size_t max_word = 64;

  explicit WordCache(std::size_t text_bytes)
      : mask_(std::clamp<std::size_t>(std::bit_ceil(text_bytes / 16), 16, 1 << 16) - 1), slots_(mask_ + 1) {}

  /// Appends the word's ids to `out` and returns true if they are known.
  bool append(std::string_view word, std::uint64_t hash, std::vector<std::uint32_t>& out) const {
    const auto& slot = slots_[hash & mask_];
    if (slot.word != word) return false;
    for (std::uint32_t i = 0; i < slot.count; ++i) out.push_back(out[slot.begin + i]);
    return true;
  }
  /// The memory of `word` must stay valid. Its ids are the last `count` of `out`.
  void keep(std::string_view word, std::uint64_t hash, std::size_t count,
            const std::vector<std::uint32_t>& out) {
    slots_[hash & mask_] = {word, out.size() - count, static_cast<std::uint32_t>(count)};
  }

 private:
  struct Slot {
    std::string_view word;
    std::size_t begin = 0;
    std::uint32_t count = 0;
  };
  std::size_t mask_;
  std::vector<Slot> slots_;
};

struct Step {
  explicit Step(const CutStep& step, const std::string& place) {
    if (step.kind == CutStep::Kind::pattern) pattern.emplace(place, step.pattern);
  }
  std::optional<CutPattern> pattern;  ///< nullopt: puts a space before each piece
};

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(BpeSpec spec, const std::string& name)
      : file_(name),
        fingerprint_(fingerprint_of(spec)),
        separator_(spec.separator),
        nfc_(spec.nfc),
        byte_ids_(find_bytes(spec)),
        merges_(spec.merges, byte_ids_),
        raw_tokens_(name, added(spec, false)),
        normalized_tokens_(name, added(spec, true)),
        tokens_(std::move(spec.tokens)) {
    for (std::size_t i = 0; i < spec.steps.size(); ++i)
      steps_.emplace_back(spec.steps[i], fmt::format("{}: pattern {} of pre_tokenizer", name, i + 1));
    if (spec.ignore_merges)
      for (auto& word : spec.words) whole_words_.emplace(std::move(word.bytes), word.id);
  }

  std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(tokens_.size()); }
  void encode(std::string_view text, std::vector<std::uint32_t>& out) const override;
  std::string decode(std::span<const std::uint32_t> ids) const override {
    std::string text;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= tokens_.size())
        data_error(fmt::format("token id {} at position {} is outside the vocabulary of {} ids", ids[i], i,
                               tokens_.size()));
      text += tokens_[ids[i]];
    }
    return text;
  }
  std::uint32_t separator() const override { return separator_; }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  class Encoder;

  struct Hash {
    std::size_t operator()(std::string_view word) const { return hash_of_word(word); }
    using is_transparent = void;
  };

  static std::array<std::uint32_t, 256> find_bytes(const BpeSpec& spec) {
    std::array<std::uint32_t, 256> ids{};
    for (const auto& word : spec.words)
      if (word.bytes.size() == 1) ids[static_cast<unsigned char>(word.bytes[0])] = word.id;
    return ids;
  }
  static std::vector<AddedToken> added(const BpeSpec& spec, bool normalized) {
    std::vector<AddedToken> out;
    std::copy_if(spec.added.begin(), spec.added.end(), std::back_inserter(out),
                 [&](const AddedToken& token) { return token.normalized == normalized; });
    return out;
  }

  std::string file_;
  Digest fingerprint_;
  std::uint32_t separator_;
  bool nfc_;
  std::array<std::uint32_t, 256> byte_ids_;
  Merges merges_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::vector<Step> steps_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>>
      whole_words_;  ///< filled only with ignore_merges
  std::vector<std::string> tokens_;
};

/// The state of one call of encode().
class BpeTokenizer::Encoder {
 public:
  Encoder(const BpeTokenizer& tokenizer, std::size_t text_bytes, std::vector<std::uint32_t>& out)
      : tokenizer_(tokenizer), out_(out), cache_(text_bytes), scratch_(text_bytes) {}

  /// `text` is UTF-8.
  void encode(std::string_view text) {
    const auto token = [&](std::uint32_t id) { out_.push_back(id); };
    tokenizer_.raw_tokens_.split(
        text,
        [&](std::string_view part) {
          if (tokenizer_.nfc_) part = kept(to_nfc(part));
          tokenizer_.normalized_tokens_.split(
              part, [&](std::string_view piece) { words(piece); }, token);
        },
        token);
  }

 private:
  /// Text, and the text of the same size that patterns see instead.
  struct Piece {
    std::string_view bytes, seen;
    [[nodiscard]] Piece part(std::size_t begin, std::size_t end) const {
      return {bytes.substr(begin, end - begin), seen.substr(begin, end - begin)};
    }
  };

  /// Keeps `text` until the end of the call: the cache points to it.
  std::string_view kept(std::string text) { return made_.emplace_back(std::move(text)); }

  std::string_view with_space(std::string_view text) {
    std::string out(1, ' ');
    out.append(text);
    return kept(std::move(out));
  }

  void words(std::string_view text) {
    auto older = with_older_characters(text);
    cut({text, older.empty() ? text : kept(std::move(older))}, 0);
  }

  void cut(const Piece& piece, std::size_t step) {
    if (step == tokenizer_.steps_.size()) return word(piece.bytes);
    const auto& pattern = tokenizer_.steps_[step].pattern;
    if (!pattern) {
      if (piece.bytes.front() == ' ') return cut(piece, step + 1);
      return cut({with_space(piece.bytes), with_space(piece.seen)}, step + 1);
    }
    std::size_t done = 0;
    CutPattern::Match match;
    while (done < piece.seen.size() && pattern->find(piece.seen, done, scratch_, match)) {
      if (done < match.begin) cut(piece.part(done, match.begin), step + 1);
      cut(piece.part(match.begin, match.end), step + 1);
      done = match.end;
    }
    if (done < piece.seen.size()) cut(piece.part(done, piece.seen.size()), step + 1);
  }

  void word(std::string_view bytes) {
    if (bytes.size() > WordCache::max_word) return new_word(bytes);
    const auto hash = hash_of_word(bytes);
    if (cache_.append(bytes, hash, out_)) return;
    const auto before = out_.size();
    new_word(bytes);
    cache_.keep(bytes, hash, out_.size() - before, out_);
  }

  void new_word(std::string_view bytes) {
    const auto& whole = tokenizer_.whole_words_;
    if (!whole.empty()) {
      if (const auto found = whole.find(bytes); found != whole.end()) return out_.push_back(found->second);
    }
    tokenizer_.merges_.apply(bytes, merging_, out_);
  }

  const BpeTokenizer& tokenizer_;
  std::vector<std::uint32_t>& out_;
  WordCache cache_;
  CutPattern::Scratch scratch_;
  Merges::Scratch merging_;
  std::deque<std::string> made_;
};

void BpeTokenizer::encode(std::string_view text, std::vector<std::uint32_t>& out) const {
  if (text.size() > max_text)
    data_error(
        fmt::format("{}: cannot encode {} bytes at once: expected at most {}", file_, text.size(), max_text));
  Encoder encoder(*this, text.size(), out);
  while (!text.empty()) {
    const auto valid = utf8_prefix(text);
    if (valid > 0) encoder.encode(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) return;
    out.push_back(byte_ids_[static_cast<unsigned char>(text.front())]);
    text.remove_prefix(1);
  }
}

}  // namespace

std::unique_ptr<const Tokenizer> parse_bpe_tokenizer(std::string_view json, const std::string& name) {
  return std::make_unique<BpeTokenizer>(read_bpe_spec(json, name), name);
}

std::unique_ptr<const Tokenizer> read_bpe_tokenizer(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string json;
  std::array<char, 1 << 16> part{};
  // Reads one byte more than allowed, to reject larger files: a file's reported size may be wrong.
  while (json.size() <= max_tokenizer_file && in) {
    in.read(part.data(), part.size());
    json.append(part.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad() || (!in && !in.eof())) config_error(file + ": cannot be read");
  return parse_bpe_tokenizer(json, file);
}

}  // namespace isthmus::data
