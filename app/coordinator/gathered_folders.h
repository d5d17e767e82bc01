#pragma once
// What members write for people, in the coordinator's run folder: RUN/MEMBER/metrics.jsonl, as the member has
// it, and gathered.log, what it has said (worker.log is all output of a process, where a launch has that).
// They share the disk with coordinator.state, without which no view begins. So each member has a limit (at
// half of it metrics.jsonl ends; at a quarter gathered.log becomes gathered.log.old and begins anew), all
// together have one, and some room is left whatever fills the disk.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "isthmus/base/append_file.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::app {

class GatheredFolders {
 public:
  using Say = std::function<void(const std::string&)>;
  using Free = std::function<std::uint64_t()>;  ///< bytes on the disk that are free
  /// Left to whatever else writes on that disk.
  static constexpr std::uint64_t min_free_bytes = 64'000'000;
  /// So many members may take all of their limit.
  static constexpr std::uint64_t max_folders_over_limit = 16;

  /// `fresh`: files that were gathered of another run are moved aside. `limit`: bytes of one member.
  /// `stopped` is told why there is no room for anybody's lines, once until there is. `free`: null for the
  /// disk's.
  GatheredFolders(std::filesystem::path run, bool fresh, std::uint64_t limit, Say say, Say stopped,
                  Free free = nullptr);

  /// Appends what has come. False where the member works in that folder itself, or it cannot be written to:
  /// nothing of that member is wanted. What there is no room for is left out, which is said once for several
  /// in a row: it is in the member's own files. Never throws for that.
  [[nodiscard]] bool keep(const outer_sync::protocol::Gathered& news);

 private:
  struct Place {
    std::uint64_t incarnation = 0;
    std::filesystem::path folder;
    /// None where the member works in that folder itself.
    std::unique_ptr<AppendFile> metrics, log;
    bool metrics_are_full = false;  ///< which was said
  };
  [[nodiscard]] bool has_room();
  void append(Place& place, const outer_sync::protocol::Gathered& news);
  void append_metrics(Place& place, const std::string& member, const std::string& line);
  void append_log(Place& place, const std::string& line);
  void append_to(AppendFile& file, const std::string& line);
  [[nodiscard]] Place open(const std::string& member, std::uint64_t incarnation, bool seen_before);

  const std::filesystem::path run_;
  const bool fresh_;
  const std::uint64_t limit_;
  Say say_, stopped_;
  Free free_;
  std::uint64_t taken_ = 0;              ///< bytes, of all members
  bool is_full_ = false;                 ///< which was said
  std::map<std::string, Place> places_;  ///< by member
};

}  // namespace isthmus::app
