#include "isthmus/trainer/parameter_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "isthmus/base/error.h"
#include "small_model.h"

namespace isthmus::trainer {
namespace {

using outer_sync::Range;
using testing::AllOf;
using testing::HasSubstr;

ModelShape five_layers() {
  auto shape = small_shape();
  shape.config.layers = 5;
  return shape;
}

ParameterTable cut(std::int64_t fragments) { return {five_layers(), fragments, 1024}; }

bool is_matrix(const TensorEntry& tensor) { return tensor.shape.size() == 2; }

std::uint64_t elements(const ParameterTable& table) {
  std::uint64_t sum = 0;
  for (const auto& tensor : table.tensors()) sum += tensor.range.size;
  return sum;
}

std::size_t fragment_of(const ParameterTable& table, const std::string& name) {
  const auto range = table.tensor(name).range;
  const auto fragments = table.layout().fragments();
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    if (range.begin >= fragments[p].begin && range.end() <= fragments[p].end()) return p;
  }
  return fragments.size();
}

TEST(ParameterTable, TensorsTileTheFragmentsInOrder) {
  for (const std::int64_t fragments : {1, 2, 3, 6, 7, 100}) {
    const auto table = cut(fragments);
    std::uint64_t end = 0;
    for (const auto& tensor : table.tensors()) {
      EXPECT_GE(tensor.range.begin, end) << tensor.name;
      EXPECT_LT(tensor.range.begin - end, fragment_alignment) << tensor.name;
      end = tensor.range.end();
    }
    EXPECT_EQ(end, table.buffer_size());
    EXPECT_EQ(table.parameters(), elements(table));
    EXPECT_EQ(table.layout().fragment_count(), fragments);
  }
}

TEST(ParameterTable, OneFragmentHoldsAllMatricesThenAllVectors) {
  const auto table = cut(1);
  bool vectors = false;
  for (const auto& tensor : table.tensors()) {
    if (!is_matrix(tensor)) vectors = true;
    EXPECT_EQ(is_matrix(tensor), !vectors) << tensor.name;
  }
  EXPECT_EQ(table.layout().fragment(0), (Range{0, elements(table)}));
}

TEST(ParameterTable, LayersAreStridedAndTheEndsHaveAFragmentOfTheirOwn) {
  const auto table = cut(3);
  for (int layer = 0; layer < 5; ++layer) {
    const auto prefix = "model.layers." + std::to_string(layer) + ".";
    for (const auto* part : {"self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"}) {
      EXPECT_EQ(fragment_of(table, prefix + part), layer % 2) << prefix << part;
    }
  }
  for (const auto* name : {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}) {
    EXPECT_EQ(fragment_of(table, name), 2) << name;
  }
  for (const auto& fragment : table.layout().fragments()) EXPECT_EQ(fragment.begin % fragment_alignment, 0);
}

TEST(ParameterTable, AsManyFragmentsAsLayersAndOneMoreGiveEachLayerItsOwn) {
  const auto table = cut(6);
  for (int layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(fragment_of(table, "model.layers." + std::to_string(layer) + ".self_attn.o_proj.weight"),
              layer);
  }
  EXPECT_EQ(fragment_of(table, "model.norm.weight"), 5);
}

TEST(ParameterTable, MoreFragmentsThanThatCutTheBufferEvenly) {
  for (const std::int64_t fragments : {7, 10, 1000}) {
    const auto table = cut(fragments);
    const auto n = elements(table);
    std::uint64_t end = 0;
    for (const auto& fragment : table.layout().fragments()) {
      EXPECT_EQ(fragment.begin, end);
      EXPECT_GE(fragment.size, n / fragments);
      EXPECT_LE(fragment.size, n / fragments + 1);
      end = fragment.end();
    }
    EXPECT_EQ(end, n);
    // The order of tensors is that of one fragment; only the cuts differ.
    EXPECT_EQ(table.tensor("model.norm.weight").range, cut(1).tensor("model.norm.weight").range);
  }
}

TEST(ParameterTable, AFragmentForEachParameterIsTheMost) {
  const auto n = static_cast<std::int64_t>(elements(cut(1)));
  EXPECT_EQ(cut(n).layout().fragment_count(), n);
  try {
    (void)cut(n + 1);
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(std::to_string(n + 1)), HasSubstr(std::to_string(n) + " parameters")));
  }
}

TEST(ParameterTable, DecayRangesAreTheMatrices) {
  for (const std::int64_t fragments : {1, 3, 6, 7}) {
    const auto table = cut(fragments);
    for (const auto& tensor : table.tensors()) {
      bool decays = false;
      for (const auto& range : table.decay_ranges()) {
        decays |= tensor.range.begin >= range.begin && tensor.range.end() <= range.end();
      }
      EXPECT_EQ(decays, is_matrix(tensor)) << tensor.name;
    }
  }
}

