#pragma once
// A replica of several ranks, which run as threads. Like a process, each has its own model, socket and place
// in the group.

#include <sys/socket.h>
#include <cstdlib>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "isthmus/base/error.h"
#include "isthmus/trainer/site_replica.h"
#include "small_model.h"
#include "temporary_folder.h"

namespace isthmus::trainer {

/// Disables c10d's record of collectives: a process has only one, which several ranks in the same process may
/// not use at once. No program has ranks as threads. Must be set before any use of c10d.
inline const int without_recorder = setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

/// Rank 0's replica; the other ranks run on threads.
class SiteOnThreads {
 public:
  SiteOnThreads(std::uint32_t ranks, bool zero, ReplicaOptions options = small_options(),
                std::uint32_t ranks_per_sequence = 1, const ParameterTable& table = small_table(),
                std::uint64_t average_every = 1) {
    options.inner.clip = 0.05;  // clips at every step
    SiteReplica::Ranks leader{.links = {},
                              .group = {.store = folder_ / "store",
                                        .rank = 0,
                                        .ranks = ranks,
                                        .ranks_per_sequence = ranks_per_sequence,
                                        .timeout = std::chrono::seconds(30)},
                              .zero = zero,
                              .average_every = average_every,
                              .fate = {}};
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      leader.links.push_back(std::make_unique<RankLink>(ends[0]));
      auto group = leader.group;
      group.rank = rank;
      threads_.emplace_back([=, end = ends[1]] { follow(end, group, zero, options, table); });
    }
    replica_ = std::make_unique<SiteReplica>(table, options, std::move(leader));
  }
  ~SiteOnThreads() {
    replica_.reset();
    for (auto& thread : threads_) thread.join();
  }
  SiteOnThreads(const SiteOnThreads&) = delete;
  SiteOnThreads& operator=(const SiteOnThreads&) = delete;

  SiteReplica& operator*() { return *replica_; }
  SiteReplica* operator->() { return replica_.get(); }

 private:
  static void follow(int socket, const RankGroupOptions& group, bool zero, ReplicaOptions options,
                     const ParameterTable& table) {
    try {
      RankLink link(socket);
      options.seed += group.rank;  // its initial parameters must not matter
      const auto memory = data::make_cpu_device();
      Replica replica(table, rank_options(options, table, group.rank, group.ranks, zero));
      follow_rank_0(link, replica, group, zero, *memory);
    } catch (const Error&) {
      // Rank 0 reports it.
    }
  }

  TemporaryFolder folder_;
  std::vector<std::thread> threads_;
  std::unique_ptr<SiteReplica> replica_;
};

}  // namespace isthmus::trainer
