#pragma once
// Links and rounds of a simulated run: computes when contributions arrive and when all replicas have the
// result.

#include <cstdint>
#include <queue>
#include <vector>

#include "isthmus/outer_sync/plan/simulate.h"

namespace isthmus::outer_sync::plan {

/// An event at a member; `round` and `piece` are set where they matter.
struct Event {
  enum class Kind : std::uint8_t {
    step_over,    ///< a replica has computed a step
    contributes,  ///< one of its pieces is ready to be sent
    sent,         ///< its upload link is free again
    reduced,      ///< an owner has a piece's result
    has_result,   ///< a place has all of a round's results
  };
  double time;
  std::uint64_t number;  ///< order of creation, by which simultaneous events are handled
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

  /// Rounds are numbered from 0 in the order in which they begin.
  std::uint32_t begin_round(const Fragment& fragment);
  void contributes(const Event& event);
  void sent(const Event& event);
  void reduced(const Event& event);

  /// Bytes that a member has sent and received so far, and its maximum send rate over one step's time, in
  /// bytes per second.
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
    Item item{};  ///< being sent since `since`
    double since = 0;
    double window_begin = 0, in_window = 0;
  };
  /// Missing contributions to the part of a piece that one place owns, or missing results for the replicas of
  /// a place.
  struct Awaited {
    std::uint32_t missing;
    double latest = 0;
  };
  struct Reduction {
    std::uint32_t place;
    double bytes;  ///< average for each owner at the place
    Awaited contributions;
  };
  struct Round {
    const Fragment* fragment;
    std::vector<double> piece_bytes;                 ///< by piece: bytes for all its owners
    std::vector<std::vector<Reduction>> reductions;  ///< by piece: places that own a part of it
    std::vector<Awaited> results;                    ///< by place
    std::uint32_t without_result;                    ///< number of places
  };

  void put(std::uint32_t member, Item item, double now);
  void carry_next(std::uint32_t member, double now);
  [[nodiscard]] bool is_alone(std::uint32_t member) const { return at_[network_.place[member]].size() == 1; }
  /// When `bytes` for one replica of place `to`, sent from `since` to `now`, have arrived there.
  [[nodiscard]] double arrival(std::uint32_t from, std::uint32_t to, double bytes, double since, double now);
  void contributed(std::uint32_t round, std::uint32_t piece, Reduction& reduction, double at);
  void delivered(std::uint32_t round, std::uint32_t place, double at);
  void count(std::uint32_t member, double now);
  [[nodiscard]] static double share_of(const Piece& piece, std::uint32_t member);

  const Network& network_;
  Events& events_;
  std::vector<Line> lines_;
  std::vector<std::vector<std::uint32_t>> at_;  ///< by place: its replicas
  std::vector<double> down_free_;               ///< by place: when each replica's download link is free
  std::vector<double> path_free_;               ///< by replica and place: when the path is free
  std::vector<double> received_;                ///< by place: bytes that each replica has received
  std::vector<Traffic> traffic_;
  std::vector<Round> rounds_;
  std::uint64_t number_ = 0;
};

}  // namespace isthmus::outer_sync::plan
