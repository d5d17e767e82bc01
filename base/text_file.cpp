#include "isthmus/base/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "isthmus/base/error.h"

namespace isthmus {

namespace {

std::ifstream opened(const std::filesystem::path& file) {
  std::error_code unknown;
  if (std::filesystem::is_directory(file, unknown))
    throw Error(ErrorKind::data, "cannot read " + file.string() + ": it is a folder");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(ErrorKind::data, "cannot read " + file.string() + ": " + std::strerror(errno));
  return in;
}

}  // namespace

std::string read_text(const std::filesystem::path& file, std::size_t most) {
  auto in = opened(file);
  std::string text, block(std::size_t{1} << 16, '\0');
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    text.append(block, 0, static_cast<std::size_t>(in.gcount()));
    if (text.size() > most)
      throw Error(ErrorKind::data, fmt::format("{} is larger than {} bytes", file.string(), most));
  }
  return text;
}

std::string text_if_there(const std::filesystem::path& file, std::size_t most) {
  try {
    return read_text(file, most);
  } catch (const Error&) {
    return {};
  }
}

void each_line(const std::filesystem::path& file, const std::function<void(std::string_view)>& take) {
  constexpr std::size_t longest = std::size_t{1} << 16;
  auto in = opened(file);
  std::string line(longest, '\0');
  while (in.good()) {
    in.getline(line.data(), static_cast<std::streamsize>(line.size()));
    if (in.gcount() == 0) return;
    if (in.fail() && !in.eof()) {  // longer than the buffer: skipped to its end
      in.clear();
      in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
      continue;
    }
    take({line.data(), std::strlen(line.data())});
  }
}

}  // namespace isthmus
