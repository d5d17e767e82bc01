// A hostile .bin file or Megatron data set is refused with an Error, or can be read completely.
//
// Input: a byte. If it is even, a .bin file follows; if it is odd, two bytes with the length of the .idx
// file, that file, and the .bin file.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "fuzz_folder.h"
#include "fuzz_support.h"
#include "ids/id_files.h"
#include "ids/megatron.h"
#include "isthmus/base/error.h"

using namespace isthmus;
using quant::require;

namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::uint8_t* data, std::size_t size) {
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

void use(const data::TokenSource& source) {
  require(source.width() == 2 || source.width() == 4, "an invalid width");
  for (const std::uint64_t wanted :
       {std::uint64_t{0}, std::uint64_t{5}, source.tokens(), source.tokens() + 9})
    require(source.heldout_begin(wanted) <= source.tokens(), "a held-out part that begins past the end");
  std::vector<std::byte> all(source.tokens() * source.width());
  source.read(0, source.tokens(), all.data());
  require(!source.place(0).empty(), "no place");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  if (size < 3) return 0;
  try {
    if (data[0] % 2 == 0) {
      write(folder.path / "ids.bin", data + 1, size - 1);
      use(*data::open_id_file(folder.path / "ids.bin", data[0] % 4 == 0 ? std::optional(7U) : std::nullopt));
    } else {
      const auto index = std::min<std::size_t>(data[1] | data[2] << 8, size - 3);
      write(folder.path / "set.idx", data + 3, index);
      write(folder.path / "set.bin", data + 3 + index, size - 3 - index);
      use(*data::open_megatron(folder.path / "set"));
    }
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::data, "an error of another kind");
    require(std::string_view(error.what()).find(folder.path.string()) != std::string_view::npos,
            "an error that names no file");
  }
  return 0;
}
