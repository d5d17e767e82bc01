#pragma once
// A member's trainer side. All functions run on the caller's thread (contribute() also on that of a
// hand-over, outer_state.h), which shares state with the io thread. Calls that need an answer block; all
// others return at once.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "net/member/network_side.h"
#include "net/member/shared_state.h"

namespace isthmus::outer_sync::transport {

/// Owns no sockets and no protocol state: it passes calls to the network side and waits for results in the
/// shared state. Functions without a comment are documented at MemberNode.
class TrainerSide {
 public:
  /// `reject`: measure the contributions' norms. All arguments must outlive it.
  TrainerSide(const NetworkConfig& network, bool reject, SharedState& meet, NetworkSide& side);

  // ---- the run ----

  /// Call before anything else; does not wait for the answer.
  void say_hello(protocol::Hello hello);
  /// Waits for the answer to the hello.
  [[nodiscard]] Admission admission();
  void activate(const std::vector<protocol::FragmentState>& fragments, const Digest& parameters,
                const protocol::Ledger& ledger, SampleSet trained, const protocol::Settings& settings);
  [[nodiscard]] bool is_paused(std::uint64_t step);
  [[nodiscard]] bool may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach);
  [[nodiscard]] std::shared_ptr<const protocol::Settings> settings() const;
  [[nodiscard]] std::optional<std::string> drains() const;
  [[noreturn]] void give_up(const std::string& reason);
  [[nodiscard]] std::string announced();
  void report(const StepReport& report);
  [[nodiscard]] bool checkpoint_due(std::uint64_t step);
  [[nodiscard]] bool reaches_coordinator() const;
  void report_checkpoints(std::vector<protocol::CheckpointId> checkpoints);
  void audited(const protocol::Audit& audit);
  [[nodiscard]] std::string done(std::string summary, const Digest& global_hash);
  /// Safe from any thread.
  void leave(const std::string& reason);

  [[nodiscard]] protocol::View view() const;
  [[nodiscard]] protocol::MemberIndex self() const;
  [[nodiscard]] Rank rank() const;
  [[nodiscard]] Participation participation() const;
  [[nodiscard]] std::optional<protocol::Finished> finished() const;
  [[nodiscard]] std::optional<std::uint64_t> stops_at() const;
  [[nodiscard]] double reference_speed() const;
  [[nodiscard]] std::uint64_t common_checkpoint() const;
  [[nodiscard]] bool stopped_early() const;
  [[nodiscard]] std::uint64_t agreed_step() const;

  // ---- rounds ----

  [[nodiscard]] SampleRange next_samples(std::uint64_t most);
  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples);
  [[nodiscard]] Awaited wait(FragmentId fragment, protocol::Round round, bool can_train_on);

  // ---- serving the state ----

  void serve_state_from(RoundExchange::StateSource source);
  void serve();

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// Reads a value that the io thread may change.
  template <class Value>
  [[nodiscard]] Value read(Value SharedState::*value) const {
    const std::lock_guard lock(shared_.mutex);
    return shared_.*value;
  }
  // Called under the lock:
  void throw_if_ended() const;
  void serve_requests(Lock& lock);
  void serve_the_last(Lock& lock);

  const NetworkConfig network_;
  const bool reject_;
  SharedState& shared_;
  NetworkSide& side_;
  std::string name_;
  RoundExchange::StateSource state_source_;  ///< guarded by the shared state's mutex
};

}  // namespace isthmus::outer_sync::transport
