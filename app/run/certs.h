#pragma once
// `isthmus certs`: the certificates of a run.

#include <filesystem>
#include <string>

#include "run/experiment.h"

namespace isthmus::app {

/// Of `--role`.
inline constexpr const char* role_help =
    "role in the run: trainer (may also reduce and observe), reducer or observer; by default trainer, or the "
    "role of the names coordinator and operator";

struct CertsRequest {
  bool json = false;
  enum class Task { init, issue, revoke };
  Task task = Task::init;
  std::filesystem::path folder;  ///< that has a folder for each run
  std::string run, name;
  int days = 0;
  std::string role;  ///< of `issue`; the usual one of the name if empty
};

/// Returns the exit status. Throws Error(config) or Error(data).
int run_certs(const CertsRequest& request);

/// The folder of the certificate of process `name`: `certs` itself if there is one in it, else certs/`name`.
/// Empty if `certs` is.
[[nodiscard]] std::string own_certificates(const std::string& certs, const std::string& name);

/// By what this process shows in its run who it is: `network.certs` becomes its own folder of certificates,
/// or `network.secret`, where there are none, the file of the run's secret.
void take_identity(const std::string& name, Experiment& experiment);
/// The same for a process that is neither the coordinator nor an operator. Throws Error(config) for a name
/// that it may not have.
void take_replica_name(const std::string& name, Experiment& experiment);

/// In a run's folder.
inline constexpr const char* secret_file = "run.secret";

}  // namespace isthmus::app
