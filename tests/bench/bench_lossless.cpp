// How much the lossless stage saves on recorded outer gradients (run.record_outer_gradients), by codec and
// chunk size, and its speed:  bench_lossless FOLDER...   where each folder holds .f32 files.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/quant/lossless.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t max_files = 8;  // spread over the run
constexpr int repetitions = 5;        // the fastest one counts

std::vector<float> read(const std::filesystem::path& path) {
  std::vector<float> values(std::filesystem::file_size(path) / sizeof(float));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

std::vector<std::vector<float>> load(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".f32") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::vector<float>> gradients;
  const auto stride = std::max<std::size_t>(1, paths.size() / max_files);
  for (std::size_t i = 0; i < paths.size(); i += stride) gradients.push_back(read(paths[i]));
  return gradients;
}

struct Chunk {
  std::size_t elements;
  Bytes plain, packed;
};

std::vector<Chunk> encode_all(const CodecSpec& spec, const std::vector<std::vector<float>>& gradients,
                              std::size_t chunk_elements) {
  std::vector<Chunk> chunks;
  for (const auto& gradient : gradients) {
    for (std::size_t at = 0; at < gradient.size(); at += chunk_elements) {
      const auto values = std::span(gradient).subspan(at, std::min(chunk_elements, gradient.size() - at));
      Bytes plain(encoded_size(spec, values.size()));
      if (encode(spec, values, {}, {}, plain)) continue;
      chunks.push_back({values.size(), std::move(plain), {}});
    }
  }
  return chunks;
}

template <class Work>
double fastest(Work work) {
  double best = 1e300;
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

void measure(const CodecSpec& spec, const std::vector<std::vector<float>>& gradients,
             std::size_t chunk_elements) {
  auto chunks = encode_all(spec, gradients, chunk_elements);
  std::size_t elements = 0, plain = 0, packed = 0;
  for (const auto& chunk : chunks) {
    elements += chunk.elements;
    plain += chunk.plain.size();
  }
  Packer packer;
  Unpacker unpacker;
  Bytes buffer(encoded_size(spec, chunk_elements));
  const auto pack_seconds = fastest([&] {
    for (auto& chunk : chunks) {
      const auto size = packer.pack(chunk.plain, scale_part(spec, chunk.elements), buffer);
      chunk.packed.assign(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(size.value_or(0)));
    }
  });
  bool good = true;
  const auto unpack_seconds = fastest([&] {
    for (const auto& chunk : chunks) {
      if (!chunk.packed.empty())
        good &= unpacker.unpack(chunk.packed, std::span(buffer).first(chunk.plain.size()));
    }
  });
  for (const auto& chunk : chunks) packed += chunk.packed.empty() ? chunk.plain.size() : chunk.packed.size();
  const auto bits = [&](std::size_t bytes) {
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
  };
  const auto speed = [&](double seconds) { return static_cast<double>(plain) / seconds / 1e6; };
  fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:.1f} % | {:.0f} | {:.0f} |{}\n", to_string(spec.kind),
             spec.block, chunk_elements, bits(plain), bits(packed), 100 - 100 * bits(packed) / bits(plain),
             speed(pack_seconds), speed(unpack_seconds), good ? "" : " DOES NOT UNPACK");
}

std::vector<CodecSpec> specs() {
  std::vector<CodecSpec> specs;
  for (const auto name : codec_names) specs.push_back(default_spec(codec_kind(name)));
  specs.push_back({.kind = CodecKind::int4, .block = 128});
  specs.push_back({.kind = CodecKind::lloyd4, .block = 256});
  return specs;
}

}  // namespace
}  // namespace isthmus::quant

int main(int argc, char** argv) {
  using namespace isthmus::quant;
  for (int i = 1; i < argc; ++i) {
    const auto gradients = load(argv[i]);
    fmt::print("{}: {} fragments\n\n", argv[i], gradients.size());
    fmt::print("| codec | block | chunk | bits | packed | less | pack MB/s | unpack MB/s |\n");
    fmt::print("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const std::size_t chunk_elements : {16384, 65536, 262144}) {
      for (const auto& spec : specs()) measure(spec, gradients, chunk_elements);
    }
  }
}
