#pragma once
// Lines and rounds of a simulated run: what is contributed, when everybody has the result.

#include <cstdint>
#include <queue>
#include <vector>

#include "isthmus/outer_sync/plan/simulate.h"

namespace isthmus::outer_sync::plan {

/// Something happens to a member; `round` and `piece` where they matter.
struct Event {
  enum class Kind : std::uint8_t {
    step_over,    ///< a replica has computed a step
    contributes,  ///< a piece of its is ready to leave
    sent,         ///< its line outwards is free again
    reduced,      ///< an owner has a piece's result
    has_result,   ///< a place has all of a round's results
  };
  double time;
  std::uint64_t number;  ///< of events at one time the first that was made is first
  Kind kind;
  std::uint32_t member;
  std::uint32_t round = 0, piece = 0;
};

class Events {
 public:
  void add(double time, Event::Kind kind, std::uint32_t member, std::uint32_t round = 0,
           std::uint32_t piece = 0) {
    queue_.push({time, number_++, kind, member, round, piece});
  }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] Event take() {
    const auto event = queue_.top();
    queue_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  std::uint64_t number_ = 0;
};

class Wires {
 public:
  Wires(const Network& network, Events& events);

  /// Rounds are numbered in the order in which they begin.
  std::uint32_t begin_round(const Fragment& fragment);
  void contributes(const Event& event);
  void sent(const Event& event);
  void reduced(const Event& event);

  /// Bytes that a member has sent and received so far, and the most that it has sent in a step's time, per
  /// second.
  struct Traffic {
    double sent = 0, received = 0, peak = 0;
  };
  [[nodiscard]] Traffic traffic(std::uint32_t member) const {
    auto traffic = traffic_[member];
    traffic.received = received_[network_.place[member]];
    return traffic;
  }
  [[nodiscard]] std::size_t places() const { return at_.size(); }
  [[nodiscard]] const std::vector<std::uint32_t>& replicas_at(std::uint32_t place) const {
    return at_[place];
  }

 private:
  struct Item {
    std::uint64_t number;
    std::uint32_t round, piece;
    bool result;
    double bytes;
  };
  struct Later {
    bool operator()(const Item& a, const Item& b) const {
      return a.round != b.round ? a.round > b.round : a.number > b.number;
    }
  };
  struct Line {
    std::priority_queue<Item, std::vector<Item>, Later> waiting;
    bool busy = false;
    Item item{};  ///< what it carries, since `since`
    double since = 0;
    double window_begin = 0, in_window = 0;
  };
  /// Contributions to what the owners at a place have of a piece, or results for the replicas there.
  struct Awaited {
    std::uint32_t missing;
    double latest = 0;
  };
  struct Reduction {
    std::uint32_t place;
    double bytes;  ///< for each owner here, on average
    Awaited contributions;
  };
  struct Round {
    const Fragment* fragment;
    std::vector<double> piece_bytes;                 ///< by piece, of all its owners
    std::vector<std::vector<Reduction>> reductions;  ///< by piece, of places that own something of it
    std::vector<Awaited> results;                    ///< by place
    std::uint32_t without_result;                    ///< places
  };

  void put(std::uint32_t member, Item item, double now);
  void carry_next(std::uint32_t member, double now);
  [[nodiscard]] bool is_alone(std::uint32_t member) const { return at_[network_.place[member]].size() == 1; }
  /// When so many bytes for one replica of a place, which left from `since` to `now`, are there.
  [[nodiscard]] double arrival(std::uint32_t from, std::uint32_t to, double bytes, double since, double now);
  void contributed(std::uint32_t round, std::uint32_t piece, Reduction& reduction, double at);
  void delivered(std::uint32_t round, std::uint32_t place, double at);
  void count(std::uint32_t member, double now);
  [[nodiscard]] static double share_of(const Piece& piece, std::uint32_t member);

  const Network& network_;
  Events& events_;
  std::vector<Line> lines_;
  std::vector<std::vector<std::uint32_t>> at_;  ///< replicas, by place
  std::vector<double> down_free_;               ///< by place, of each replica's line inwards
  std::vector<double> path_free_;               ///< by replica and place
  std::vector<double> received_;                ///< by place, each replica's bytes
  std::vector<Traffic> traffic_;
  std::vector<Round> rounds_;
  std::uint64_t number_ = 0;
};

}  // namespace isthmus::outer_sync::plan
