#include "isthmus/data/tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "isthmus/base/error.h"
#include "tokenizer/bpe_tokenizer.h"

namespace isthmus::data {
namespace {

void check_ids(std::span<const std::uint32_t> ids, std::uint32_t vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      data_error(fmt::format("token id {} at position {} is outside the vocabulary of {} ids", ids[i], i,
                             vocab_size));
    }
  }
}

class BytesTokenizer : public Tokenizer {
 public:
  std::uint32_t vocab_size() const override { return 256; }
  void encode(std::string_view text, std::vector<std::uint32_t>& out) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    out.insert(out.end(), bytes, bytes + text.size());
  }
  std::string decode(std::span<const std::uint32_t> ids) const override {
    check_ids(ids, vocab_size());
    return {ids.begin(), ids.end()};
  }
  std::uint32_t separator() const override { return 0; }
  Digest fingerprint() const override { return Hasher().update("tokenizer bytes").finish(); }
};

class IdsTokenizer : public Tokenizer {
 public:
  explicit IdsTokenizer(std::uint32_t size) : size_(size) {}
  std::uint32_t vocab_size() const override { return size_; }
  void encode(std::string_view, std::vector<std::uint32_t>&) const override {
    data_error(fmt::format(
        "tokenizer vocab:{} cannot read text: use it with a .bin file, or give a SentencePiece model",
        size_));
  }
  std::string decode(std::span<const std::uint32_t> ids) const override {
    check_ids(ids, size_);
    std::string out;
    for (const auto id : ids) out += fmt::format("{} ", id);
    return out;
  }
  std::uint32_t separator() const override { return 0; }
  Digest fingerprint() const override {
    return Hasher().update("tokenizer vocab").update(std::uint64_t{size_}).finish();
  }

 private:
  std::uint32_t size_;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& file) : file_(file) {
    std::ifstream in(file, std::ios::binary);
    const std::string model{std::istreambuf_iterator<char>(in), {}};
    if (!in) config_error(file + ": cannot be read");
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok()) config_error(file + ": not a SentencePiece model: " + status.ToString());
    fingerprint_ = Hasher().update("tokenizer sentencepiece").update(model).finish();
  }
  std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(processor_.GetPieceSize()); }
  void encode(std::string_view text, std::vector<std::uint32_t>& out) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok()) data_error(file_ + ": cannot encode text: " + status.ToString());
    out.insert(out.end(), ids.begin(), ids.end());
  }
  std::string decode(std::span<const std::uint32_t> ids) const override {
    check_ids(ids, vocab_size());
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) data_error(file_ + ": cannot decode ids: " + status.ToString());
    return text;
  }
  std::string spelling(std::uint32_t id) const override {
    check_ids(std::span(&id, 1), vocab_size());
    return processor_.IdToPiece(static_cast<int>(id));
  }
  std::uint32_t separator() const override {
    const int end_of_sentence = processor_.eos_id();
    return static_cast<std::uint32_t>(end_of_sentence >= 0 ? end_of_sentence : processor_.unk_id());
  }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  std::string file_;
  sentencepiece::SentencePieceProcessor processor_;
  Digest fingerprint_;
};

std::uint32_t parse_size(const std::string& name, std::string_view digits) {
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc{} || end != digits.data() + digits.size() || size < 2 ||
      size > std::numeric_limits<std::uint32_t>::max()) {
    config_error("data.tokenizer \"" + name + "\": expected vocab:N with N from 2 to 4294967295");
  }
  return static_cast<std::uint32_t>(size);
}

}  // namespace

std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name) {
  constexpr std::string_view vocab = "vocab:";
  if (name == "bytes") return std::make_unique<BytesTokenizer>();
  if (name.starts_with(vocab))
    return std::make_unique<IdsTokenizer>(parse_size(name, name.substr(vocab.size())));
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(name, ignored)) {
    config_error("data.tokenizer \"" + name +
                 "\" is not a file: expected bytes, vocab:N, a Hugging Face "
                 "tokenizer.json or a SentencePiece .model file");
  }
  if (name.ends_with(".json")) return read_bpe_tokenizer(name);
  return std::make_unique<SentencePieceTokenizer>(name);
}

}  // namespace isthmus::data
