// A hostile safetensors file is refused with an Error, or its tensors tile its data and can be read.
//
// Input: a byte, then the file. If the byte is even, the file lacks the length of its header; the fuzzer
// inserts it for a header that ends at the first line end.

#include <cstring>
#include <fstream>

#include "fuzz_folder.h"
#include "fuzz_support.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/safetensors.h"

using namespace isthmus;
using quant::require;

namespace {

void use(const std::filesystem::path& path, std::size_t size) {
  const outer_sync::log::SafetensorsFile file(path);
  std::vector<float> values;
  for (const auto& tensor : file.tensors()) {
    require(tensor.elements <= size, "a tensor that is larger than its file");
    values.resize(tensor.elements);
    try {
      file.read(tensor, values);
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::data, "an error of another kind");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  static const Folder folder;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(input + 1), size - 1);
  if (input[0] % 2 == 0) {
    const std::uint64_t length = std::min(text.size(), text.find('\n'));
    text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  }
  const auto path = folder.path / "m.safetensors";
  std::ofstream(path, std::ios::binary) << text;
  try {
    use(path, text.size());
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::data, "an error of another kind");
    require(std::string_view(error.what()).starts_with(path.string()), "an error that names no file");
  }
  return 0;
}
