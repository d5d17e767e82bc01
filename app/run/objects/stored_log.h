#pragma once
// A round log in an object store. Objects cannot grow, so each file of the log is stored as segments, named
// FILE/BEGIN-LENGTH-HASH after their first byte, their length and the start of their SHA-256. So a restarted
// process knows which bytes are stored, even if the file was truncated.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "isthmus/base/object_store.h"

namespace isthmus::app {

struct LogSegment {
  std::uint64_t begin = 0, length = 0;
  std::string hash = {};  ///< 16 hexadecimal digits
  std::string key = {};
};

using LogSegments = std::map<std::uint64_t, LogSegment>;  ///< by first byte

struct StoredLogFile {
  LogSegments segments;           ///< the longest of each beginning
  std::vector<std::string> keys;  ///< of all objects
};

/// Copies a log's folder to the store, only what is new. One thread calls.
class StoredLog {
 public:
  /// `prefix`: of all keys, with a slash at its end.
  StoredLog(ObjectStore& store, std::string prefix, std::filesystem::path folder);
  /// Copies what the files have now. Returns false if `stopped` gave up. Throws as ObjectStore does.
  [[nodiscard]] bool copy(const ObjectStore::Stopped& stopped);

 private:
  void learn();
  static void forget_other_bytes(const std::filesystem::path& file, LogSegments& segments);
  [[nodiscard]] bool copy_file(const std::filesystem::path& file, StoredLogFile& stored,
                               const ObjectStore::Stopped& stopped);
  void remove_others(StoredLogFile& stored);

  ObjectStore& store_;
  std::string prefix_;
  std::filesystem::path folder_;
  bool known_ = false;
  std::map<std::string, StoredLogFile> files_;  ///< by name; the segments have the bytes of the file
};

/// Fetches a log into a folder, replacing an earlier copy there. Returns its number of bytes; 0
/// without a log. Throws as ObjectStore does, and Error(data) if segments are missing or damaged.
std::uint64_t fetch_log(ObjectStore& store, const std::string& prefix, const std::filesystem::path& folder);

}  // namespace isthmus::app
