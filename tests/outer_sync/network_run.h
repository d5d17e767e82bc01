#pragma once
// A whole run on loopback in one process: a CoordinatorNode and several MemberNodes with outer loops, each on
// its own thread, and the hash that such a run must end with.

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/transport/coordinator_node.h"
#include "isthmus/outer_sync/transport/member_node.h"
#include "replicas.h"

namespace isthmus::outer_sync {

struct WorkerResult {
  std::optional<Error> error;
  std::string problem;  ///< that `done` returned
  Digest hash;
  std::uint64_t step = 0;
  bool stopped = false;
  MemberNode::Wire wire;
  protocol::MemberIndex self = 0;
  std::promise<void> ended;
};

class NetworkRun : public CoordinatorObserver {
 public:
  struct Options {
    std::size_t members = 2;
    std::int64_t lanes = 1;
    std::uint64_t steps = 12;
    double detect_timeout = 30;  ///< seconds; generous, since sanitizers and loaded machines are slow
    double rtt = 0;
    double join_timeout = 60;
    OuterConfig outer;
    FragmentLayout layout;
    Options();
    /// Of chunks that are large enough to be packed, and packs them.
    [[nodiscard]] static Options packing();
  };
  explicit NetworkRun(Options options);
  ~NetworkRun() override;

  // Hooks, to be set before `start`; called on the thread of worker `m`.
  std::function<void(std::size_t m, NetworkConfig&)> adjust_network;
  std::function<void(std::size_t m, protocol::Hello&)> adjust_hello;
  std::function<void(std::size_t m, MemberNode&)> before_join;
  std::function<void(std::size_t m, MemberNode&, std::uint64_t step)> before_step;
  /// Thrown by a hook: the worker's node is destroyed without a word.
  struct Vanish {};

  void start();
  void start_coordinator();
  /// One more worker; `m` may be any number that no other has.
  void start_worker(std::size_t m);
  void wait_for_worker(std::size_t m);
  void watch_worker(std::size_t m) {
    start_worker(m);
    wait_for_worker(m);
  }
  /// Blocks until the workers and the coordinator have ended.
  void finish();

  [[nodiscard]] const WorkerResult& result(std::size_t m) const { return *results_.at(m); }
  [[nodiscard]] std::string coordinator_address() const;
  [[nodiscard]] CoordinatorNode& coordinator() { return *coordinator_; }
  [[nodiscard]] const protocol::Ended& ended() const { return ended_; }
  /// All that the coordinator said, one line each; after `finish`.
  [[nodiscard]] std::string said() const;
  [[nodiscard]] const std::vector<std::pair<std::uint64_t, double>>& evaluations() const {
    return evaluations_;
  }

  /// Of the same run without a network.
  [[nodiscard]] Digest expected_hash(std::uint64_t steps) const;
  /// Fails the test unless all workers have finished with the expected hash.
  void expect_good_end();

  [[nodiscard]] NetworkConfig network(std::size_t m) const;
  [[nodiscard]] protocol::Hello hello(std::size_t m) const;
  [[nodiscard]] const FragmentLayout& layout() const { return options_.layout; }
  [[nodiscard]] const OuterConfig& outer() const { return options_.outer; }
  [[nodiscard]] protocol::CodecPlan codecs() const { return codec_plan(options_.outer); }

 private:
  void work(std::size_t m, WorkerResult& result);
  void take_part(std::size_t m, MemberNode& node, WorkerResult& result);
  void message(const std::string& text) override { said_ += text + "\n"; }
  void members_changed(const protocol::Coordinator&) override {}
  void evaluated(std::uint64_t step, double loss) override { evaluations_.emplace_back(step, loss); }

  Options options_;
  std::unique_ptr<CoordinatorNode> coordinator_;
  protocol::Ended ended_{};
  std::string said_;
  std::vector<std::pair<std::uint64_t, double>> evaluations_;
  std::mutex mutex_;  ///< of the two below: hooks may start workers
  std::map<std::size_t, std::unique_ptr<WorkerResult>> results_;
  std::vector<std::thread> threads_;
};

/// A loopback HOST:PORT that no other process uses, known before anybody listens there.
[[nodiscard]] std::string private_address(std::size_t n);

}  // namespace isthmus::outer_sync
