#pragma once
// What members write for people, in the coordinator's run folder: RUN/MEMBER/metrics.jsonl, as the member has
// it, and gathered.log, what it has said (worker.log is all output of a process, where a launch has that).
// They share the disk with coordinator.state, so each member has a limit: metrics.jsonl ends at half of it,
// and gathered.log, at a quarter, becomes gathered.log.old and begins anew.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "isthmus/base/append_file.h"
#include "isthmus/outer_sync/protocol/coordinator.h"

namespace isthmus::app {

class GatheredFolders {
 public:
  using Say = std::function<void(const std::string&)>;
  /// `fresh`: files that were gathered of another run are moved aside. `limit`: bytes of one member.
  GatheredFolders(std::filesystem::path run, bool fresh, std::uint64_t limit, Say say);

  /// Appends what has come. False where the member works in that folder itself, or it cannot be written to:
  /// nothing of that member is wanted. What cannot be written is said, once for several in a row, and left
  /// out: it is in the member's own files. Never throws for that.
  [[nodiscard]] bool keep(const outer_sync::protocol::Gathered& news);

 private:
  struct Place {
    std::uint64_t incarnation = 0;
    std::filesystem::path folder;
    /// None where the member works in that folder itself.
    std::unique_ptr<AppendFile> metrics, log;
    bool metrics_are_full = false;  ///< which was said
  };
  void append(Place& place, const outer_sync::protocol::Gathered& news) const;
  void append_metrics(Place& place, const std::string& member, const std::string& line) const;
  void append_log(Place& place, const std::string& line) const;
  [[nodiscard]] Place open(const std::string& member, std::uint64_t incarnation, bool seen_before);

  const std::filesystem::path run_;
  const bool fresh_;
  const std::uint64_t limit_;
  Say say_;
  std::map<std::string, Place> places_;  ///< by member
};

}  // namespace isthmus::app
