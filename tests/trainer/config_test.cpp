#include "isthmus/trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "isthmus/base/error.h"
#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string config_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

ModelConfig resolved(std::int64_t dim, std::int64_t heads, std::int64_t kv_heads) {
  ModelConfig config;
  config.dim = dim;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.resolve(256);
  return config;
}

TEST(ModelConfig, ZerosAreReplaced) {
  EXPECT_EQ(resolved(128, 4, 0).kv_heads, 4);
  EXPECT_EQ(resolved(128, 4, 0).ffn_dim, 384);    // 341.3
  EXPECT_EQ(resolved(768, 12, 4).ffn_dim, 2048);  // 2048 exactly
}

TEST(ModelConfig, ShapesThatDoNotFitAreRefused) {
  EXPECT_THAT(config_error([] { resolved(130, 4, 0); }),
              AllOf(HasSubstr("model.dim is 130"), HasSubstr("model.heads")));
  EXPECT_THAT(config_error([] { resolved(12, 4, 0); }), HasSubstr("even"));
  EXPECT_THAT(config_error([] { resolved(128, 4, 3); }), HasSubstr("model.kv_heads is 3"));
}

TEST(ReplicaConfig, RanksMustDivideWhatTheyShare) {
  ReplicaConfig replica{.ranks = 6, .ranks_per_sequence = 3};
  const auto model = resolved(96, 6, 3);
  replica.check(4);  // two groups
  replica.check_sequences(12, model);
  EXPECT_THAT(config_error([&] { replica.check(3); }),
              AllOf(HasSubstr("inner.batch is 3"), HasSubstr("ranks_per_sequence")));
  EXPECT_THAT(config_error([&] { replica.check_sequences(13, model); }), HasSubstr("data.seq_len is 13"));
  EXPECT_THAT(config_error([&] { replica.check_sequences(12, resolved(64, 4, 4)); }),
              HasSubstr("model.heads is 4"));
  EXPECT_THAT(config_error([&] { replica.check_sequences(12, resolved(96, 6, 2)); }),
              HasSubstr("model.kv_heads is 2"));
  replica.ranks_per_sequence = 4;
  EXPECT_THAT(config_error([&] { replica.check(8); }),
              HasSubstr("replica.ranks is 6 and replica.ranks_per_sequence is 4"));
  replica.ranks_per_sequence = 12;
  EXPECT_THAT(config_error([&] { replica.check(8); }), HasSubstr("replica.ranks is 6"));
}

TEST(ReplicaConfig, RanksThatAverageParametersHaveThemWhole) {
  ReplicaConfig replica{.ranks = 2, .average_every = 8};
  replica.check(4);
  replica.zero = true;
  EXPECT_THAT(config_error([&] { replica.check(4); }),
              AllOf(HasSubstr("replica.average_every is 8"), HasSubstr("replica.zero is true")));
  replica.zero = false;
  replica.ranks_per_sequence = 2;
  EXPECT_THAT(config_error([&] { replica.check(4); }), HasSubstr("they have the same gradient"));
}

TEST(ReplicaConfig, MachinesHaveEqualNumbersOfRanks) {
  ReplicaConfig replica{.ranks = 4};
  EXPECT_EQ(replica.ranks_per_machine(), 4);
  replica.machines = "10.0.0.1, fd00::2";
  replica.check(4);
  EXPECT_THAT(replica.machine_list(), testing::ElementsAre("10.0.0.1", "fd00::2"));
  EXPECT_EQ(replica.ranks_per_machine(), 2);
  const auto refusal = [&](const std::string& machines) {
    replica.machines = machines;
    return config_error([&] { replica.check(4); });
  };
  EXPECT_THAT(refusal("10.0.0.1,10.0.0.2,10.0.0.3"), HasSubstr("replica.machines has 3 addresses"));
  EXPECT_THAT(refusal("10.0.0.1,10.0.0.1"), HasSubstr("10.0.0.1 twice"));
  EXPECT_THAT(refusal("10.0.0.1,,10.0.0.2"), HasSubstr("between any two commas"));
  EXPECT_THAT(refusal("10.0.0.1,"), HasSubstr("between any two commas"));
  EXPECT_THAT(refusal("10.0.0.1,-oProxyCommand=x"), HasSubstr("expected IPv4 or IPv6 addresses"));
  EXPECT_THAT(refusal("10.0.0.1,gpu2"), HasSubstr("has 'gpu2'"));
  replica.reach = "ssh gpu2 isthmus";
  EXPECT_THAT(refusal("10.0.0.1,10.0.0.2"), HasSubstr("expected a command with {machine}"));
}

