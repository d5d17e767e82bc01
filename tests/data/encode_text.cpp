// encode_text TOKENIZER TEXT [PIECE_BYTES [IDS]]: encodes a file once per line on standard input and answers
// each with a line of JSON. The tokenizer receives the file in pieces of at most PIECE_BYTES (0: the whole
// file), which end at a line end if possible. IDS receives the ids of the last pass as little-endian uint32.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/tokenizer.h"

using namespace isthmus;

namespace {

/// Must match pieces_of in tokenizers_test.py.
std::vector<std::string_view> pieces_of(std::string_view text, std::size_t piece_bytes) {
  std::vector<std::string_view> pieces;
  while (piece_bytes > 0 && text.size() > piece_bytes) {
    const auto line = text.substr(0, piece_bytes).rfind('\n');
    if (line == std::string_view::npos) break;
    pieces.push_back(text.substr(0, line + 1));
    text.remove_prefix(line + 1);
  }
  pieces.push_back(text);
  return pieces;
}

std::string read_file(const char* name) {
  std::ifstream in(name, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw Error(ErrorKind::data, std::string(name) + ": cannot be read");
  return text;
}

void run(int argc, char** argv) {
  const auto tokenizer = data::make_tokenizer(argv[1]);
  const auto text = read_file(argv[2]);
  const auto pieces = pieces_of(text, argc > 3 ? std::stoull(argv[3]) : 0);
  std::vector<std::uint32_t> ids;
  for (std::string line; std::getline(std::cin, line);) {
    std::size_t count = 0;
    std::vector<std::uint32_t> all;
    const auto start = std::chrono::steady_clock::now();
    for (const auto piece : pieces) {
      ids.clear();
      tokenizer->encode(piece, ids);
      count += ids.size();
      if (argc > 4) all.insert(all.end(), ids.begin(), ids.end());
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (argc > 4) {
      std::ofstream out(argv[4], std::ios::binary);
      out.write(reinterpret_cast<const char*>(all.data()),
                static_cast<std::streamsize>(all.size() * sizeof all[0]));
      if (!out.flush()) throw Error(ErrorKind::data, std::string(argv[4]) + ": cannot be written");
      if (tokenizer->decode(all) != text) std::puts("{\"note\": \"decoding does not give the text back\"}");
    }
    std::printf("{\"bytes\": %zu, \"ids\": %zu, \"seconds\": %.6f}\n", text.size(), count, seconds.count());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::fputs("usage: encode_text TOKENIZER TEXT [PIECE_BYTES [IDS]]\n", stderr);
    return 2;
  }
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
