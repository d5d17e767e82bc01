#pragma once
// A whole run on loopback in one process: a CoordinatorNode and several MemberNodes with outer loops, each on
// its own thread, and the hash with which such a run must end.

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "replicas.h"

namespace isthmus::outer_sync {

struct WorkerResult {
  std::optional<Error> error;
  std::string problem;  ///< the result of `done`
  Digest hash;
  std::uint64_t step = 0;
  bool stopped = false;
  bool joined = false;      ///< whether the run had begun
  std::size_t evicted = 0;  ///< how often it had to copy the state from others
  OuterLoop::Stats stats;
  Gossip::Stats gossip;
  std::vector<float> first_moment;  ///< at the end of the run
  std::uint64_t moment_steps = 0;
  SentBytes wire;
  protocol::MemberIndex self = 0;
  std::promise<void> ended;
};

class NetworkRun : public CoordinatorObserver {
 public:
  /// A number of steps that is never reached.
  static constexpr std::uint64_t for_ever = 1'000'000'000;
  struct Options {
    std::size_t members = 2;              ///< number of trainers
    std::vector<std::string> reducers{};  ///< names of the reducers, in the order of all names
    protocol::TopologyRule topology;
    std::string host = "127.0.0.1";  ///< address at which all processes listen
    std::int64_t lanes = 1;
    std::uint64_t steps = 12;
    double detect_timeout = 30;  ///< seconds; generous, since sanitizers and busy machines are slow
    double heartbeat = 0.1;
    double rtt = 0;
    double join_timeout = 60;
    protocol::ClosingRule closing;  ///< the coordinator gets `least` too
    bool elastic = true;
    /// Minimum duration of a mock step, in seconds. If rounds follow one another faster than heartbeats, no
    /// member can catch up.
    double pace = 0;
    std::filesystem::path certs;  ///< folder with all certificates, by name; empty: no TLS
    /// Newcomers copy the inner optimizer's moments too. Those of worker m start as m and m squared.
    bool moments = false;
    OuterConfig outer;
    FragmentLayout layout;
    Replicas::Table table = random_step;  ///< the mock's training
    Options();
    /// Options of a run with chunks large enough to be packed, which it packs.
    [[nodiscard]] static Options packing();
    /// Options of a run that continues until a test ends it, slowly enough that members can catch up. No
    /// member is lost by silence unless a test waits for that.
    [[nodiscard]] static Options lively(std::size_t members);
  };
  explicit NetworkRun(Options options);
  ~NetworkRun() override;

  // Hooks; set them before `start`. They run on the thread of worker `m`, which serves no state to others
  // while a hook waits.
  std::function<void(std::size_t m, NetworkConfig&)> adjust_network;
  std::function<void(std::size_t m, protocol::Hello&)> adjust_hello;
  std::function<void(std::size_t m, MemberNode&)> before_join;
  std::function<void(std::size_t m, MemberNode&, std::uint64_t step)> before_step;
  /// Take the receipts of each member, on its codec thread. Set them before `start` like the hooks.
  std::vector<protocol::ReceiptSink*> receipts;
  /// Called on the coordinator's thread; an exception counts as a failure to store.
  std::function<void(const protocol::LastView&)> on_store;
  /// Thrown by a hook: destroys the worker's node without a farewell.
  struct Vanish {};
  /// All trainers train up to the end of this step. Hooks may set it to a step that no trainer has reached.
  std::atomic<std::uint64_t> last_step;

  void start();
  void start_coordinator();
  /// Destroys the coordinator without a farewell, at the first heartbeat where rounds commit and `when`
  /// holds; returns when it is gone.
  void kill_coordinator(std::function<bool(const protocol::Coordinator&)> when = {});
  void wait_for_coordinator();
  /// Blocks until a heartbeat where rounds commit and `holds` is true.
  void wait_until(std::function<bool(const protocol::Coordinator&)> holds);
  /// Starts a coordinator at the same address once the previous one has ended, with the same options except
  /// for these two.
  void start_coordinator_again(std::optional<protocol::LastView> last,
                               std::optional<protocol::ViewNumber> recover = {});
  /// The view that the coordinator stored last.
  [[nodiscard]] protocol::LastView stored() const;
  /// Starts one more worker; `m` may be any unused number.
  void start_worker(std::size_t m);
  /// Starts a reducer. It ends with the run.
  void start_reducer(const std::string& name);
  /// Lets the reducer leave politely.
  void let_reducer_leave(const std::string& name);
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
  /// All messages of the coordinators, one per line.
  [[nodiscard]] std::string said() const;
  /// How often the messages so far contain `text`.
  [[nodiscard]] std::size_t times_said(std::string_view text) const;
  /// Blocks until the messages contain `text` this many times.
  void wait_until_said(std::string_view text, std::size_t times = 1) const;
  [[nodiscard]] const std::vector<std::pair<std::uint64_t, double>>& evaluations() const {
    return evaluations_;
  }

