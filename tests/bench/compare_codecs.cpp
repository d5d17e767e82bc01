// compare_codecs FOLDER ...: error, direction and size of each format on recorded outer gradients (files
// *.f32, written by a run with run.record_outer_gradients). Apart from the product's codecs it tries formats
// and scale rules that were not adopted. Prints a table in Markdown.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "isthmus/quant/passes.h"

namespace isthmus::quant {
namespace {

using Values = std::vector<float>;

/// The decoded values and their cost.
struct Outcome {
  Values values;
  double bits = 0;          ///< total
  double entropy_bits = 0;  ///< total if the codes were coded at their order-0 entropy
  double seconds = 0;       ///< time to encode; 0 for formats that were not optimised
};
using Format = std::function<Outcome(const Values&)>;

double entropy(const std::map<int, std::size_t>& counts) {
  double total = 0;
  for (const auto& [symbol, n] : counts) total += static_cast<double>(n);
  double bits = 0;
  for (const auto& [symbol, n] : counts)
    bits -= static_cast<double>(n) * std::log2(static_cast<double>(n) / total);
  return bits;
}

Outcome with_codec(const CodecSpec& spec, const Values& x) {
  Outcome outcome;
  std::vector<std::byte> bytes(encoded_size(spec, x.size()));
  outcome.values.resize(x.size());
  static_cast<void>(encode(spec, x, {}, {}, bytes));  // warms up pages and caches
  const auto begin = std::chrono::steady_clock::now();
  const bool refused = encode(spec, x, {}, {}, bytes).has_value();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (refused || !decode(spec, bytes, outcome.values)) std::fprintf(stderr, "a codec refused a gradient\n");
  outcome.bits = static_cast<double>(bytes.size()) * 8;
  std::map<int, std::size_t> counts;
  for (const auto byte : bytes) ++counts[static_cast<int>(byte)];
  outcome.entropy_bits = entropy(counts);
  return outcome;
}

// ---- formats that did not become a codec ----

float to_bf16(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  std::memcpy(&x, &bits, 4);
  return x;
}
/// Three bits of mantissa, exponents 2^-6 to 2^8, with one fp32 scale for all values. The scale's 32 bits are
/// not counted.
float to_e4m3(float x, float unit) {
  if (x == 0) return 0;
  const float y = std::clamp(x / unit * 448, 0x1p-9F, 448.0F);
  const float step = std::ldexp(1.0F, std::max(std::ilogb(y), -6) - 3);
  return std::nearbyint(y / step) * step / 448 * unit;
}

/// Signed levels in ascending order; the largest magnitude is 1.
using Levels = std::vector<float>;

struct Rule {
  Levels levels;
  std::size_t block = 64;
  bool e4m3 = false;                  ///< the scales are E4M3 instead of bf16
  std::vector<float> clips = {1.0F};  ///< the clip with the least squared error is used
};

/// Index of the nearest level.
std::size_t nearest(const Levels& levels, float x) {
  const auto above =
      static_cast<std::size_t>(std::lower_bound(levels.begin(), levels.end(), x) - levels.begin());
  if (above == 0) return 0;
  if (above == levels.size()) return above - 1;
  return levels[above] - x < x - levels[above - 1] ? above : above - 1;
}

double squared_error(const float* x, std::size_t n, const Levels& levels, float scale) {
  double error = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float y = scale == 0 ? 0 : levels[nearest(levels, x[i] / scale)] * scale;
    error += std::pow(static_cast<double>(x[i]) - y, 2);
  }
  return error;
}

float largest_magnitude(const float* x, std::size_t n) {
  float largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

Outcome with_rule(const Rule& rule, const Values& x) {
  Outcome outcome;
  outcome.values.resize(x.size());
  std::map<int, std::size_t> counts;
  const float unit = largest_magnitude(x.data(), x.size());
  std::size_t blocks = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += rule.block, ++blocks) {
    const auto n = std::min(rule.block, x.size() - begin);
    const float absmax = largest_magnitude(&x[begin], n);
    float best = 0;
    double least = HUGE_VAL;
    for (const float clip : rule.clips) {
      const float scale = rule.e4m3 ? to_e4m3(absmax * clip, unit) : to_bf16(absmax * clip);
      const auto error = squared_error(&x[begin], n, rule.levels, scale);
      if (error < least) best = scale, least = error;
    }
    for (std::size_t i = begin; i < begin + n; ++i) {
      const auto code = best == 0 ? 0 : nearest(rule.levels, x[i] / best);
      ++counts[static_cast<int>(code)];
      outcome.values[i] = best == 0 ? 0 : rule.levels[code] * best;
    }
  }
  const auto scale_bits = static_cast<double>(blocks) * (rule.e4m3 ? 8 : 16);
  outcome.bits =
      std::ceil(std::log2(static_cast<double>(rule.levels.size()))) * static_cast<double>(x.size()) +
      scale_bits;
  outcome.entropy_bits = entropy(counts) + scale_bits;
  return outcome;
}

Levels symmetric(const Levels& magnitudes) {
  Levels levels;
  for (const float m : magnitudes) {
    levels.push_back(m / magnitudes.back());
    if (m != 0) levels.push_back(-m / magnitudes.back());
  }
  std::ranges::sort(levels);
  return levels;
}

std::vector<std::pair<std::string, Format>> all_formats() {
  std::vector<std::pair<std::string, Format>> all;
  const auto codec = [&](const std::string& name, const CodecSpec& spec) {
    all.emplace_back(name, [spec](const Values& x) { return with_codec(spec, x); });
  };
  for (const auto name : codec_names) {
    const auto spec = default_spec(codec_kind(name));
    codec("**" + std::string(name) + "**" +
              (unit_of(spec) > 1 && spec.kind != CodecKind::topk ? ", block " + std::to_string(spec.block)
                                                                 : ""),
          spec);
  }
  for (const std::uint32_t block : {32U, 128U, 256U}) {
    for (const auto kind : {CodecKind::int4, CodecKind::lloyd4, CodecKind::lloyd3, CodecKind::lloyd2}) {
      codec(std::string(to_string(kind)) + ", block " + std::to_string(block),
            {.kind = kind, .block = block});
    }
  }
  for (const auto scale : {ScaleFormat::e5m3, ScaleFormat::e8m0}) {
    for (const std::uint32_t block : {32U, 64U}) {
      codec("4bit, block " + std::to_string(block) + ", " + std::string(to_string(scale)) + " scales",
            {.kind = CodecKind::lloyd4, .block = block, .scale = scale});
    }
  }
  for (const float clip : {0.7F, 0.8F, 0.9F}) {
    char text[64];
    std::snprintf(text, sizeof text, "int4, block 128, clip %.1f", static_cast<double>(clip));
    codec(text, {.kind = CodecKind::int4, .block = 128, .clip = clip});
  }
  codec("topk, 256 of 4096", {.kind = CodecKind::topk, .top_k = 256});
  const auto rule = [&](const std::string& name, const Rule& r) {
    all.emplace_back(name, [r](const Values& x) { return with_rule(r, x); });
  };
  const std::vector<float> searched = {0.6F, 0.65F, 0.7F, 0.75F, 0.8F, 0.85F, 0.9F, 0.95F, 1};
  const Levels int4 = symmetric({0, 1, 2, 3, 4, 5, 6, 7});
  const Levels e2m1 = symmetric({0, 0.5F, 1, 1.5F, 2, 3, 4, 6});
  const Levels lloyd4 = symmetric({24, 73, 124, 178, 238, 307, 392, 512});
  // QLoRA's NF4 (arXiv 2305.14314): quantiles of a Gaussian, including zero.
  const Levels nf4 = {-1,      -0.6962F, -0.5251F, -0.3949F, -0.2844F, -0.1848F, -0.0911F, 0,
                      0.0796F, 0.1609F,  0.2461F,  0.3379F,  0.4407F,  0.5626F,  0.7230F,  1};
  for (const std::size_t block : {std::size_t{32}, std::size_t{64}, std::size_t{128}}) {
    const auto size = ", block " + std::to_string(block);
    rule("int4" + size + ", least-squares clip", {.levels = int4, .block = block, .clips = searched});
    rule("e2m1" + size, {.levels = e2m1, .block = block});
    rule("e2m1" + size + ", least-squares clip", {.levels = e2m1, .block = block, .clips = searched});
    rule("nf4" + size, {.levels = nf4, .block = block});
    rule("4bit" + size + ", least-squares clip", {.levels = lloyd4, .block = block, .clips = searched});
  }
  rule("int4, block 32, e4m3 scales under fp32", {.levels = int4, .block = 32, .e4m3 = true});
  rule("4bit, block 32, e4m3 scales under fp32", {.levels = lloyd4, .block = 32, .e4m3 = true});
  return all;
}

// ---- the table ----

struct Sums {
  double error = 0, power = 0, dot = 0, decoded_power = 0, bits = 0, entropy_bits = 0, seconds = 0;
  std::size_t elements = 0;

