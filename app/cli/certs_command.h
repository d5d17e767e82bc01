#pragma once
// `isthmus certs`: the certificates of a run.

#include <filesystem>
#include <string>

namespace isthmus::app {

struct CertsRequest {
  bool json = false;
  enum class Task { init, issue, revoke };
  Task task = Task::init;
  std::filesystem::path folder;  ///< parent folder of the runs' certificates
  std::string run, name;
  int days = 0;
  std::string role;  ///< for `issue`; empty: the default role of the name
};

/// Returns the exit status. Throws Error(config) or Error(data).
int run_certs(const CertsRequest& request);

}  // namespace isthmus::app
