#include "isthmus/trainer/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/driver_files.h"
#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A machine with one H100 and a build that can use it.
Hardware with_gpu() {
  Hardware hardware;
  hardware.built_with_cuda = true;
  hardware.nvidia_gpu = true;
  hardware.nvidia_name = "NVIDIA H100 80GB HBM3";
  hardware.driver = "580.65.06";
  hardware.driver_cuda = hardware.needed_cuda = 13000;
  hardware.code_for = "80-real,90,100-real,120-real";
  hardware.gpus = {{"NVIDIA H100 80GB HBM3", 90}};
  return hardware;
}

/// The error of choose_device, or "".
std::string refusal(const std::string& device, const Hardware& hardware) {
  try {
    (void)choose_device({device}, hardware);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "";
}

TEST(ChooseDevice, AutoTakesAUsableGpu) {
  EXPECT_EQ(choose_device({"auto"}, {}), Device::cpu);
  EXPECT_EQ(choose_device({"auto"}, with_gpu()), Device::cuda);
  EXPECT_EQ(choose_device({"cuda"}, with_gpu()), Device::cuda);
  EXPECT_EQ(choose_device({"cpu"}, with_gpu()), Device::cpu);
  auto build_alone = with_gpu();
  build_alone.nvidia_gpu = false;
  build_alone.driver_cuda = 0;
  build_alone.gpus.clear();
  EXPECT_EQ(choose_device({"auto"}, build_alone), Device::cpu);
}

TEST(ChooseDevice, ABuildWithoutCudaNamesTheGpuItFinds) {
  auto hardware = with_gpu();
  hardware.built_with_cuda = false;
  hardware.gpus.clear();
  const auto told = AllOf(HasSubstr("an NVIDIA GPU (NVIDIA H100 80GB HBM3), but this build has no CUDA"),
                          HasSubstr("scripts/setup.sh"), HasSubstr("set device: cpu"));
  EXPECT_THAT(refusal("auto", hardware), told);
  EXPECT_THAT(refusal("cuda", hardware), AllOf(HasSubstr("device is cuda"), told));
  EXPECT_EQ(choose_device({"cpu"}, hardware), Device::cpu);
  EXPECT_THAT(refusal("cuda", {}), AllOf(HasSubstr("no CUDA"), Not(HasSubstr("an NVIDIA GPU"))));
}

TEST(ChooseDevice, ADriverThatIsTooOldIsNamed) {
  auto hardware = with_gpu();
  hardware.driver = "550.54.14";
  hardware.driver_cuda = 12040;
  hardware.gpus.clear();  // because the runtime lists none
  const auto told = AllOf(HasSubstr("driver (550.54.14) supports CUDA 12.4"), HasSubstr("CUDA 13.0"),
                          HasSubstr("driver 580 or later"), HasSubstr("update the driver"));
  EXPECT_THAT(refusal("auto", hardware), told);
  EXPECT_THAT(refusal("cuda", hardware), told);
  EXPECT_EQ(hardware.usable_gpus(), 0);
}

TEST(ChooseDevice, AMissingDriverIsNotAnOldOne) {
  auto hardware = with_gpu();
  hardware.driver.clear();
  hardware.driver_cuda = 0;
  hardware.gpus.clear();
  EXPECT_THAT(refusal("auto", hardware),
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("docker run --gpus all")));
  EXPECT_THAT(refusal("cuda", hardware), HasSubstr("driver 580 or later"));
}

