#pragma once
// A small tokenizer.json for the fuzzers.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace isthmus::data {

/// A tokenizer like GPT-2's: 256 bytes and some ASCII merges, without optional parts.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocab, merges;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const unsigned c = printable ? byte : next++;
    std::string token(1, static_cast<char>(c));
    if (c >= 0x80) token = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    vocab[token] = byte;
  }
  const std::pair<const char*, const char*> pairs[] = {{"t", "h"}, {"th", "e"}, {"a", "a"},  {"aa", "a"},
                                                       {"a", "b"}, {"b", "a"},  {"aa", "aa"}};
  unsigned id = 256;
  for (const auto& [left, right] : pairs) {
    vocab[std::string(left) + right] = id++;
    merges.push_back({left, right});
  }
  const nlohmann::json end = {
      {"id", id},        {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  const nlohmann::json cut = {
      {"type", "Split"},
      {"pattern",
       {{"Regex",
         R"((?i:'s|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const nlohmann::json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"added_tokens", {end}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {cut, bytes}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

}  // namespace isthmus::data