TEST(ParameterTable, Gpt2sVectorsDoNotDecayAndItsBiasesBeginAtZero) {
  const ParameterTable table(small_gpt2_shape(), 3, 1024);
  EXPECT_EQ(fragment_of(table, "transformer.h.1.mlp.c_fc.weight"), 1U);
  EXPECT_EQ(table.tensor("transformer.h.1.mlp.c_fc.weight").shape, (std::vector<std::int64_t>{16, 24}));
  EXPECT_EQ(table.tensor("transformer.wpe.weight").shape, (std::vector<std::int64_t>{12, 16}));
  const auto initial = initial_parameters(table, 1);
  std::size_t biases = 0;
  for (const auto& tensor : table.tensors()) {
    bool decays = false;
    for (const auto& range : table.decay_ranges())
      decays |= tensor.range.begin >= range.begin && tensor.range.end() <= range.end();
    EXPECT_EQ(decays, is_matrix(tensor)) << tensor.name;
    if (!tensor.name.ends_with(".bias")) continue;
    ++biases;
    for (auto i = tensor.range.begin; i < tensor.range.end(); ++i) EXPECT_EQ(initial[i], 0) << tensor.name;
  }
  EXPECT_EQ(biases, 2 * 6 + 1);
}

TEST(ParameterTable, ATiedMatrixStandsOnce) {
  const auto untied = small_table(3, false);
  const auto tied = small_table(3, true);
  EXPECT_EQ(untied.parameters() - tied.parameters(), 31 * 16);
  EXPECT_THROW((void)tied.tensor("lm_head.weight"), std::out_of_range);
}

TEST(ParameterTable, NormsOfQueriesAndKeysAreOptional) {
  auto shape = small_shape();
  shape.config.qk_norm = false;
  const ParameterTable table(shape, 3, 1024);
  EXPECT_EQ(small_table().parameters() - table.parameters(), 2 * 2 * 4);
}

TEST(ParameterTable, ModelsThatDoNotFitEachOtherHaveDifferentFingerprints) {
  std::set<std::string> seen;
  const auto add = [&](const ParameterTable& table) {
    EXPECT_TRUE(seen.insert(table.fingerprint().hex()).second) << table.description();
  };
  add(small_table());
  add(small_table(1));
  add(small_table(4));
  add(small_table(3, true));
  auto shape = small_shape();
  shape.vocab = 32;
  add({shape, 3, 1024});
  shape = small_shape();
  shape.config.heads = 8;  // the same tensors, except for the norms of heads
  shape.config.kv_heads = 4;
  add({shape, 3, 1024});
  shape = small_shape();
  shape.config.rope_theta = 500000;  // the same tensors
  add({shape, 3, 1024});
  EXPECT_EQ(small_table().fingerprint(), small_table().fingerprint());
  EXPECT_EQ(small_table().fingerprint(), ParameterTable(small_shape(), 3, 2048).fingerprint());
}

TEST(ParameterTable, DescriptionNamesWhatPeopleChoose) {
  EXPECT_THAT(small_table().description(), AllOf(HasSubstr("2 layers"), HasSubstr("dim 16"),
                                                 HasSubstr("vocabulary 31"), HasSubstr("3 fragments")));
}

TEST(InitialParameters, HaveTheAskedForMoments) {
  auto shape = small_shape();
  shape.config.dim = 128;
  shape.config.ffn_dim = 384;
  shape.config.init_std = 0.02;
  const ParameterTable table(shape, 3, 1024);
  const auto values = initial_parameters(table, 1);
  const auto moments = [&](const std::string& name) {
    const auto range = table.tensor(name).range;
    double sum = 0, squares = 0;
    for (auto i = range.begin; i < range.end(); ++i) {
      sum += values[i];
      squares += static_cast<double>(values[i]) * values[i];
    }
    const auto n = static_cast<double>(range.size);
    return std::pair(sum / n, std::sqrt(squares / n));
  };
  const auto [mean, std] = moments("model.layers.0.mlp.gate_proj.weight");
  EXPECT_NEAR(mean, 0, 4 * 0.02 / std::sqrt(128 * 384));
  EXPECT_NEAR(std, 0.02, 0.0003);
  EXPECT_NEAR(moments("model.layers.0.mlp.down_proj.weight").second, 0.01,
              0.0003);  // 0.02 / sqrt(2 * 2 layers)
  EXPECT_EQ(moments("model.norm.weight").first, 1);
}

TEST(InitialParameters, AreAPureFunctionOfTheSeedAndDoNotDependOnFragments) {
  const auto value = [](const ParameterTable& table, std::uint64_t seed, const std::string& name) {
    return initial_parameters(table, seed).at(table.tensor(name).range.begin + 5);
  };
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(value(small_table(1), 3, name), value(small_table(3), 3, name));
  EXPECT_NE(value(small_table(1), 3, name), value(small_table(1), 4, name));
  EXPECT_NE(value(small_table(1), 3, name), value(small_table(1), 3, "model.layers.0.mlp.up_proj.weight"));
}

TEST(InitialParameters, ArePinned) {
  // Replicas on different machines start from these bits without exchanging them. pinned.py computes them,
  // too.
  const auto values = initial_parameters(small_table(), 42);
  EXPECT_EQ(hash_of(std::as_bytes(std::span(values))).hex(),
            "17a8226195903f2555c06cda75441aa0477c06e88da4ea9b382e9c11d19e7eeb");
}

TEST(InitialParameters, PaddingIsZero) {
  const auto table = cut(3);
  const auto values = initial_parameters(table, 1);
  const auto fragments = table.layout().fragments();
  for (std::size_t p = 1; p < fragments.size(); ++p) {
    for (auto i = fragments[p - 1].end(); i < fragments[p].begin; ++i) EXPECT_EQ(values[i], 0.0F);
  }
}

}  // namespace
}  // namespace isthmus::trainer
