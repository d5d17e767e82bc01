#pragma once
// Members on a simulated network: time is a number, chance comes from one seed, so a run repeats exactly.
// Lanes delay, reorder and duplicate what they carry; when one breaks, what is on it is lost or not, at
// random.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/round_exchange.h"

namespace isthmus::outer_sync::protocol {

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed);
  /// Runs until nothing is left to happen; the first broken rule, or empty.
  [[nodiscard]] std::string run();
  [[nodiscard]] std::string describe() const;

  struct Totals {
    std::size_t breaks = 0, lost = 0, repeated = 0, duplicates = 0;
  };
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  struct Lane {
    bool up = false;
    std::uint64_t generation = 0;  ///< of the connection; messages of an older one are lost
  };
  struct Replica {
    std::unique_ptr<Member> member;
    std::unique_ptr<Reducer> reducer;
    std::vector<Round> sent, applied;  ///< by fragment
    std::map<std::pair<ChunkId, Round>, int> reductions;
  };
  using Results = std::vector<SharedBytes>;

  std::uint64_t chance(std::uint64_t n) { return random_bits(seed_, 0, counter_++) % n; }
  void at(std::uint64_t delay, std::function<void()> event);
  void fail(const std::string& what);
  SharedBytes contribution(MemberIndex m, ChunkId chunk, Round round);
  [[nodiscard]] std::vector<float> values(MemberIndex m, ChunkId chunk, Round round) const;
  [[nodiscard]] Bytes expected(ChunkId chunk, Round round) const;
  Lane& lane(MemberIndex a, MemberIndex b, ChunkId chunk);

  void train(MemberIndex m, FragmentId p);
  void act(MemberIndex m);
  void carry(MemberIndex from, MemberIndex to, ChunkId chunk, const std::function<void()>& arrive);
  void reduce(MemberIndex m, const Reduce& job);
  void deliver(MemberIndex m, const Deliver& round);
  void connect(MemberIndex a, MemberIndex b, std::size_t lane_index);
  void disturb();
  void check_memory();
  void check_end();

  struct Event {
    std::uint64_t time, order;
    std::function<void()> happen;
    friend bool operator>(const Event& a, const Event& b) {
      return std::pair(a.time, a.order) > std::pair(b.time, b.order);
    }
  };

  std::uint64_t seed_, counter_ = 0, now_ = 0, order_ = 0;
  std::size_t members_, lanes_;
  Round rounds_;
  std::size_t disturbances_;
  FragmentLayout layout_;
  CodecPlan codecs_;
  std::vector<MemberIndex> owners_;
  std::vector<Replica> replicas_;
  std::map<std::tuple<MemberIndex, MemberIndex, std::size_t>, Lane> links_;
  std::map<std::pair<FragmentId, Round>, std::pair<Results, std::size_t>> delivered_;
  std::vector<std::weak_ptr<const Bytes>> made_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::string problem_;
  Totals totals_;
};

}  // namespace isthmus::outer_sync::protocol
