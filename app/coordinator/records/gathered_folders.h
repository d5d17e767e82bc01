#pragma once
// Gathers the members' metrics and logs in the coordinator's run folder: RUN/MEMBER/metrics.jsonl, a copy of
// the member's file, event files with its curves, gathered.log, its messages, and with run.audit audit.jsonl.
// The files share the disk with coordinator.state, without which no view begins. So each member has a limit
// (metrics.jsonl and event files end at three quarters of it, gathered.log is rotated to gathered.log.old at
// an eighth; audit.jsonl may take as much again), all members share a limit, and some space stays free.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "isthmus/base/append_file.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/metrics/curves.h"

namespace isthmus::app {

class GatheredFolders {
 public:
  using Say = std::function<void(const std::string&)>;
  using Free = std::function<std::uint64_t()>;  ///< bytes on the disk that are free
  /// Left free for other files on the disk.
  static constexpr std::uint64_t min_free_bytes = 64'000'000;
  /// The limit of all members together, in limits of one member.
  static constexpr std::uint64_t max_folders_over_limit = 16;

  /// `fresh`: move files of an earlier run aside. `limit`: bytes of one member. `stopped` gets the reason
  /// when there is no room for more lines, once until there is room again. `free`: null to ask the disk.
  GatheredFolders(std::filesystem::path run, bool fresh, std::uint64_t limit, Say say, Say stopped,
                  Free free = nullptr);

  /// Appends the lines of a member. Returns false if the member works in that folder itself, or if the folder
  /// cannot be written to; lines of that member are then not wanted. Drops lines for which there is no room,
  /// and reports that once for several in a row; the member's own files have them. Never throws for that.
  [[nodiscard]] bool keep(const outer_sync::protocol::Gathered& news);

 private:
  struct Place {
    std::uint64_t incarnation = 0;
    std::filesystem::path folder;
    /// Null if the member works in that folder itself.
    std::unique_ptr<AppendFile> metrics, log;
    std::unique_ptr<AppendFile> audit;  ///< null before the first record for audits
    std::unique_ptr<Curves> curves;     ///< of all incarnations, so that they write one file
    /// The newest lines that an earlier coordinator kept: their member may send them again.
    std::set<std::string> known, known_audit;
    bool metrics_are_full = false, audit_is_full = false;  ///< and that was reported
  };
  [[nodiscard]] bool has_room();
  void append(Place& place, const outer_sync::protocol::Gathered& news);
  void append_metrics(Place& place, const std::string& member, const std::string& line);
  void append_audit(Place& place, const std::string& member, const std::string& line);
  void add_to_curves(Place& place, const nlohmann::ordered_json& line);
  void append_log(Place& place, const std::string& line);
  void append_to(AppendFile& file, const std::string& line);
  /// `before`: the place of its previous incarnation, or null.
  [[nodiscard]] Place open(const std::string& member, std::uint64_t incarnation, Place* before);

  const std::filesystem::path run_;
  const bool fresh_;
  const std::uint64_t limit_;
  Say say_, stopped_;
  Free free_;
  std::uint64_t taken_ = 0;              ///< bytes, of all members
  bool is_full_ = false;                 ///< and that was reported
  std::map<std::string, Place> places_;  ///< by member
};

}  // namespace isthmus::app
