// Recorded outer gradients of a run, and whether the codecs' instruction sets agree on them.

#include <cstring>
#include <map>

#include "isthmus/quant/passes.h"
#include "passes_table.h"
#include "site.h"

namespace isthmus {
namespace {

TEST(Recording, EverySecondOuterGradientOfEachFragmentIsWritten) {
  Site site;
  const auto result = site.launch({"run.steps=20", "outer.warmup_steps=0", "outer.sync_every=5",
                                   "outer.final_sync=false", "run.record_outer_gradients=2"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto parameters = site.summary()["parameters"].get<std::uintmax_t>();
  for (const auto* replica : {"replica-0", "replica-1"}) {
    std::map<std::string, std::uintmax_t> size_of;
    for (const auto& file : std::filesystem::directory_iterator(site.run() / replica / "outer_gradients"))
      size_of[file.path().filename().string()] = file.file_size();
    // Every 5 steps, fragments 0, 1 and 2 are sent at offsets 0, 1 and 3, for the first time at steps 5, 1
    // and 3.
    std::vector<std::string> names;
    std::uintmax_t bytes = 0;
    for (const auto& [name, size] : size_of) {
      names.push_back(name);
      bytes += size;
    }
    EXPECT_THAT(names, ::testing::ElementsAre(
                           "step_000000000001_fragment_001.f32", "step_000000000003_fragment_002.f32",
                           "step_000000000005_fragment_000.f32", "step_000000000011_fragment_001.f32",
                           "step_000000000013_fragment_002.f32", "step_000000000015_fragment_000.f32"));
    EXPECT_EQ(bytes, 2 * parameters * sizeof(float)) << replica;
  }
}

std::vector<float> values_of(const std::filesystem::path& file) {
  const auto bytes = read_all(file);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

using Bits = std::vector<std::byte>;

/// Encoded bytes and residual after two rounds with error feedback.
Bits encoded_twice(const quant::Passes& passes, const quant::CodecSpec& spec, const std::vector<float>& x) {
  Bits out(quant::encoded_size(spec, x.size()));
  std::vector<float> residual(x.size(), 0.0F);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    quant::Encoding encoding;
    encoding.a = x.data();
    encoding.residual = residual.data();
    encoding.noise.key = round;
    encoding.elements = x.size();
    encoding.out = out.data();
    EXPECT_EQ(passes.encode(spec, encoding), x.size());
  }
  const auto* rest = reinterpret_cast<const std::byte*>(residual.data());
  out.insert(out.end(), rest, rest + residual.size() * sizeof(float));
  return out;
}

TEST(Recording, EveryInstructionSetEncodesRealOuterGradientsAlike) {
  Site site;
  const auto result = site.launch({"run.steps=30", "run.record_outer_gradients=1"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto reference = quant::scalar_passes();
  const auto targets = quant::all_vector_passes();
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(site.run() / "replica-0/outer_gradients")) {
    ++files;
    const auto x = values_of(file.path());
    for (const auto name : quant::codec_names) {
      auto spec = quant::default_spec(quant::codec_kind(name));
      for (const auto rounding : {quant::Rounding::nearest, quant::Rounding::stochastic}) {
        spec.rounding = rounding;
        const auto expected = encoded_twice(reference, spec, x);
        for (const auto& target : targets)
          EXPECT_EQ(encoded_twice(target, spec, x) == expected, true)
              << name << " by " << target.target << ", " << file.path();
      }
    }
  }
  EXPECT_GT(files, 3U);
}

}  // namespace
}  // namespace isthmus
