#include "model/bytes_tokenizer.h"

#include <nlohmann/json.hpp>

namespace isthmus::app {

using Json = nlohmann::ordered_json;

namespace {

/// The character that represents a byte in byte-level BPE: the byte itself if it is printable, otherwise the
/// next character from U+0100 on. At most two bytes of UTF-8.
std::string character_of(int byte) {
  const auto printable = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

}  // namespace

std::string bytes_tokenizer() {
  Json vocab = {{bytes_separator, 0}};
  for (int b = 1; b < 256; ++b) vocab[character_of(b)] = b;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens",
                      {{{"id", 0},
                        {"content", bytes_separator},
                        {"single_word", false},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"normalized", false},
                        {"special", true}}}},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  return file.dump(1) + "\n";
}

}  // namespace isthmus::app
