#pragma once
// The audit records of a run (audit.jsonl of all members), put in order: the journal of the member under
// audit, and the receipts of all owners. Reading trusts nothing: lines of another form are skipped and
// counted.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "run/audit/audit_lines.h"

namespace isthmus::app {

using AuditEvent = std::variant<AuditTrained, AuditApplied, AuditSpeeds, AuditSnapshot>;

/// A member's doings between two of its checkpoints, without a gap.
struct AuditInterval {
  std::string member;
  AuditCheckpoint begin, end;
  std::vector<AuditEvent> events = {};
  std::optional<AuditSpeeds> speeds = {};  ///< in force at the beginning
  MachineTraits machine = {};
  /// Rounds applied in it.
  [[nodiscard]] std::uint64_t rounds() const;
};

/// Takes a trainer's lines in their order, and cuts them at its checkpoints.
class Journal {
 public:
  void add(const AuditLine& line) {
    std::visit([this](const auto& of_kind) { take(of_kind); }, line);
  }
  /// Intervals between successive checkpoints with reported digests, in which the member did not copy the
  /// state of others.
  [[nodiscard]] const std::vector<AuditInterval>& intervals() const { return intervals_; }

 private:
  /// From a snapshot to the next one.
  struct Part {
    std::uint64_t step = 0;
    MachineTraits machine;
    std::optional<AuditSpeeds> speeds;
    std::vector<AuditEvent> events;
    std::optional<AuditCheckpoint> checkpoint = {};
  };

  void take(const AuditStart& line);
  void take(const AuditTrained& line) { add_event(line); }
  void take(const AuditApplied& line) { add_event(line); }
  void take(const AuditSpeeds& line);
  void take(const AuditSnapshot& line);
  void take(const AuditCheckpoint& line);
  void take(const AuditReceipts&) {}
  void add_event(AuditEvent event);
  void go_back_to(std::uint64_t step);
  void collect(std::vector<Part>::iterator end);

  std::vector<Part> parts_;
  std::vector<AuditInterval> intervals_;
  bool started_ = false;
  std::string member_;
  MachineTraits machine_;
  std::optional<AuditSpeeds> speeds_;
};

/// One interval instead of several that follow each other.
[[nodiscard]] AuditInterval joined(std::span<const AuditInterval> intervals);

/// Indices of intervals with these numbers of rounds, drawn at random until they have this share of all
/// rounds; at least one, if there is any.
[[nodiscard]] std::vector<std::size_t> draw_intervals(const std::vector<std::uint64_t>& rounds, double share,
                                                      std::uint64_t seed);

/// Whether a folder of this name has the member's own records: NAME, or NAME.1 for those of a process before.
[[nodiscard]] bool is_folder_of(const std::string& member, const std::string& folder);

/// Passes on the lines of a file. Returns how many were of another form. Throws Error(data) naming the file
/// if it cannot be read.
std::uint64_t read_audit_file(const std::filesystem::path& file, const std::function<void(AuditLine)>& take);

/// Receipts of owners, and what the ledger of each member has for a round.
class Receipts {
 public:
  void add(const std::string& owner, AuditReceipts line);
  void add(const std::string& member, const AuditApplied& line);
  struct LedgerGap {
    std::uint64_t missing = 0;              ///< samples that all these ledgers lack
    std::vector<std::string> members = {};  ///< with ledgers that lack some
    std::string complete = {};  ///< a member with all of them in its ledger: one of the records is false
    [[nodiscard]] bool is_sure() const { return !members.empty() && complete.empty(); }
    [[nodiscard]] bool is_doubtful() const { return !members.empty() && !complete.empty(); }
  };
  /// The samples that the ledgers of other members lack for the round with this chain hash. Ledgers of other
  /// histories of the run do not count, nor those in which the contents of the round are unknown.
  [[nodiscard]] LedgerGap gap_in_ledgers(const std::string& member, outer_sync::FragmentId fragment,
                                         std::uint64_t round, const Digest& chain,
                                         const SampleSet& samples) const;

  /// One chunk in a line of an owner's records. Valid as long as nothing is added.
  struct Found {
    const std::string* owner = nullptr;
    const AuditReceipts* line = nullptr;
    std::size_t chunk = 0;  ///< index in the line
    /// Null: the line has no contribution of this member.
    [[nodiscard]] const AuditReceived* from(const std::string& member) const;
  };
  /// Lines about the contributions that this result was made of. They are one owner's, unless a round was
  /// repeated with the same result, or a member claims to have received what it has not.
  [[nodiscard]] std::vector<Found> find(outer_sync::FragmentId fragment, outer_sync::ChunkId chunk,
                                        std::uint64_t round, const Digest& result) const;

  struct Line {
    std::string owner;
    AuditReceipts receipts;
  };
  [[nodiscard]] const std::deque<Line>& lines(outer_sync::FragmentId fragment, std::uint64_t round) const;

 private:
  /// By round and fragment. A line takes about as much memory as its text in the file.
  std::map<std::pair<std::uint64_t, outer_sync::FragmentId>, std::deque<Line>> lines_;
  struct Ledger {
    std::string member;
    ShortDigest chain = 0;
    SampleSet samples;
  };
  std::map<std::pair<std::uint64_t, outer_sync::FragmentId>, std::vector<Ledger>> ledgers_;
};

}  // namespace isthmus::app
