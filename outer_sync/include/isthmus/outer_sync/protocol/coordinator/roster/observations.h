#pragma once
// The reports of members that the coordinator keeps: rates, chain hashes, evaluations, records. Coordinator
// owns these containers; none of them decides about membership.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/reports.h"

namespace isthmus::outer_sync::protocol {

/// A member's rates over the last seconds, from its heartbeats.
class RateMeter {
 public:
  void add(Time now, std::uint64_t bytes_sent, std::uint64_t step);
  [[nodiscard]] double bytes_per_second() const { return bytes_per_second_; }
  /// Agreed steps, including waits.
  [[nodiscard]] double steps_per_second() const { return steps_per_second_; }

 private:
  Time since_{};                 ///< the rates are measured from this time,
  std::uint64_t from_byte_ = 0;  ///< this number of bytes sent,
  std::uint64_t from_step_ = 0;  ///< and this step
  double bytes_per_second_ = 0, steps_per_second_ = 0;
};

/// The chain hashes that members report, of the newest rounds of each fragment.
class ChainReports {
 public:
  struct Conflict {
    std::string other;  ///< the member that reported another hash first
    std::size_t fragment = 0;
    Round round = 0;
  };
  using Fragments = std::vector<std::pair<Round, std::uint64_t>>;  ///< as in Heartbeat
  [[nodiscard]] std::optional<Conflict> add(const std::string& name, const Fragments& reported);
  /// The first of these that is not the members' hash of the round; nullopt if none differs.
  [[nodiscard]] std::optional<Conflict> first_other(const Fragments& reported) const;
  /// Call when a view begins: rounds of older views may have been undone.
  void clear() { points_.clear(); }

 private:
  static constexpr std::size_t max_rounds = 8;  ///< only the newest few can be reported by several members
  struct Point {
    std::uint64_t prefix;
    std::string by;
  };
  std::map<std::size_t, std::map<Round, Point>> points_;  ///< by fragment
};

/// Evaluations of which every member computes a share.
class Evaluations {
 public:
  struct Complete {
    std::uint64_t step;
    double loss;  ///< nats per token
  };
  /// Returns whether the share is new.
  bool add(const std::string& name, const EvalReport& report);
  /// Removes and returns the evaluations for which no member `is_missing`, given those that have reported.
  [[nodiscard]] std::vector<Complete> take_complete(
      const std::function<bool(const std::vector<std::string>& by)>& is_missing);
  void clear() { open_.clear(); }

 private:
  static constexpr std::size_t max_open = 16;  ///< of steps that some members have not reached
  struct Open {
    double sum_nats = 0;
    std::uint64_t tokens = 0;
    std::vector<std::string> by;
  };
  std::map<std::uint64_t, Open> open_;  ///< by step
};

/// Which records of each member are stored. Outlives the members' connections.
class GatheredRecords {
 public:
  struct News {
    std::uint64_t left_out = 0;  ///< records before these that the member could not keep until they were sent
    std::vector<Record> records;
  };
  /// Returns the records that are new, in order; empty if none are.
  [[nodiscard]] std::optional<News> add(const MemberInfo& member, const Records& records);
  /// Number of the first record of `member` that is not stored.
  [[nodiscard]] std::uint64_t next(const MemberInfo& member) const;

 private:
  struct UpTo {
    std::uint64_t incarnation = 0, next = 0;
  };
  std::map<std::string, UpTo> up_to_;  ///< by name
};

/// Members that are left out of views for a while because they cannot reach another one, or broke the
/// protocol; each time for longer. With both ends of a broken path in it, a view would stall again and again.
class Bars {
 public:
  /// From 6 to 24 times `unit`, twice as long as the last time.
  void add(const std::string& name, Time now, Time unit);
  [[nodiscard]] bool contains(const std::string& name, Time now) const;
  /// The first of these members whose time is over and was not reported so before.
  [[nodiscard]] std::optional<std::string> take_over(
      Time now, const std::function<bool(const std::string&)>& is_member);

 private:
  struct Bar {
    Time until{}, length{};
  };
  std::map<std::string, Bar> bars_;  ///< kept after they are over, for their length
};

}  // namespace isthmus::outer_sync::protocol
