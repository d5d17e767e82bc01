#pragma once
// `isthmus certs`: the certificates of a run.

#include <filesystem>
#include <string>

namespace isthmus::app {

/// Of `--role`.
inline constexpr const char* role_help =
    "what it may be in the run: trainer (which may also reduce and observe), reducer or observer; empty: "
    "trainer, "
    "or what the names coordinator and operator say";

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

/// Makes `name` that of this process, whatever it is but the coordinator: `certs` is then its own folder.
/// Throws Error(config) for a name that it may not have.
void take_replica_name(const std::string& name, std::string& certs);

}  // namespace isthmus::app