TEST(ChooseDevice, AGpuThatTheBuildHasNoCodeForIsNamed) {
  auto hardware = with_gpu();
  hardware.gpus = {{"NVIDIA GeForce GTX 1080 Ti", 61}, {"NVIDIA H100 80GB HBM3", 90}};
  EXPECT_THAT(refusal("auto", hardware),
              AllOf(HasSubstr("GPU 0 (NVIDIA GeForce GTX 1080 Ti) has compute capability 6.1"),
                    HasSubstr("expected 8.0 or later"), Not(HasSubstr("CMAKE_CUDA_ARCHITECTURES")),
                    HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_EQ(hardware.usable_gpus(), 0);
  std::swap(hardware.gpus[0], hardware.gpus[1]);
  EXPECT_EQ(hardware.usable_gpus(), 1);
  EXPECT_EQ(choose_device({"auto"}, hardware), Device::cuda);
  hardware.code_for = "61,90";
  EXPECT_EQ(hardware.usable_gpus(), 2);
}

TEST(ChooseDevice, ANewerGpuThatTheBuildHasNoCodeForIsNamed) {
  auto hardware = with_gpu();
  hardware.code_for = "90-real";  // a build only for that machine
  hardware.gpus = {{"NVIDIA B200", 100}};
  EXPECT_THAT(refusal("auto", hardware),
              AllOf(HasSubstr("GPU 0 (NVIDIA B200) has compute capability 10.0"),
                    HasSubstr("has code for 90-real only"), HasSubstr("-DCMAKE_CUDA_ARCHITECTURES=100")));
}

TEST(HasCodeFor, MachineCodeIsForItsMajorVersionAndPtxForAllLater) {
  struct Case {
    const char* code_for;
    std::vector<int> runs, not_runs;
  };
  for (const auto& [code_for, runs, not_runs] :
       std::vector<Case>{{"80-real", {80, 86, 89}, {75, 90, 100}},
                         {"86-real", {86, 89}, {80, 90}},
                         {"90-virtual", {90, 100, 103, 120}, {89}},
                         {"90", {90, 100, 121}, {89, 80}},
                         {"80-real,90,100-real,120-real", {80, 86, 89, 90, 100, 103, 120}, {75, 61, 0}},
                         {"90a", {90}, {80, 100}},
                         {"100f-real", {100, 103}, {90, 110, 120}},
                         {"120a-virtual,80-real", {80, 120}, {121, 90}},
                         {"all", {75, 120}, {70}},
                         {"all-major", {75, 121}, {61}},
                         {"", {}, {75, 90}},
                         {"none,9", {}, {8, 90}}}) {
    for (const int capability : runs)
      EXPECT_TRUE(has_code_for(code_for, capability)) << code_for << " " << capability;
    for (const int capability : not_runs)
      EXPECT_FALSE(has_code_for(code_for, capability)) << code_for << " " << capability;
  }
}

TEST(ChooseDevice, AHiddenGpuIsNotLeftIdleUnasked) {
  auto hardware = with_gpu();
  hardware.gpus.clear();
  EXPECT_THAT(refusal("auto", hardware), AllOf(HasSubstr("no GPU"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(ProbeDriverFiles, SeeAnNvidiaGpu) {
  TemporaryFolder none;
  EXPECT_FALSE(probe_driver_files(none / "").nvidia_gpu);
  TemporaryFolder device;
  device.write("dev/nvidia0", "");
  const auto bare = probe_driver_files(device / "");
  EXPECT_TRUE(bare.nvidia_gpu);
  EXPECT_EQ(bare.nvidia_name + bare.driver, "");
}

TEST(ProbeDriverFiles, GiveNameAndDriver) {
  for (const auto* kind :
       {"NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 06:54:38 UTC 2025",
        "NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)"}) {
    TemporaryFolder root;
    root.write("proc/driver/nvidia/version", std::string("NVRM version: ") + kind +
                                                 "\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n");
    root.write("proc/driver/nvidia/gpus/0000:01:00.0/information",
               "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 184\n");
    const auto found = probe_driver_files(root / "");
    EXPECT_TRUE(found.nvidia_gpu);
    EXPECT_EQ(found.nvidia_name, "NVIDIA H100 80GB HBM3");
    EXPECT_EQ(found.driver, "580.65.06");
  }
}

TEST(ChoosePrecision, AutoIsBf16WhereTheProcessorHasIt) {
  InnerConfig inner;
  Hardware hardware;
  EXPECT_EQ(choose_precision(inner, Device::cpu, hardware), Precision::fp32);
  EXPECT_EQ(choose_precision(inner, Device::cuda, hardware), Precision::bf16);
  hardware.bf16_instructions = true;
  EXPECT_EQ(choose_precision(inner, Device::cpu, hardware), Precision::bf16);
  inner.precision = "fp32";
  EXPECT_EQ(choose_precision(inner, Device::cpu, hardware), Precision::fp32);
}

}  // namespace
}  // namespace isthmus::trainer
