#include "worker/training/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "isthmus/base/time.h"
#include "isthmus/outer_sync/core/address.h"
#include "run/process/free_port.h"
#include "worker/training/inner_rate.h"

namespace isthmus::app {

namespace {

using StepClock = std::chrono::steady_clock;

}  // namespace

void Training::join_gloo() {
  auto& node = parts_.node;
  const auto own_host = outer_sync::parse_address(node.advertised(), "network.advertise").host;
  const auto now = node.status();
  std::optional<std::string> own;
  if (now.self == 0) own = outer_sync::Address{own_host, free_port()}.to_string();
  const auto store = outer_sync::parse_address(node.announced(own), "the address of the Gloo store");
  gloo_.emplace(trainer::GlooOptions{.store_host = store.host,
                                     .store_port = store.port,
                                     .listen_host = own_host,
                                     .rank = now.self,
                                     .world = static_cast<int>(now.view->members.size())});
}

// ---- batches ----

void Training::begin() {
  const auto now = parts_.node.status();
  // Without a view this replica was evicted a moment ago, and notices it before its first step.
  own_.emplace(now.in_view() ? now.view->members.at(now.self).slot : 0, sequences_);
  auto& source = parts_.experiment.data.is_stream() ? static_cast<data::SampleSource&>(*own_) : samples_;
  loader_.emplace(parts_.setup.corpus, loader_options(parts_.experiment), source,
                  *parts_.setup.hardware.memory, parts_.trace);
}

void Training::end() {
  data_wait_seconds_ = data_wait_seconds();
  loader_.reset();
}

double Training::data_wait_seconds() const {
  return data_wait_seconds_ + (loader_ ? loader_->waited_seconds() : 0);
}

// ---- steps ----

InnerStep Training::step() {
  const auto& experiment = parts_.experiment;
  auto& outer = parts_.participant.outer();
  const auto step = outer.step() + 1;
  const double averaged_before = gloo_seconds_;
  const auto& batch = loader_->next();
  newest_ = static_cast<std::uint64_t>(batch.sequences());
  InnerStep made;
  made.tokens = newest_ * static_cast<std::uint64_t>(batch.seq_len);
  made.samples = batch.samples;
  made.lr = inner_rate(experiment, step, ramp_steps_);
  double compute = 0;
  float loss = 0;
  {
    const data::DeviceTimeline::Scope scope(parts_.timeline, "train",
                                            "{\"step\":" + std::to_string(step) + "}");
    const auto begin = StepClock::now();
    loss = parts_.replica.forward_backward(batch);
    compute += seconds_since(begin);
  }
  if (outer.synchronous()) average_gradients(made.tokens, batch.samples);
  {
    const data::DeviceTimeline::Scope scope(parts_.timeline, "inner_step");
    const auto begin = StepClock::now();
    made.grad_norm = parts_.replica.inner_step(*made.lr);
    compute += seconds_since(begin);
  }
  if (const auto spike = loss_watch_.add(loss)) {
    ++loss_spikes_;
    parts_.say(
        fmt::format("the loss of step {} is {:.4g}; it was {:.4g} recently ({:.0f} standard deviations)",
                    step, spike->loss, spike->usual, spike->deviations));
  }
  made.data_step = (sequences_ + newest_) / this->batch();
  made.loss = loss;
  made.loss_spikes = loss_spikes_;
  made.compute_seconds = compute;
  made.waited_seconds = gloo_seconds_ - averaged_before;
  made.data_wait_seconds = data_wait_seconds();
  made.all_reduce_seconds = gloo_seconds_;
  made.rank_average_seconds = parts_.replica.rank_average_seconds();
  made.all_reduce_bytes = all_reduce_bytes();
  return made;
}

void Training::count_step() {
  sequences_ += newest_;
  ++ramp_steps_;
}

void Training::average_gradients(std::uint64_t tokens, std::span<const SampleRange> samples) {
  const auto gradients = parts_.replica.gradients();
  if (!gloo_) {
    if (!parts_.experiment.outer.data_parallel())
      parts_.participant.outer().average_gradients(gradients, tokens, samples);
    return;
  }
  const auto begin = StepClock::now();
  const Trace::Scope scope(parts_.trace, Trace::Row::train, "all_reduce");
  gloo_->mean(gradients);
  gloo_seconds_ += seconds_since(begin);
}

// ---- state ----

void Training::took_state() {
  if (parts_.experiment.join.moments()) return;
  parts_.replica.forget_moments();
  ramp_steps_ = 0;
}

void Training::count_from_start() {
  const auto stored = parts_.setup.corpus.stored_sequences(parts_.experiment.data.seq_len);
  sequences_ = std::max(sequences_, stored.value_or(parts_.participant.outer().step() * batch()));
}

void Training::restore(const LoopState& state) {
  sequences_ = state.sequences;
  ramp_steps_ = state.ramp_steps;
}

SampleSet Training::pending_samples() const {
  if (parts_.experiment.outer.data_parallel()) return first_of_all_tracks();
  return parts_.participant.outer().pending_samples();
}

/// A data-parallel run has no rounds, so its ledger follows from the count of sequences.
outer_sync::protocol::Ledger Training::ledger() const {
  if (!parts_.experiment.outer.data_parallel()) return parts_.node.ledger();
  outer_sync::protocol::Ledger ledger(1);
  ledger.front().add(first_of_all_tracks().ranges());
  return ledger;
}

SampleSet Training::first_of_all_tracks() const {
  SampleSet out;
  for (std::int64_t track = 0; track < parts_.experiment.replicas; ++track)
    out.add({static_cast<std::uint64_t>(track), 0, sequences_});
  return out;
}

}  // namespace isthmus::app
