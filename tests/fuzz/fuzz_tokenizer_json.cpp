// A hostile tokenizer.json is refused with an Error, or gives a working tokenizer.
//
// Input: a byte, then JSON. If the byte is odd, the JSON is the file. If it is even, the JSON is a merge
// patch (RFC 7396) for a valid file, so that inputs pass the first checks.

#include "fuzz_support.h"
#include "isthmus/base/error.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer_support.h"

using namespace isthmus;
using quant::require;
using Json = nlohmann::json;

namespace {

/// Returns a discarded value if the text is not JSON or is nested so deep that merging would overflow the
/// stack.
Json parse(std::string_view text) {
  bool too_deep = false;
  auto json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, const Json&) {
        too_deep = too_deep || depth > 50;
        return !too_deep;
      },
      false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

void use(const data::Tokenizer& tokenizer) {
  std::vector<std::uint32_t> ids;
  tokenizer.encode("the baab 'S \xC3\xA9\xCC\x81 123 \n\n <|endoftext|>\xFF", ids);
  for (const auto id : ids) require(id < tokenizer.vocab_size(), "an id outside the vocabulary");
  static_cast<void>(tokenizer.decode(ids));
  require(tokenizer.separator() < tokenizer.vocab_size(), "a separator outside the vocabulary");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(input + 1), size - 1);
  if (input[0] % 2 == 0) {
    const auto change = parse(text);
    if (!change.is_object()) return -1;
    auto document = data::small_tokenizer();
    document.merge_patch(change);
    text = document.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  try {
    use(*data::parse_bpe_tokenizer(text, "fuzz"));
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::config || error.kind() == ErrorKind::data, "an error of another kind");
    require(std::string_view(error.what()).starts_with("fuzz: "), "an error that names no file");
  }
  return 0;
}
