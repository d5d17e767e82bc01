// Chooses device and precision from facts alone, without calling libtorch or CUDA.

#include <algorithm>
#include <fstream>
#include <regex>

#include "device/driver_files.h"
#include "isthmus/base/error.h"
#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

namespace {

namespace fs = std::filesystem;

constexpr int oldest_capability = 80;     // the first with bf16 tensor cores
constexpr std::size_t file_limit = 4096;  // the driver's files are shorter

std::string head_of(const fs::path& path) {
  std::string text(file_limit, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

/// The first group of the pattern; empty if it does not match.
std::string find(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

std::string dotted(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }
std::string capability_text(int capability) { return dotted(capability / 10, capability % 10); }
std::string cuda_text(int cuda) { return dotted(cuda / 1000, cuda % 1000 / 10); }

std::string in_brackets(const std::string& name) { return name.empty() ? "" : " (" + name + ")"; }

/// The oldest driver that supports the CUDA that the build needs, according to NVIDIA's release notes.
std::string needed_driver(int cuda) {
  const auto version = "one for CUDA " + cuda_text(cuda) + " or later";
  return cuda / 1000 == 13 ? version + ", which is driver 580 or later" : version;
}

/// Why this build cannot compute on GPU 0, and what to do about it.
struct Obstacle {
  std::string reason, remedy;
};

Obstacle obstacle_of(const Hardware& found) {
  if (!found.built_with_cuda)
    return {"this build has no CUDA",
            "use a build with CUDA (scripts/setup.sh makes one where the CUDA 13 toolkit is installed)"};
  if (found.driver_cuda == 0)
    return {"libtorch can use no GPU here: no NVIDIA driver was found",
            "install its driver (expected " + needed_driver(found.needed_cuda) +
                "), or pass the GPU into the container (docker run --gpus all)"};
  if (found.driver_cuda < found.needed_cuda)
    return {"libtorch can use no GPU here: the NVIDIA driver" + in_brackets(found.driver) +
                " supports CUDA " + cuda_text(found.driver_cuda) + "; expected " +
                needed_driver(found.needed_cuda),
            "update the driver"};
  if (found.gpus.empty())
    return {"libtorch can use no GPU here, though the driver" + in_brackets(found.driver) + " is loaded",
            "check CUDA_VISIBLE_DEVICES and what nvidia-smi lists"};
  const auto& gpu = found.gpus.front();
  const std::string another = "choose another GPU by CUDA_VISIBLE_DEVICES";
  const auto build = "build with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(gpu.capability);
  const bool too_old = gpu.capability < oldest_capability;
  return {"GPU 0" + in_brackets(gpu.name) + " has compute capability " + capability_text(gpu.capability) +
              (too_old ? "; expected " + capability_text(oldest_capability) + " or later"
                       : ", and this build has code for " + found.code_for + " only"),
          too_old ? another : another + ", or " + build};
}

}  // namespace

std::string_view to_string(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }
std::string_view to_string(Precision precision) { return precision == Precision::fp32 ? "fp32" : "bf16"; }

Hardware probe_driver_files(const fs::path& root) {
  Hardware found;
  const auto folder = root / "proc/driver/nvidia";
  std::error_code ignored;
  found.nvidia_gpu = fs::exists(root / "dev/nvidia0", ignored) || fs::exists(folder / "gpus", ignored);
  found.driver = find(head_of(folder / "version"), R"(NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s)");
  for (fs::directory_iterator gpu(folder / "gpus", ignored), end; gpu != end && found.nvidia_name.empty();
       gpu.increment(ignored)) {
    found.nvidia_name = find(head_of(gpu->path() / "information"), R"(Model:\s*([^\n]*\S))");
  }
  return found;
}

bool has_code_for(std::string_view code_for, int capability) {
  if (code_for == "all" || code_for == "all-major")
    return capability >= 75;  // everything that nvcc 13
                              // supports
  static const std::regex form(R"((\d{2,3})([af]?)(-real|-virtual)?)");
  while (!code_for.empty()) {
    const auto end = std::min(code_for.find(','), code_for.size());
    const std::string one(code_for.substr(0, end));
    code_for.remove_prefix(std::min(end + 1, code_for.size()));
    std::smatch match;
    if (!std::regex_match(one, match, form)) continue;
    const int built = std::stoi(match[1]);
    const bool one_major = match[2] == "f" || match[3] == "-real";
    const bool later = capability >= built && (!one_major || capability / 10 == built / 10);
    if (match[2] == "a" ? capability == built : later) return true;
  }
  return false;
}

std::int64_t Hardware::usable_gpus() const {
  if (!built_with_cuda || driver_cuda < needed_cuda) return 0;
  const auto unusable = std::find_if(gpus.begin(), gpus.end(),
                                     [&](const Gpu& gpu) { return !has_code_for(code_for, gpu.capability); });
  return unusable - gpus.begin();
}

Device choose_device(const DeviceConfig& config, const Hardware& hardware) {
  if (config.device == "cpu") return Device::cpu;
  if (hardware.usable_gpus() > 0) return Device::cuda;
  const bool found = hardware.nvidia_gpu || !hardware.gpus.empty();
  if (config.device != "cuda" && !found) return Device::cpu;
  const auto obstacle = obstacle_of(hardware);
  const auto what = config.device == "cuda"
                        ? "device is cuda" + (found ? ", this machine has an NVIDIA GPU" : std::string())
                        : std::string("this machine has an NVIDIA GPU");
  config_error(what + in_brackets(hardware.nvidia_name) + ", but " + obstacle.reason + ". To use it, " +
               obstacle.remedy + "; to train on the CPU, set device: cpu");
}

Precision choose_precision(const InnerConfig& config, Device device, const Hardware& hardware) {
  if (config.precision == "fp32") return Precision::fp32;
  if (config.precision == "bf16") return Precision::bf16;
  return device == Device::cuda || hardware.bf16_instructions ? Precision::bf16 : Precision::fp32;
}

}  // namespace isthmus::trainer
