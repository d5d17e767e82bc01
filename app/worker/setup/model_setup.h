#pragma once
// Shared by worker and observer: the machine, the data, the model's table, and the evaluation of global
// parameters on held-out text.

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "isthmus/data/corpus.h"
#include "isthmus/data/device.h"
#include "isthmus/data/heldout.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/trainer/device.h"
#include "isthmus/trainer/evaluate.h"
#include "isthmus/trainer/parameter_table.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct Hardware {
  trainer::Device device;
  trainer::Precision precision;
  std::unique_ptr<data::Device> memory;

  /// `gpu`: if it computes on a GPU, this one becomes the thread's current one.
  explicit Hardware(const Experiment& experiment, int gpu = 0);
};

struct ModelSetup {
  Hardware hardware;
  data::Corpus corpus;
  trainer::ParameterTable table;
  trainer::Inference inference;
  data::HeldOut heldout;

  /// `stream`: given if the data is a stream.
  explicit ModelSetup(const Experiment& experiment,
                      const std::optional<data::StreamOptions>& stream = std::nullopt);

  /// The first message to the coordinator, as a trainer.
  [[nodiscard]] outer_sync::protocol::Hello hello(Experiment& experiment, const std::string& name,
                                                  const std::string& build) const;
  /// Loss of these flat parameters over one replica's share of the held-out sequences.
  [[nodiscard]] trainer::LossSum evaluate(std::span<const float> parameters, std::uint64_t replica = 0,
                                          std::uint64_t replicas = 1);
  /// Mean bytes of text per held-out token; 0 if tokens are not text.
  [[nodiscard]] double bytes_per_token(const Experiment& experiment) const;
};

}  // namespace isthmus::app
