#include "isthmus/trainer/site_replica.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <utility>

#include "device/batch.h"
#include "isthmus/base/checksum.h"
#include "replica/row_balance.h"
#include "replica/shares.h"

namespace isthmus::trainer {

using outer_sync::Range;
using What = RankOrder::What;

namespace {

Range held(const RankGroupOptions& group, std::uint64_t rank, bool zero, std::uint64_t size) {
  return zero ? share_of(rank, group.ranks, size) : Range{0, size};
}

}  // namespace

ReplicaOptions rank_options(ReplicaOptions options, const ParameterTable& table, std::uint64_t rank,
                            std::uint64_t ranks, bool zero) {
  options.shared_gradient = true;
  if (zero) options.share = share_of(rank, ranks, table.buffer_size());
  return options;
}

// ---- rank 0 ----

template <class Body>
auto SiteReplica::watched(const Body& body) const {
  try {
    return body();
  } catch (const Error& error) {
    // Garbage from an aborted exchange may look like a divergence.
    const bool is_aborted = group_ && group_->is_aborted();
    if (is_aborted || error.kind() == ErrorKind::network) explain({ErrorKind::network, error.what()});
    throw;
  }
}

SiteReplica::SiteReplica(const ParameterTable& table, const ReplicaOptions& options, Ranks ranks)
    : Replica(table, rank_options(options, table, 0, ranks.group.ranks, ranks.zero)),
      ranks_(std::move(ranks)),
      separator_(options.separator) {
  assert(ranks_.links.size() + 1 == ranks_.group.ranks);
  watched([&] {
    for (const auto& link : ranks_.links) static_cast<void>(link->answer());  // their models are ready
    order({.what = What::meet});
    group_ = std::make_unique<RankGroup>(ranks_.group);
    sequences_ = group_->sequences();
    share_sequences(sequences_.get());
    give_parameters({0, this->table().buffer_size()});
  });
}

SiteReplica::~SiteReplica() {
  try {
    order({.what = What::end});
  } catch (const Error&) {
    // The other end has ended already.
  }
}

void SiteReplica::explain(const Error& error) const {
  if (const auto fate = ranks_.fate ? ranks_.fate() : std::nullopt) throw Error(*fate);
  throw error;
}

void SiteReplica::order(const RankOrder& order) const {
  for (const auto& link : ranks_.links) link->send(order);
}

Range SiteReplica::held_by(std::uint64_t rank) const {
  return held(ranks_.group, rank, ranks_.zero, table().buffer_size());
}

/// The batch, with each group's rows together. On a GPU attention takes as long with documents as without,
/// and the rows stay in their order.
data::Batch SiteReplica::dealt(data::Batch batch) {
  const auto groups = ranks_.group.ranks / ranks_.group.ranks_per_sequence;
  if (separator_ < 0 || groups == 1 || device() != Device::cpu) return batch;
  rows_.clear();
  for (const auto row : balanced_rows(attention_work(batch, separator_), groups))
    rows_.push_back(batch.rows[row]);
  batch.rows = rows_;
  return batch;
}

void SiteReplica::hand_out_rows(const data::Batch& batch, std::size_t each) {
  for (std::size_t i = 0; i < ranks_.links.size(); ++i) {
    auto& link = *ranks_.links[i];
    const auto rows = batch.rows.subspan((i + 1) / ranks_.group.ranks_per_sequence * each, each);
    std::vector<std::span<const std::byte>> ids;
    at::Tensor on_host;
    if (device() == Device::cpu) {
      for (const auto* row : rows) ids.emplace_back(row, batch.row_bytes());
    } else {
      const auto bytes = static_cast<std::int64_t>(each * batch.row_bytes());
      on_host = at::from_blob(const_cast<std::byte*>(rows.front()), {bytes},
                              at::TensorOptions(at::kByte).device(torch_device(device())))
                    .cpu();
      ids.emplace_back(static_cast<const std::byte*>(on_host.const_data_ptr()),
                       static_cast<std::size_t>(bytes));
    }
    link.send({.what = What::train,
               .average_gradient = ranks_.average_every == 1,
               .sequences = each,
               .seq_len = batch.seq_len,
               .width = batch.width},
              ids);
  }
}

std::size_t SiteReplica::rows_for_each(const data::Batch& batch) const {
  const auto together = ranks_.group.ranks_per_sequence;
  const auto groups = ranks_.group.ranks / together;
  if (batch.rows.size() % groups == 0) return batch.rows.size() / groups;
  config_error("a batch of " + std::to_string(batch.rows.size()) +
               " sequences cannot be divided evenly among " + std::to_string(ranks_.group.ranks) +
               " ranks, " + std::to_string(together) + " for each sequence");
}

float SiteReplica::forward_backward(const data::Batch& batch) {
  const auto ranks = ranks_.group.ranks;
  const auto each = rows_for_each(batch);
  gave_out_gradient_ = false;
  return watched([&] {
    auto own = dealt(batch);
    hand_out_rows(own, each);
    own.rows = own.rows.first(each);
    double loss = Replica::forward_backward(own);
    for (const auto& link : ranks_.links) loss += link->answer().loss;
    if (ranks_.average_every == 1)
      group_->mean(device_gradients());
    else if (sequences_)
      sequences_->mean(device_gradients());
    return static_cast<float>(loss / static_cast<double>(ranks));
  });
}

std::span<float> SiteReplica::gradients() {
  if (ranks_.average_every > 1 && !gave_out_gradient_) {
    watched([&] {
      order({.what = What::average_gradient});
      group_->mean(device_gradients());
    });
  }
  gave_out_gradient_ = true;
  return Replica::gradients();
}

double SiteReplica::inner_step(double lr) {
  const bool same_gradient = ranks_.average_every == 1 || gave_out_gradient_;
  const auto norm = watched([&] {
    order({.what = What::step,
           .answers = !same_gradient,
           .gradient_from_rank_0 = gave_out_gradient_,
           .lr = lr});
    if (gave_out_gradient_) group_->broadcast(device_gradients(), 0);
    gave_out_gradient_ = false;
    const auto own = Replica::inner_step(lr);
    if (ranks_.zero) share_parameters(*this, *group_, ranks_.group);
    group_->settle();  // the result may be sent to other members next
    // Only one of different gradients may be infinite.
    if (!same_gradient)
      for (const auto& link : ranks_.links) static_cast<void>(link->answer());
    return own;
  });
  equal_moments_ = equal_moments_ && same_gradient;
  equal_parameters_ = equal_parameters_ && equal_moments_;
  averaged_.clear();
  if (steps() % ranks_.average_every == 0) average({0, table().buffer_size()});
  return norm;
}

/// Makes the range equal on all ranks, unless it is. Equal values are left alone, because their mean may
/// differ from them in the last bit, and in the synchronous warm-up they are those of other members.
void SiteReplica::average(Range range) {
  const auto contains = [range](Range done) {
    return done.begin <= range.begin && range.end() <= done.end();
  };
  if (equal_parameters_ || std::ranges::any_of(averaged_, contains)) return;
  const auto begin = std::chrono::steady_clock::now();
  watched([&] {
    order({.what = What::average, .range = range});
    average_parameters(*this, *group_, range);
    group_->settle();
  });
  average_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  averaged_.push_back(range);
  equal_parameters_ = range.size == table().buffer_size();
}

void SiteReplica::average_moments_too() {
  if (equal_moments_) return;
  watched([&] {
    order({.what = What::average_moments});
    average_moments(*this, *group_);
    group_->settle();
  });
  equal_moments_ = true;
}

std::span<const float> SiteReplica::read(Range range) {
  average(range);
  return Replica::read(range);
}
std::span<float> SiteReplica::modify(Range range) {
  average(range);
  return Replica::modify(range);
}
std::span<float> SiteReplica::device_values(Range range) {
  average(range);
  return Replica::device_values(range);
}

void SiteReplica::give_parameters(Range range) {
  watched([&] {
    order({.what = What::parameters, .range = range});
    group_->broadcast(Replica::device_values(range), 0);
  });
}
void SiteReplica::modified(Range range) {
  Replica::modified(range);
  give_parameters(range);
}
void SiteReplica::modified_on_device(Range range) {
  Replica::modified_on_device(range);
  give_parameters(range);
}

/// The moments of the whole range, from all ranks that hold a part of it.
SiteReplica::Moments SiteReplica::gather_moments(Range range) const {
  Moments out{std::vector<float>(range.size), std::vector<float>(range.size)};
  const auto part_of = [&](std::vector<float>& values, Range part) {
    return std::span(values).subspan(part.begin - range.begin, part.size);
  };
  // Reading changes no state, though it may fill host memory.
  auto& self = const_cast<SiteReplica&>(*this);
  const auto own = common(range, held_by(0));
  std::ranges::copy(self.Replica::first_moment(own), part_of(out.first, own).begin());
  std::ranges::copy(self.Replica::second_moment(own), part_of(out.second, own).begin());
  if (!ranks_.zero) return out;
  watched([&] {
    order({.what = What::give_moments, .range = range});
    for (std::size_t i = 0; i < ranks_.links.size(); ++i) {
      const auto part = common(range, held_by(i + 1));
      static_cast<void>(ranks_.links[i]->answer());
      ranks_.links[i]->receive_bytes(std::as_writable_bytes(part_of(out.first, part)));
      ranks_.links[i]->receive_bytes(std::as_writable_bytes(part_of(out.second, part)));
    }
  });
  return out;
}

std::span<const float> SiteReplica::first_moment(Range range) {
  if (!ranks_.zero) return Replica::first_moment(range);
  gathered_ = gather_moments(range);
  return gathered_.first;
}
std::span<const float> SiteReplica::second_moment(Range range) {
  if (!ranks_.zero) return Replica::second_moment(range);
  gathered_ = gather_moments(range);
  return gathered_.second;
}

void SiteReplica::set_moments(Range range, std::span<const float> first, std::span<const float> second) {
  const auto cut = [&](std::span<const float> values, Range part) {
    return values.subspan(part.begin - range.begin, part.size);
  };
  if (!ranks_.zero) {
    Replica::set_moments(range, first, second);
    return watched([&] {
      order({.what = What::take_moments, .range = range});
      give_moments(*this, *group_, range);
    });
  }
  watched([&] {
    for (std::size_t i = 0; i < ranks_.links.size(); ++i) {
      const auto part = common(range, held_by(i + 1));
      const std::array moments = {std::as_bytes(cut(first, part)), std::as_bytes(cut(second, part))};
      ranks_.links[i]->send({.what = What::take_moments, .range = range}, moments);
    }
  });
  const auto own = common(range, held_by(0));
  Replica::set_moments(own, cut(first, own), cut(second, own));
}

void SiteReplica::set_steps(std::uint64_t steps) {
  watched([&] { order({.what = What::steps, .steps = steps}); });
  Replica::set_steps(steps);
}

void SiteReplica::forget_moments() {
  watched([&] { order({.what = What::forget}); });
  Replica::forget_moments();
  equal_moments_ = true;
}

void SiteReplica::copy_state(ReplicaState& state) {
  average({0, table().buffer_size()});
  average_moments_too();
  Replica::copy_state(state);
  watched([&] {
    order({.what = What::checksum});
    const auto own = crc32c(std::as_bytes(std::span(state.parameters)));
    for (std::size_t i = 0; i < ranks_.links.size(); ++i) {
      if (ranks_.links[i]->answer().parameters == own) continue;
      throw Error(ErrorKind::divergence, "the parameters of rank " + std::to_string(i + 1) +
                                             " are not those of rank 0 at inner step " +
                                             std::to_string(state.steps));
    }
  });
  if (!ranks_.zero) return;
  auto moments = gather_moments({0, table().buffer_size()});
  state.first_moment = std::move(moments.first);
  state.second_moment = std::move(moments.second);
}

void SiteReplica::restore(const ReplicaState& state) {
  const Range all{0, table().buffer_size()};
  Replica::restore(state);  // restores the moments of this rank's share
  give_parameters(all);
  set_moments(all, state.first_moment, state.second_moment);
  set_steps(state.steps);
  equal_parameters_ = equal_moments_ = true;
}

}  // namespace isthmus::trainer
