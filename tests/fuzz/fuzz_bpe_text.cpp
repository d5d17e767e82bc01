// Encodes any bytes with a small tokenizer: every id is in the vocabulary, and decoding restores the bytes.

#include "fuzz_support.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer_support.h"

using namespace isthmus;
using quant::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  static const auto tokenizer = data::parse_bpe_tokenizer(data::small_tokenizer().dump(), "small");
  const std::string_view text(reinterpret_cast<const char*>(input), size);
  std::vector<std::uint32_t> ids;
  tokenizer->encode(text, ids);
  require(ids.size() <= size, "more ids than bytes");
  require(tokenizer->decode(ids) == text, "decoding gives other bytes");
  return 0;
}
