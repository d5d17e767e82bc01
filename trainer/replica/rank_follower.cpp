// The other ranks' side of site_replica.h.

#include <functional>
#include <optional>

#include "isthmus/base/checksum.h"
#include "isthmus/trainer/site_replica.h"
#include "replica/shares.h"

namespace isthmus::trainer {

using outer_sync::Range;
using What = RankOrder::What;

namespace {

/// Ids that rank 0 has sent, on this rank's device.
class ReceivedBatch {
 public:
  explicit ReceivedBatch(data::Device& memory) : memory_(memory) {}

  const data::Batch& take(RankLink& link, const RankOrder& order) {
    batch_.width = order.width;
    batch_.seq_len = order.seq_len;
    batch_.together = true;
    const auto bytes = order.sequences * batch_.row_bytes();
    if (bytes != bytes_) {
      host_ = memory_.host_buffer(bytes);
      device_ = memory_.device_buffer(bytes);
      bytes_ = bytes;
    }
    link.receive_bytes({host_->data(), bytes});
    device_->fill(*host_, bytes);
    rows_.clear();
    for (std::size_t i = 0; i < order.sequences; ++i)
      rows_.push_back(device_->data() + i * batch_.row_bytes());
    batch_.rows = rows_;
    return batch_;
  }
  void release() { device_->release(); }

 private:
  data::Device& memory_;
  std::size_t bytes_ = 0;
  std::unique_ptr<data::HostBuffer> host_;
  std::unique_ptr<data::DeviceBuffer> device_;
  std::vector<const std::byte*> rows_;
  data::Batch batch_;
};

class Follower {
 public:
  Follower(RankLink& link, Replica& replica, const RankGroupOptions& group, bool zero, data::Device& memory)
      : link_(link), replica_(replica), options_(group), zero_(zero), ids_(memory) {}

  void run() {
    link_.send(RankAnswer{});  // the model is ready
    for (;;) {
      const auto order = link_.order();
      if (order.what == What::end) return;
      follow(order);
    }
  }

 private:
  void follow(const RankOrder& order) {
    switch (order.what) {
      case What::meet:
        group_.emplace(options_);
        sequences_ = group_->sequences();
        return replica_.share_sequences(sequences_.get());
      case What::train:
        return train(order);
      case What::step:
        return step(order);
      case What::average_gradient:
        return group_->mean(replica_.device_gradients());
      case What::average:
        return average_parameters(replica_, *group_, order.range);
      case What::average_moments:
        return average_moments(replica_, *group_);
      case What::parameters:
        return take_parameters(order.range);
      case What::give_moments:
        return give_moments(order.range);
      case What::take_moments:
        return take_moments(order.range);
      case What::steps:
        return replica_.set_steps(order.steps);
      case What::forget:
        return replica_.forget_moments();
      case What::checksum:
        return link_.send(RankAnswer{.parameters = crc32c(std::as_bytes(replica_.parameters()))});
      case What::here:
      case What::end:
        return;
    }
    throw Error(ErrorKind::network,
                "rank 0 sent an invalid order: " + std::to_string(static_cast<std::uint32_t>(order.what)));
  }

  void train(const RankOrder& order) {
    RankAnswer answer;
    reporting([&] {
      answer.loss = replica_.forward_backward(ids_.take(link_, order));
      ids_.release();
    });
    link_.send(answer);
    if (order.average_gradient)
      group_->mean(replica_.device_gradients());
    else if (sequences_)
      sequences_->mean(replica_.device_gradients());
  }

  void step(const RankOrder& order) {
    if (order.gradient_from_rank_0) group_->broadcast(replica_.device_gradients(), 0);
    if (!order.answers) {
      static_cast<void>(replica_.inner_step(order.lr));
      if (zero_) share_parameters(replica_, *group_, options_);
      return;
    }
    reporting([&] { static_cast<void>(replica_.inner_step(order.lr)); });
    link_.send(RankAnswer{});
  }

  /// Rank 0 expects an answer: it gets the error instead.
  void reporting(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      link_.send_failure({error.kind(), "rank " + std::to_string(options_.rank) + ": " + error.what()});
      throw;
    }
  }

  void take_parameters(Range range) {
    group_->broadcast(replica_.device_values(range), 0);
    replica_.modified_on_device(range);
  }

  [[nodiscard]] Range held(Range range) const {
    const auto size = replica_.table().buffer_size();
    return zero_ ? common(range, share_of(options_.rank, options_.ranks, size)) : range;
  }
  void give_moments(Range range) {
    link_.send(RankAnswer{});
    link_.send_bytes(std::as_bytes(replica_.first_moment(held(range))));
    link_.send_bytes(std::as_bytes(replica_.second_moment(held(range))));
  }
  void take_moments(Range range) {
    if (!zero_) return trainer::give_moments(replica_, *group_, range);
    const auto own = held(range);
    std::vector<float> first(own.size), second(own.size);
    link_.receive_bytes(std::as_writable_bytes(std::span(first)));
    link_.receive_bytes(std::as_writable_bytes(std::span(second)));
    replica_.set_moments(own, first, second);
  }

  RankLink& link_;
  Replica& replica_;
  const RankGroupOptions& options_;
  bool zero_;
  ReceivedBatch ids_;
  std::optional<RankGroup> group_;
  std::unique_ptr<RankGroup> sequences_;
};

}  // namespace

void follow_rank_0(RankLink& link, Replica& replica, const RankGroupOptions& group, bool zero,
                   data::Device& memory) {
  Follower(link, replica, group, zero, memory).run();
}

}  // namespace isthmus::trainer
