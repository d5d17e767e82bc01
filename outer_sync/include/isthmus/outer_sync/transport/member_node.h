#pragma once
// A member on the network: the protocol's state machine under Asio. One io thread owns sockets, timers and
// protocol state; one codec thread reduces the chunks owned here; the caller's thread trains and blocks only
// in the calls that say so.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/round_exchange.h"

namespace isthmus::outer_sync {

struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;  ///< nats per token
  double tokens_per_second = 0;
  double utilization = 0;         ///< 0..1
  std::uint64_t other_bytes = 0;  ///< sent by means other than this node (the data-parallel baseline)
};

class MemberNode final : public RoundExchange {
 public:
  /// Binds `network.listen` (Error(config) naming the address when it is in use) and starts the threads.
  /// The layout and the trace must outlive the node.
  MemberNode(const NetworkConfig& network, const FragmentLayout& layout, protocol::CodecPlan codecs,
             Trace& trace, quant::Lossless lossless = quant::Lossless::none);
  ~MemberNode() override;
  MemberNode(const MemberNode&) = delete;
  MemberNode& operator=(const MemberNode&) = delete;

  /// HOST:PORT that peers dial: `network.advertise`, or the bound listen address.
  [[nodiscard]] std::string advertised() const;

  /// Says hello to the coordinator (whose port may not be open yet) and blocks until all replicas are there.
  /// The address in `hello` is filled in. Returns the step to resume from, 0 for a fresh start. Throws
  /// Error(config) when refused.
  [[nodiscard]] std::uint64_t join(protocol::Hello hello);
  /// Reports where this member stands and blocks until the view begins.
  [[nodiscard]] protocol::View activate(const std::vector<protocol::FragmentState>& fragments,
                                        const Digest& parameters);
  /// This member's position in the view.
  [[nodiscard]] protocol::MemberIndex self() const;

  /// Sends a line to all members, this one included; `announced` blocks until one is there.
  void announce(std::string text);
  [[nodiscard]] std::string announced();

  /// To be asked before each step: false when all members have agreed to stop before it. Blocks while they
  /// agree. Throws Error(network) when the run cannot go on.
  [[nodiscard]] bool may_begin(std::uint64_t step);
  void report(const StepReport& report);
  void report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens);
  /// Asks the coordinator to end the run at a step that all share. Safe from any thread.
  void request_stop(const std::string& reason);
  /// True once the members have agreed to stop early.
  [[nodiscard]] bool stopped_early() const;

  /// Blocks until all members are done; returns what is wrong with the run's result, empty if nothing is.
  [[nodiscard]] std::string done(std::string summary, const Digest& global_hash);
  /// Tells the coordinator that this member cannot go on, and why; waits a moment for it to leave.
  void leave(const std::string& reason) noexcept;

  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes,
                  std::uint64_t weight) override;
  [[nodiscard]] std::optional<RoundResult> wait(FragmentId fragment, protocol::Round round) override;
  void applied(FragmentId fragment, protocol::Round round, const Digest& chain) override;
  void serve_state_from(StateSource source) override;
  void serve() override;
  [[nodiscard]] Reducer& reducer() override;

  struct Wire {
    std::uint64_t payload = 0;  ///< bytes of codec data sent, as packed as they went
    std::uint64_t total = 0;    ///< all bytes sent: data, headers, control
  };
  [[nodiscard]] Wire wire() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::outer_sync
