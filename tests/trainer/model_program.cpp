// Runs a model in Hugging Face's layout for transformers_test.py:
//
//   model_program logits FOLDER OUT ID ...
//       prints the logits of the token after the ids, one per line, and writes the model to the folder OUT
//   model_program train FOLDER BATCHES SEQUENCES LENGTH LR WEIGHT_DECAY CLIP OPTIMIZER
//       prints the loss of each step, one per line. BATCHES: u16 ids, SEQUENCES rows of LENGTH + 1 per step

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "isthmus/trainer/evaluate.h"
#include "isthmus/trainer/pretrained.h"
#include "isthmus/trainer/replica.h"

using namespace isthmus;
using namespace isthmus::trainer;

namespace {

using Words = std::vector<std::string>;

ParameterTable table_of(const std::string& folder) { return {read_pretrained_shape(folder).model, 2, 65536}; }

int print_logits(const Words& words) {
  const auto table = table_of(words[1]);
  const auto parameters = read_pretrained(words[1], table);
  std::vector<std::int64_t> ids;
  for (std::size_t i = 3; i < words.size(); ++i) ids.push_back(std::stoll(words[i]));
  const auto longest = static_cast<std::int64_t>(ids.size());
  write_pretrained(words[2], table, parameters, {.seq_len = longest, .separator = 0});
  Inference inference(table, Device::cpu, Precision::fp32, longest);
  inference.load(parameters);
  for (const auto logit : inference.next_logits(ids)) std::printf("%.9g\n", static_cast<double>(logit));
  return 0;
}

int print_losses(const Words& words) {
  std::ifstream file(words[2], std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  const auto sequences = std::stoul(words[3]);
  ReplicaOptions options;
  options.longest_sequence = std::stoll(words[4]);
  const double lr = std::stod(words[5]);
  options.inner.weight_decay = std::stod(words[6]);
  options.inner.clip = std::stod(words[7]);
  options.inner.optimizer = words[8];
  options.trainer.init_from = words[1];
  Replica replica(table_of(words[1]), options);
  data::Batch batch;
  batch.seq_len = options.longest_sequence;
  batch.together = true;
  std::vector<const std::byte*> rows(sequences);
  const auto step_bytes = sequences * batch.row_bytes();
  for (std::size_t step = 0; (step + 1) * step_bytes <= bytes.size(); ++step) {
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data()) + step * step_bytes;
    for (std::size_t r = 0; r < sequences; ++r) rows[r] = begin + r * batch.row_bytes();
    batch.rows = rows;
    std::printf("%.9g\n", static_cast<double>(replica.forward_backward(batch)));
    replica.inner_step(lr);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  prepare_process({.threads = 1, .deterministic = false});
  try {
    if (words.size() > 3 && words[0] == "logits") return print_logits(words);
    if (words.size() == 9 && words[0] == "train") return print_losses(words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_program: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr,
               "usage: model_program logits FOLDER OUT ID ... | train FOLDER BATCHES SEQUENCES LENGTH LR "
               "WEIGHT_DECAY CLIP\n");
  return 2;
}
