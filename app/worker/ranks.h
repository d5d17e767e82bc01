#pragma once
// The processes of a replica of several ranks. Rank 0 is `isthmus worker`; it starts the others, which run
// `isthmus rank`, on its own machine. Each has one end of a pair of sockets, over which it gets everything it
// must know. None outlives rank 0: it ends when its socket is closed, and is killed when rank 0 is.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/trainer/rank_link.h"
#include "isthmus/trainer/site_replica.h"
#include "run/experiment.h"
#include "run/process.h"
#include "worker/worker.h"

namespace isthmus::app {

/// What rank 0 knows and the others must.
struct RankSetup {
  Experiment experiment;         ///< of this replica, without sites
  std::filesystem::path folder;  ///< the replica's own
  std::string name;              ///< the replica's
  std::int64_t vocab = 0;
  std::int64_t separator = -1;  ///< as in trainer::ReplicaOptions
  trainer::Device device = trainer::Device::cpu;
  trainer::Precision precision = trainer::Precision::fp32;
  std::vector<std::string> program;  ///< this binary: the first words of a command
};

class RankProcesses {
 public:
  /// Starts ranks 1 to replica.ranks - 1, and tells them the setup.
  explicit RankProcesses(const RankSetup& setup);
  /// Gives those that were told to end a moment for it.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Once: the links to them.
  [[nodiscard]] trainer::SiteReplica::Ranks take_ranks();
  /// Which one has ended, and how; empty where all run. Where one is to have ended it may take a moment to be
  /// seen. Any thread.
  [[nodiscard]] std::string fate() const;
  [[nodiscard]] const std::vector<Process>& processes() const { return processes_; }

 private:
  [[nodiscard]] std::string fate_now() const;

  std::vector<Process> processes_;
  trainer::SiteReplica::Ranks ranks_;
};

/// Watches rank processes from a thread of its own, as long as it lives.
class RankWatch {
 public:
  /// `lost`, on that thread, is told once which rank has ended and how.
  RankWatch(const RankProcesses& ranks, std::function<void(const std::string& fate)> lost);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

 private:
  void watch(std::vector<int> descriptors);

  const RankProcesses& ranks_;
  std::function<void(const std::string&)> lost_;
  int wake_;  ///< an eventfd
  std::thread thread_;
};

struct ModelSetup;

/// Of a worker; null where its replica has one rank. Throws Error(config) where there are fewer GPUs than
/// ranks.
[[nodiscard]] std::unique_ptr<RankProcesses> start_ranks(const Experiment& experiment,
                                                         const ModelSetup& setup,
                                                         const WorkerRequest& request,
                                                         const std::filesystem::path& folder);
/// Of these ranks, which must outlive it; of one rank without.
[[nodiscard]] std::unique_ptr<trainer::Replica> make_replica(const Experiment& experiment,
                                                             const ModelSetup& setup, RankProcesses* ranks);
/// Ends what the replica waits for in a rank that is lost. Any thread.
void abort_ranks(trainer::Replica& replica);

/// Options of the replica's model, but for what a rank's place in it adds.
[[nodiscard]] trainer::ReplicaOptions replica_options(const Experiment& experiment, trainer::Device device,
                                                      trainer::Precision precision, std::int64_t separator);

/// `isthmus rank`: one of the others, to its end. `socket` is its own.
struct RankRequest {
  std::filesystem::path folder;  ///< the replica's
  std::uint32_t rank = 1;
  int socket = -1;
};
/// Exit status.
[[nodiscard]] int run_rank(const RankRequest& request);

}  // namespace isthmus::app
