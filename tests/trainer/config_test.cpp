#include "isthmus/trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "isthmus/base/error.h"
#include "isthmus/trainer/device.h"
#include "temporary_folder.h"

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
  ADD_FAILURE() << "no error";
  return "";
}

ModelConfig resolved(std::int64_t dim, std::int64_t heads, std::int64_t kv_heads) {
  ModelConfig config;
  config.dim = dim;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.resolve();
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
  // What is a site's own is no part of what members agree on.
  const auto before = config::fingerprint(all);
  all.inner.precision = "fp32";
  all.inner.batch += 1;
  all.trainer.threads = 3;
  all.device.device = "cuda";
  EXPECT_EQ(config::fingerprint(all), before);
  all.inner.lr *= 2;
  EXPECT_NE(config::fingerprint(all), before);
}

Hardware cpu_only() { return {}; }

TEST(ChooseDevice, AutoTakesAUsableGpu) {
  auto hardware = cpu_only();
  EXPECT_EQ(choose_device({"auto"}, hardware), Device::cpu);
  hardware.built_with_cuda = true;
  EXPECT_EQ(choose_device({"auto"}, hardware), Device::cpu);
  hardware.usable_gpus = 1;
  EXPECT_EQ(choose_device({"auto"}, hardware), Device::cuda);
  EXPECT_EQ(choose_device({"cuda"}, hardware), Device::cuda);
  EXPECT_EQ(choose_device({"cpu"}, hardware), Device::cpu);
}

TEST(ChooseDevice, AGpuIsNotLeftIdleUnasked) {
  auto hardware = cpu_only();
  hardware.nvidia_gpu = true;
  EXPECT_THAT(config_error([&] { (void)choose_device({"auto"}, hardware); }),
              AllOf(HasSubstr("no CUDA"), HasSubstr("device: cpu")));
  EXPECT_EQ(choose_device({"cpu"}, hardware), Device::cpu);
  hardware.built_with_cuda = true;
  EXPECT_THAT(config_error([&] { (void)choose_device({"auto"}, hardware); }), HasSubstr("no GPU"));
}

TEST(ChooseDevice, CudaMustBeThere) {
  EXPECT_THAT(config_error([] { (void)choose_device({"cuda"}, cpu_only()); }), HasSubstr("no CUDA"));
}

TEST(ProbeHardware, SeesAnNvidiaGpuByItsFiles) {
  TemporaryFolder root;
  EXPECT_FALSE(probe_hardware(root / "").nvidia_gpu);
  root.write("dev/nvidia0", "");
  EXPECT_TRUE(probe_hardware(root / "").nvidia_gpu);
  TemporaryFolder other;
  other.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "");
  EXPECT_TRUE(probe_hardware(other / "").nvidia_gpu);
}

TEST(ChoosePrecision, AutoIsBf16WhereTheProcessorHasIt) {
  InnerConfig inner;
  auto hardware = cpu_only();
  EXPECT_EQ(choose_precision(inner, Device::cpu, hardware), Precision::fp32);
  EXPECT_EQ(choose_precision(inner, Device::cuda, hardware), Precision::bf16);
  hardware.bf16_instructions = true;
  EXPECT_EQ(choose_precision(inner, Device::cpu, hardware), Precision::bf16);
  inner.precision = "fp32";
  EXPECT_EQ(choose_precision(inner, Device::cpu, hardware), Precision::fp32);
}

}  // namespace
}  // namespace isthmus::trainer
