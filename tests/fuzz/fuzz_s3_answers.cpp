// The answer of a hostile S3 server: a page of objects no larger than the answer, and a short printable
// reason.
//
// Input: the answer.

#include <string_view>

#include "fuzz_support.h"
#include "objects/s3_answers.h"

using namespace isthmus;
using quant::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const std::string_view answer(reinterpret_cast<const char*>(input), size);
  if (const auto page = s3_page(answer)) {
    std::size_t bytes = page->next.size();
    for (const auto& object : page->objects) bytes += object.key.size();
    require(bytes <= size, "more bytes than the answer has");
  }
  const auto reason = s3_reason(answer);
  require(reason.size() <= 300, "a long reason");
  for (const unsigned char c : reason) require(c == '\t' || (c >= ' ' && c != 0x7f), "a control character");
  return 0;
}
