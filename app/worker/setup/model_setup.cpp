#include "worker/setup/model_setup.h"

#include <algorithm>
#include <vector>

#include "worker/setup/model_hello.h"

namespace isthmus::app {

Hardware::Hardware(const Experiment& experiment, int gpu) {
  trainer::prepare_process(experiment.trainer);
  const auto found = trainer::probe_hardware();
  device = trainer::choose_device(experiment.device, found);
  precision = trainer::choose_precision(experiment.inner, device, found);
  memory = device == trainer::Device::cuda ? data::make_cuda_device(gpu, nullptr) : data::make_cpu_device();
}

ModelSetup::ModelSetup(const Experiment& experiment, const std::optional<data::StreamOptions>& stream)
    : hardware(experiment),
      corpus(stream ? data::Corpus(experiment.data, *stream) : data::Corpus(experiment.data)),
      table({experiment.model, corpus.vocab_size()}, experiment.outer.num_fragments,
            static_cast<std::uint64_t>(experiment.outer.chunk_elements)),
      inference(table, hardware.device, hardware.precision, experiment.data.seq_len, corpus.mask_separator()),
      heldout(corpus, experiment.data.seq_len, experiment.run.eval_sequences, experiment.inner.batch,
              *hardware.memory) {}

outer_sync::protocol::Hello ModelSetup::hello(Experiment& experiment, const std::string& name,
                                              const std::string& build) const {
  return model_hello(experiment, table, corpus.tokenizer_fingerprint(), name, build);
}

trainer::LossSum ModelSetup::evaluate(std::span<const float> parameters, std::uint64_t replica,
                                      std::uint64_t replicas) {
  inference.load(parameters);
  return trainer::evaluate(inference, heldout.share(replica, replicas));
}

double ModelSetup::bytes_per_token(const Experiment& experiment) const {
  constexpr std::uint64_t enough = 1 << 20;
  const auto tokens = std::min(enough, corpus.tokens(data::Split::heldout));
  if (tokens == 0 || experiment.data.tokenizer.starts_with("vocab:")) return 0;
  std::vector<std::int64_t> ids(tokens);
  corpus.read(data::Split::heldout, 0, ids);
  const auto text = corpus.tokenizer().decode(std::vector<std::uint32_t>(ids.begin(), ids.end()));
  return static_cast<double>(text.size()) / static_cast<double>(tokens);
}

}  // namespace isthmus::app
