#pragma once
// What members write for people, in the coordinator's run folder: RUN/MEMBER/metrics.jsonl, as the member has
// it, and gathered.log, what it has said (worker.log is all output of a process, where a launch has that).

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
  /// `fresh`: files that were gathered of another run are moved aside.
  GatheredFolders(std::filesystem::path run, bool fresh, Say say);

  /// Appends what has come. False where the member works in that folder itself, or it cannot be written to:
  /// nothing of that member is wanted. What cannot be written is said, once for several in a row, and left
  /// out: it is in the member's own files. Never throws for that.
  [[nodiscard]] bool keep(const outer_sync::protocol::Gathered& news);

 private:
  struct Place {
    std::uint64_t incarnation = 0;
    /// None where the member works in that folder itself.
    std::unique_ptr<AppendFile> metrics, log;
  };
  [[nodiscard]] Place open(const std::string& member, std::uint64_t incarnation, bool seen_before);

  const std::filesystem::path run_;
  const bool fresh_;
  Say say_;
  std::map<std::string, Place> places_;  ///< by member
};

}  // namespace isthmus::app