struct ModelSection {
  ModelConfig model;
  void serialize(config::Archive& ar) { ar.section("model", model); }
};

ModelConfig read_model(const std::string& yaml, std::int64_t seq_len = 256) {
  auto model = config::read<ModelSection>(config::Source::from_text(yaml, "test.yaml")).model;
  model.resolve(seq_len);
  return model;
}

TEST(ModelConfig, KeysBesideAPresetGoOverIt) {
  const auto model = read_model("model: {layers: 3, preset: smollm-135m}");
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(model.dim, 576);
  EXPECT_EQ(model.kv_heads, 3);
  EXPECT_FALSE(model.qk_norm);
  const auto gpt2 = read_model("model: {preset: gpt2-124m, tie_embeddings: false}");
  EXPECT_TRUE(gpt2.is_gpt2());
  EXPECT_FALSE(gpt2.tie_embeddings);
  EXPECT_EQ(gpt2.ffn_dim, 3072);
}

TEST(ModelConfig, APresetWithEveryKeyFilledInReadsBack) {
  for (const auto* text : {"model: {preset: 35M, layers: 2}", "model: {architecture: gpt2, dim: 96}",
                           "model: {preset: gpt2-350m, architecture: llama}"}) {
    ModelSection section{read_model(text)};
    const auto yaml = config::to_yaml(section);
    ModelSection again{read_model(yaml)};
    EXPECT_EQ(config::to_yaml(again), yaml) << text;
  }
}

/// Counted from layers, width and vocabulary, as in the papers and model cards.
TEST(ModelConfig, PresetsHaveTheParametersOfTheirNames) {
  const auto millions = [](const std::string& preset, std::int64_t vocab) {
    const auto model = read_model("model: {preset: " + preset + "}", 1024);
    return static_cast<double>(ParameterTable({model, vocab}, 1, 65536).parameters()) / 1e6;
  };
  EXPECT_NEAR(millions("35M", 32768), 36, 1);
  EXPECT_NEAR(millions("100M", 32768), 89, 1);
  EXPECT_NEAR(millions("200M", 32768), 187, 2);
  EXPECT_NEAR(millions("300M", 32768), 340, 5);
  EXPECT_NEAR(millions("500M", 32768), 560, 5);
  EXPECT_NEAR(millions("1B", 32768), 1290, 20);
  EXPECT_NEAR(millions("4B", 32768), 4180, 20);
  EXPECT_NEAR(millions("gpt2-124m", 50257), 124.44, 0.01);
  EXPECT_NEAR(millions("gpt2-350m", 50257), 354.82, 0.01);
  EXPECT_NEAR(millions("smollm-135m", 49152), 134.52, 0.01);
  EXPECT_NEAR(millions("llama-1b", 128256), 1235.81, 0.01);
}

TEST(ModelConfig, Gpt2RefusesWhatItDoesNotHave) {
  const auto refused = [](const std::string& keys) {
    return config_error([&] { read_model("model: {architecture: gpt2, " + keys + "}", 256); });
  };
  EXPECT_THAT(refused("qk_norm: true"), HasSubstr("model.qk_norm is true; expected false"));
  EXPECT_THAT(refused("kv_heads: 2"), HasSubstr("model.kv_heads is 2"));
  EXPECT_THAT(refused("positions: 255"),
              AllOf(HasSubstr("data.seq_len is 256"), HasSubstr("model.positions is 255")));
  EXPECT_EQ(read_model("model: {architecture: gpt2}").positions, 256);
}

TEST(TrainerConfigs, KeysAreReadBackFromTheirOwnYaml) {
  struct All {
    ModelConfig model;
    InnerConfig inner;
    TrainerConfig trainer;
    DeviceConfig device;
    void serialize(config::Archive& ar) {
      device.serialize(ar);
      ar.section("model", model);
      ar.section("inner", inner);
      ar.section("trainer", trainer);
    }
  };
  All all;
  all.inner.schedule = "wsd";
  all.model.rope_theta = 500000;
  all.device.device = "cpu";
  const auto yaml = config::to_yaml(all);
  auto again = config::read<All>(config::Source::from_text(yaml, "test.yaml"));
  EXPECT_EQ(config::to_yaml(again), yaml);
  // Settings of one site do not change the fingerprint that members agree on.
  const auto before = config::fingerprint(all);
  all.inner.precision = "fp32";
  all.inner.batch += 1;
  all.trainer.threads = 3;
  all.device.device = "cuda";
  EXPECT_EQ(config::fingerprint(all), before);
  all.inner.lr *= 2;
  EXPECT_NE(config::fingerprint(all), before);
}

}  // namespace
}  // namespace isthmus::trainer
