#pragma once
// The member of `bench outer`: a MemberNode, and timings of its exchange with the outer loop.

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/engine/round_exchange.h"
#include "participant/membership.h"

namespace isthmus::app {

/// Forwards everything to a member, and measures what the outer loop cannot measure itself.
class MeasuredExchange final : public outer_sync::RoundExchange {
 public:
  using Clock = std::chrono::steady_clock;
  using ChunkId = outer_sync::ChunkId;
  using FragmentId = outer_sync::FragmentId;
  using Round = outer_sync::protocol::Round;

  MeasuredExchange(outer_sync::RoundExchange& exchange, const outer_sync::FragmentLayout& layout)
      : exchange_(exchange), layout_(layout) {}

  double waiting = 0;   ///< seconds
  double applying = 0;  ///< seconds from taking a result until it has been applied
  std::uint64_t late = 0;
  std::vector<double> fragment_seconds;  ///< from first contribution to result, for each round taken

  void contribute(ChunkId chunk, Round round, outer_sync::protocol::SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples) override {
    begun_.try_emplace({layout_.fragment_of(chunk), round}, Clock::now());
    exchange_.contribute(chunk, round, std::move(bytes), weight, samples);
  }
  outer_sync::Awaited wait(FragmentId fragment, Round round, bool can_train_on) override {
    const auto asked = Clock::now();
    auto found = exchange_.wait(fragment, round, can_train_on);
    taken_ = Clock::now();
    waiting += seconds(taken_ - asked);
    const auto begun = begun_.find({fragment, round});
    if (!found.result || begun == begun_.end()) return found;
    late += found.result->came > asked ? 1 : 0;
    fragment_seconds.push_back(seconds(found.result->came - begun->second));
    begun_.erase(begun);
    return found;
  }
  void applied(FragmentId fragment, Round round, const Digest& chain,
               std::vector<SampleRange> samples) override {
    exchange_.applied(fragment, round, chain, std::move(samples));
    applying += seconds(Clock::now() - taken_);
  }
  [[nodiscard]] bool begin_exchange(FragmentId fragment, std::uint64_t step) override {
    return exchange_.begin_exchange(fragment, step);
  }
  void exchange(ChunkId chunk, std::uint64_t step, const outer_sync::protocol::SharedBytes& bytes,
                std::uint64_t weight) override {
    exchange_.exchange(chunk, step, bytes, weight);
  }
  void end_exchange(FragmentId fragment, std::uint64_t step) override {
    exchange_.end_exchange(fragment, step);
  }
  [[nodiscard]] std::optional<outer_sync::protocol::Exchanged> take_exchanged(FragmentId fragment,
                                                                              std::uint64_t step) override {
    return exchange_.take_exchanged(fragment, step);
  }
  void checked(const outer_sync::protocol::StateDigest& reported) override { exchange_.checked(reported); }
  void serve_state_from(StateSource source) override { exchange_.serve_state_from(std::move(source)); }
  void serve() override { exchange_.serve(); }
  [[nodiscard]] std::uint64_t agreed_step() const override { return exchange_.agreed_step(); }
  [[nodiscard]] std::shared_ptr<const outer_sync::protocol::Settings> settings() const override {
    return exchange_.settings();
  }
  [[noreturn]] void give_up(const std::string& reason) override {
    exchange_.give_up(reason);
    throw outer_sync::Evicted(reason);  // never reached; g++ 12 does not see that
  }
  [[nodiscard]] outer_sync::Reducer& reducer() override { return exchange_.reducer(); }

 private:
  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  outer_sync::RoundExchange& exchange_;
  const outer_sync::FragmentLayout& layout_;
  std::map<std::pair<FragmentId, Round>, Clock::time_point> begun_;
  Clock::time_point taken_{};
};

class BenchMember final : public NodeMembership {
 public:
  BenchMember(const Experiment& experiment, const outer_sync::FragmentLayout& layout, Trace& trace)
      : NodeMembership(experiment, layout, trace), measured(node(), layout) {}
  [[nodiscard]] outer_sync::RoundExchange& exchange() override { return measured; }

  MeasuredExchange measured;
};

}  // namespace isthmus::app