  /// The coordinator's judgements of all rounds. Call it after `finish`.
  [[nodiscard]] const std::vector<protocol::RoundJudged>& judged() const { return judged_; }

  /// Hash of the same run without a network and without faults. If `finished` is false, without the final
  /// sync.
  [[nodiscard]] Digest expected_hash(std::uint64_t steps, bool finished = true) const;
  struct ReducerResult {
    std::optional<Error> error;
    std::optional<std::string> problem;  ///< the result of `follow`
    SentBytes wire;
    MemberNode* node = nullptr;  ///< set while it runs
    std::uint64_t incarnation = 0;
  };
  /// Result of a reducer that has ended.
  [[nodiscard]] const ReducerResult& reducer(const std::string& name) const { return *reducers_.at(name); }
  /// Fails the test unless all workers have finished with this hash.
  void expect_end_with(const Digest& expected);
  /// Fails the test unless all workers have finished with the expected hash.
  void expect_good_end() { expect_end_with(expected_hash(options_.steps)); }
  /// Fails the test unless the run ended well and these workers finished, at one step and with equal global
  /// parameters.
  void expect_one_end(const std::vector<std::size_t>& workers);

  [[nodiscard]] NetworkConfig network(std::size_t m) const;
  [[nodiscard]] protocol::Hello hello(std::size_t m) const;
  [[nodiscard]] const FragmentLayout& layout() const { return options_.layout; }
  [[nodiscard]] const OuterConfig& outer() const { return options_.outer; }
  [[nodiscard]] protocol::CodecPlan codecs() const { return codec_plan(options_.outer); }

 private:
  void work(std::size_t m, WorkerResult& result);
  void reduce(const std::string& name, ReducerResult& result);
  void take_part(std::size_t m, MemberNode& node, WorkerResult& result);
  void train(std::size_t m, MemberNode& node, OuterLoop& loop, PlainParameters& local, WorkerResult& result);
  void make_coordinator(NetworkConfig network, const protocol::CoordinatorOptions& options);
  [[nodiscard]] protocol::CoordinatorOptions coordinator_options() const;
  void message(const std::string& text) override;
  void members_changed(const protocol::Coordinator&) override;
  void store(const protocol::LastView& view) override;
  void evaluated(std::uint64_t step, double loss) override { evaluations_.emplace_back(step, loss); }
  void round_judged(const protocol::RoundJudged& round) override {
    const std::lock_guard lock(telling_);
    judged_.push_back(round);
  }

  Options options_;
  std::unique_ptr<CoordinatorNode> coordinator_;
  std::string coordinator_address_;  ///< empty before the first coordinator starts
  protocol::Ended ended_{};
  mutable std::mutex telling_;  ///< guards all members below
  mutable std::condition_variable told_;
  std::string said_;
  protocol::LastView stored_;
  bool coordinator_runs_ = false;
  std::function<bool(const protocol::Coordinator&)> kill_when_, awaited_;
  std::vector<std::pair<std::uint64_t, double>> evaluations_;
  std::vector<protocol::RoundJudged> judged_;
  std::mutex mutex_;  ///< guards the next two members; hooks may start workers
  std::map<std::size_t, std::unique_ptr<WorkerResult>> results_;
  std::map<std::string, std::unique_ptr<ReducerResult>> reducers_;
  std::uint64_t reducer_starts_ = 0;
  std::vector<std::thread> threads_;
};

/// A loopback HOST:PORT that no other process uses, known before a process listens there.
[[nodiscard]] std::string private_address(std::size_t n);

inline constexpr auto for_ever = NetworkRun::for_ever;

}  // namespace isthmus::outer_sync
