#pragma once
// The processes of a replica with several ranks. Rank 0 is `isthmus worker`; it starts the others (`isthmus
// rank`) on its own machine, or on another by `replica.reach`, usually ssh, and sends each its setup over a
// pair of sockets, which on another machine are the standard streams of its `isthmus rank`. None outlives
// rank 0: a rank ends when its socket is closed, and on the same machine it is killed when rank 0 is.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/trainer/rank_link.h"
#include "isthmus/trainer/site_replica.h"
#include "run/experiment/experiment.h"
#include "run/process/process.h"
#include "worker/setup/request.h"

namespace isthmus::app {

/// The setup that rank 0 sends to the others.
struct RankSetup {
  Experiment experiment;         ///< of this replica, without sites
  std::filesystem::path folder;  ///< the replica's own
  std::string name;              ///< the replica's
  std::int64_t vocab = 0;
  std::int64_t separator = -1;  ///< as in trainer::ReplicaOptions
  trainer::Device device = trainer::Device::cpu;
  trainer::Precision precision = trainer::Precision::fp32;
  std::string build = {};            ///< of this binary
  std::vector<std::string> program;  ///< command that starts it
};

class RankProcesses {
 public:
  /// Starts ranks 1 to replica.ranks - 1, and sends them the setup. Throws Error(config) if the first of
  /// replica.machines is not this one.
  explicit RankProcesses(const RankSetup& setup);
  /// Gives ranks a moment to end by themselves.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// The links to the ranks; call it once.
  [[nodiscard]] trainer::SiteReplica::Ranks take_ranks();
  /// Which rank has ended, and how; nullopt if all run. Waits a moment for an end to become visible.
  /// Thread-safe.
  [[nodiscard]] std::optional<Error> fate() const;
  [[nodiscard]] const std::vector<Process>& processes() const { return processes_; }

 private:
  struct Fate {
    Fate(const Error& its_error, bool causes) : error(its_error), is_cause(causes) {}
    Error error;
    bool is_cause;  ///< it did not end only because another rank was lost
  };
  [[nodiscard]] std::optional<Fate> fate_now() const;
  [[nodiscard]] std::string advice(std::size_t index, int status) const;

  std::vector<Process> processes_;
  std::vector<std::string> commands_;  ///< that reach their machines; empty for this machine
  trainer::SiteReplica::Ranks ranks_;
  std::jthread keepalive_;  ///< for ranks on other machines
};

/// Watches rank processes on its own thread until it is destroyed.
class RankWatch {
 public:
  /// Calls `lost` once, on that thread, with the rank that has ended and how.
  RankWatch(const RankProcesses& ranks, std::function<void(const Error& fate)> lost);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

 private:
  void watch(std::vector<int> descriptors);

  const RankProcesses& ranks_;
  std::function<void(const Error&)> lost_;
  int wake_;  ///< an eventfd
  std::thread thread_;
};

struct ModelSetup;

/// The ranks of a worker; null if its replica has one rank. Throws Error(config) if there are fewer GPUs than
/// ranks on this machine.
[[nodiscard]] std::unique_ptr<RankProcesses> start_ranks(const Experiment& experiment,
                                                         const ModelSetup& setup,
                                                         const WorkerRequest& request,
                                                         const std::filesystem::path& folder);
/// A replica with these ranks, which must outlive it; null: with one rank.
[[nodiscard]] std::unique_ptr<trainer::Replica> make_replica(const Experiment& experiment,
                                                             const ModelSetup& setup, RankProcesses* ranks);
/// "4 ranks on 2 machines, with parameters averaged every 8 steps"
[[nodiscard]] std::string ranks_text(const trainer::ReplicaConfig& replica);
/// Settings that have no effect, or not the likely one.
[[nodiscard]] std::vector<std::string> notes_on_ranks(const Experiment& experiment);
/// Ends the replica's waits for a rank that is lost. Thread-safe.
void abort_ranks(trainer::Replica& replica);

/// Options of the replica's model, without the rank's own.
[[nodiscard]] trainer::ReplicaOptions replica_options(const Experiment& experiment, trainer::Device device,
                                                      trainer::Precision precision, std::int64_t separator);

/// `isthmus rank`: runs one of the other ranks to its end. `socket`: its end of the pair.
struct RankRequest {
  std::filesystem::path folder;  ///< the replica's
  std::uint32_t rank = 1;
  int socket = -1;  ///< -1: standard input and output
  /// With standard input: the rank ends if rank 0 sends nothing for this long.
  std::chrono::seconds silence{60};
  std::string build = {};  ///< of this binary
};
/// Returns the exit status.
[[nodiscard]] int run_rank(const RankRequest& request);

}  // namespace isthmus::app