  void add(const Values& x, const Outcome& outcome) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double a = x[i];
      const double b = outcome.values[i];
      error += (a - b) * (a - b);
      power += a * a;
      dot += a * b;
      decoded_power += b * b;
    }
    bits += outcome.bits;
    entropy_bits += outcome.entropy_bits;
    seconds += outcome.seconds;
    elements += x.size();
  }
  void print(const std::string& name) const {
    const auto n = static_cast<double>(elements);
    std::printf("| %s | %.3f | %.3f | %.4f | %.5f | ", name.c_str(), bits / n, entropy_bits / n,
                std::sqrt(error / power), dot / std::sqrt(power * decoded_power));
    if (seconds > 0) std::printf("%.1f", n / seconds * 1e-9);
    std::printf(" |\n");
    std::fflush(stdout);
  }
};

Values read(const std::filesystem::path& file) {
  Values x(std::filesystem::file_size(file) / sizeof(float));
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)));
  return x;
}

/// Files from the beginning, the middle and the end of each folder's run.
std::vector<Values> sample_of(const std::vector<std::filesystem::path>& folders) {
  constexpr std::size_t from_each_part = 6;
  std::vector<Values> sample;
  for (const auto& folder : folders) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".f32") files.push_back(entry.path());
    std::ranges::sort(files);
    const auto part = std::min(from_each_part, files.size());
    for (const auto begin : {std::size_t{0}, (files.size() - part) / 2, files.size() - part})
      for (auto i = begin; i < begin + part; ++i) sample.push_back(read(files[i]));
  }
  return sample;
}

}  // namespace
}  // namespace isthmus::quant

int main(int argc, char** argv) {
  using namespace isthmus::quant;
  const auto sample = sample_of({argv + 1, argv + argc});
  if (sample.empty()) {
    std::fprintf(stderr,
                 "usage: compare_codecs FOLDER ...\nFOLDER holds outer gradients as a run with "
                 "--set run.record_outer_gradients=1 leaves them: runs/NAME/replica-0/outer_gradients\n");
    return 2;
  }
  std::printf("%zu outer gradients from %d runs\n\n", sample.size(), argc - 1);
  std::printf("| format | bits | with order-0 entropy | relative RMSE | cosine | encoded, G elements/s |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, format] : all_formats()) {
    Sums sums;
    for (const auto& x : sample) sums.add(x, format(x));
    sums.print(name);
  }
}
