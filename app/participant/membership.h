#pragma once
// A run as a Participant sees it: a MemberNode in programs, a fake in tests. The participant's thread makes
// all calls.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// The functions without a comment are those of MemberNode.
class Membership {
 public:
  virtual ~Membership() = default;
  /// For the outer loop.
  [[nodiscard]] virtual outer_sync::RoundExchange& exchange() = 0;
  [[nodiscard]] virtual outer_sync::NodeStatus status() const = 0;

  [[nodiscard]] virtual outer_sync::Admission join(outer_sync::protocol::Hello hello) = 0;
  /// Enters the first view with the state of this loop.
  virtual void activate(outer_sync::OuterLoop& outer, const outer_sync::protocol::Ledger& ledger,
                        SampleSet trained) = 0;
  virtual void catch_up(outer_sync::OuterLoop& outer) = 0;
  [[nodiscard]] virtual bool is_paused(std::uint64_t step) = 0;
  [[nodiscard]] virtual bool may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach) = 0;
  [[nodiscard]] virtual bool checkpoint_due(std::uint64_t step) = 0;
  virtual void request_checkpoint(const std::string& reason) = 0;
  virtual void report(const outer_sync::StepReport& report) = 0;
  virtual void report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens) = 0;
  [[nodiscard]] virtual std::string done(std::string summary, const Digest& global_hash) = 0;
  virtual void leave(const std::string& reason) noexcept = 0;
};

class NodeMembership : public Membership {
 public:
  /// Throws Error(config) if the address is in use. The layout and the trace must outlive it.
  NodeMembership(const Experiment& experiment, const outer_sync::FragmentLayout& layout, Trace& trace,
                 outer_sync::MemberOptions options = {});

  [[nodiscard]] outer_sync::MemberNode& node() { return node_; }

  [[nodiscard]] outer_sync::RoundExchange& exchange() override { return node_; }
  [[nodiscard]] outer_sync::NodeStatus status() const override { return node_.status(); }
  [[nodiscard]] outer_sync::Admission join(outer_sync::protocol::Hello hello) override;
  void activate(outer_sync::OuterLoop& outer, const outer_sync::protocol::Ledger& ledger,
                SampleSet trained) override;
  void catch_up(outer_sync::OuterLoop& outer) override { node_.catch_up(outer); }
  [[nodiscard]] bool is_paused(std::uint64_t step) override { return node_.is_paused(step); }
  [[nodiscard]] bool may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach) override {
    return node_.may_begin(step, end, reach);
  }
  [[nodiscard]] bool checkpoint_due(std::uint64_t step) override { return node_.checkpoint_due(step); }
  void request_checkpoint(const std::string& reason) override { node_.request_checkpoint(reason); }
  void report(const outer_sync::StepReport& report) override { node_.report(report); }
  void report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens) override {
    node_.report_evaluation(step, sum_nats, tokens);
  }
  [[nodiscard]] std::string done(std::string summary, const Digest& global_hash) override {
    return node_.done(std::move(summary), global_hash);
  }
  void leave(const std::string& reason) noexcept override { node_.leave(reason); }

 private:
  outer_sync::MemberNode node_;
};

}  // namespace isthmus::app
