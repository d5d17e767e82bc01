#pragma once
// A small byte-level BPE tokenizer, for the tests of tokenizers and of their files.

#include <nlohmann/json.hpp>

#include "data_support.h"
#include "tokenizer/bpe_tokenizer.h"

namespace isthmus::data {

using Json = nlohmann::json;

inline std::string utf8(unsigned character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 63))};
}

/// Bytes in the byte-level alphabet of a vocabulary.
inline std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto wanted = static_cast<unsigned char>(c);
    unsigned next = 256, character = 0;
    for (unsigned byte = 0; byte <= wanted; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      character = printable ? byte : next++;
    }
    out += utf8(character);
  }
  return out;
}

inline Json added(std::uint32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

/// A tokenizer like GPT-2's, in which a byte's id is the byte; ids from 256 on are the results of `merges`.
inline Json small_tokenizer(
    const std::vector<std::pair<std::string, std::string>>& merges = {
        {"t", "h"}, {"th", "e"}, {" ", "the"}, {"a", "a"}, {"aa", "aa"}, {"\xC3", "\xA9"}}) {
  Json vocab, list = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(std::string(1, static_cast<char>(byte)))] = byte;
  for (const auto& [left, right] : merges) {
    list.push_back({spelled(left), spelled(right)});
    const auto size = vocab.size();
    vocab.emplace(spelled(left + right), size);
  }
  const auto end = static_cast<std::uint32_t>(vocab.size());
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added(end, "<|endoftext|>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline std::unique_ptr<const Tokenizer> make(const Json& document) {
  return parse_bpe_tokenizer(document.dump(), "t.json");
}

/// The message with which the small tokenizer is refused after `change`.
template <class Change>
std::string refusal_after(Change change) {
  auto document = small_tokenizer();
  change(document);
  return error_of(ErrorKind::config, [&] { static_cast<void>(make(document)); });
}

}  // namespace isthmus::data
