// Training steps of one replica, without data and without the outer loop:  bench_step [--device cpu|cuda]
// [--model gpt2|llama] [--layers L] [--dim C] [--heads H] [--vocab V] [--batch B] [--micro-batch M]
// [--seq-len T] [--precision fp32|bf16] [--deterministic] [--threads N] [--steps S] [--rounds R]
// [--peak-tflops P] [--documents]
//
// Prints a line of JSON per round: tokens per second, the loss, and the process's peak memory so far on the
// host (in total, and beyond its use before the model was created) and on a GPU; with --peak-tflops also the
// fraction of that peak which the model's arithmetic reaches. With --on-request it runs a round for each
// line on standard input, so that other programs can be measured alternately with it
// (tests/bench/compare_step.py).

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "isthmus/data/device.h"
#include "isthmus/data/random_batch.h"
#include "isthmus/trainer/device.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {
namespace {

struct Request {
  ModelConfig model;
  InnerConfig inner;
  TrainerConfig trainer;
  std::int64_t vocab = 512, seq_len = 256;
  int steps = 10, rounds = 5;
  double peak_tflops = 0;
  bool on_request = false, on_gpu = false, documents = false;
};

/// A line of /proc/self/status, in bytes.
std::uint64_t memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == name + ":" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

/// Forward and backward, per token: the products of parameters, and those of attention (PaLM, appendix B).
double flops_per_token(const Request& request, double parameters) {
  const auto& model = request.model;
  return 6 * parameters + 12.0 * static_cast<double>(model.layers * model.dim * request.seq_len);
}

void measure(Request request) {
  prepare_process(request.trainer);
  request.model.resolve(request.seq_len);
  const auto memory_of_batch = request.on_gpu ? data::make_cuda_device(0, nullptr) : data::make_cpu_device();
  const data::RandomBatch batch(*memory_of_batch, request.inner.batch, request.seq_len, request.vocab, 1);
  const auto before = memory("VmRSS");
  ReplicaOptions options;
  options.device = request.on_gpu ? Device::cuda : Device::cpu;
  options.inner = request.inner;
  options.precision = request.inner.precision == "bf16" ? Precision::bf16 : Precision::fp32;
  options.longest_sequence = request.seq_len;
  options.trainer = request.trainer;
  if (request.documents) options.separator = 0;
  Replica replica(ParameterTable({request.model, request.vocab}, 1, 1 << 16), options);
  std::string line;
  for (int round = 0; request.on_request ? bool(std::getline(std::cin, line)) : round < request.rounds;
       ++round) {
    const auto begin = std::chrono::steady_clock::now();
    float loss = 0;
    for (int step = 0; step < request.steps; ++step) {
      loss = replica.forward_backward(batch.get());
      replica.inner_step(request.inner.lr);
    }
    static_cast<void>(replica.read({0, 1}));  // waits for the GPU
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const auto tokens = static_cast<double>(request.steps * request.inner.batch * request.seq_len);
    const auto peak = memory("VmHWM");
    const auto parameters = replica.table().parameters();
    fmt::print(
        "{{\"tokens_per_second\": {:.1f}, \"loss\": {:.4f}, \"peak_bytes\": {}, \"model_bytes\": {}, "
        "\"gpu_bytes\": {}, \"parameters\": {}",
        tokens / took.count(), loss, peak, peak - before, peak_gpu_bytes(), parameters);
    if (request.peak_tflops > 0) {
      const auto flops = flops_per_token(request, static_cast<double>(parameters)) * tokens / took.count();
      fmt::print(", \"mfu\": {:.3f}", flops / (request.peak_tflops * 1e12));
    }
    fmt::print("}}\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace isthmus::trainer

int main(int argc, char** argv) {
  isthmus::trainer::Request request;
  request.inner.batch = 8;
  request.inner.lr = 1e-3;
  request.inner.precision = "fp32";
  request.model.qk_norm = false;
  request.model.tie_embeddings = true;
  std::string device = "cpu";
  CLI::App app("training steps of one replica");
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--model", request.model.architecture)->check(CLI::IsMember({"llama", "gpt2"}));
  app.add_option("--layers", request.model.layers)->check(CLI::Range(1, 1000));
  app.add_option("--dim", request.model.dim)->check(CLI::Range(1, 1 << 20));
  app.add_option("--heads", request.model.heads)->check(CLI::Range(1, 1 << 10));
  app.add_option("--vocab", request.vocab)->check(CLI::Range(1, 1 << 16));
  app.add_option("--batch", request.inner.batch)->check(CLI::Range(1, 1 << 16));
  app.add_option("--micro-batch", request.trainer.micro_batch, "sequences at a time; 0: all")
      ->check(CLI::Range(0, 1 << 16));
  app.add_option("--seq-len", request.seq_len)->check(CLI::Range(2, 1 << 20));
  app.add_option("--precision", request.inner.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_flag("--deterministic", request.trainer.deterministic);
  app.add_option("--peak-tflops", request.peak_tflops, "of the device, for mfu")->check(CLI::PositiveNumber);
  app.add_option("--threads", request.trainer.threads)->check(CLI::Range(0, 4096));
  app.add_option("--steps", request.steps, "of a round")->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", request.rounds)->check(CLI::Range(1, 1 << 20));
  app.add_flag("--documents", request.documents,
               "id 0 ends documents, which have --vocab tokens on average: ids are random");
  app.add_flag("--on-request", request.on_request, "a round for each line of standard input");
  CLI11_PARSE(app, argc, argv);
  request.on_gpu = device == "cuda";
  try {
    isthmus::trainer::measure(request);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_step: {}\n", error.what());
    return 1;
  }
}
