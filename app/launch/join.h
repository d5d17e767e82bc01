#pragma once
// `isthmus certs invite` and `isthmus join`: a machine that has only the binary joins a run.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "worker/worker.h"

namespace isthmus::app {

struct InviteRequest {
  std::filesystem::path folder;  ///< parent folder of the runs' certificates
  std::string run, name;
  std::string coordinator;  ///< HOST:PORT, or several separated by commas
  std::string expires = "24h";
  int days = 365;
  std::string role;  ///< empty: trainer
  bool json = false;
};

struct JoinRequest {
  std::string token;             ///< the token, a file with it, or `-` for a line of standard input
  std::filesystem::path folder;  ///< for certificate and config; empty: certs/RUN/NAME
  std::string data, site, listen, advertise;
  std::vector<std::string> assignments;
  bool reduce_only = false, only_enrol = false, quiet = false;
};

/// Prints the token. Throws Error(config) or Error(data).
int run_invite(const InviteRequest& request);

/// Enrols, unless the folder has a certificate already, then runs `train` or a reducer. `train` may be empty.
/// Returns the exit status. Throws what they throw, and Error(network) if the coordinator rejects the
/// machine.
int run_join(JoinRequest request, const std::function<int(WorkerRequest)>& train, const std::string& build,
             const std::vector<std::string>& program);

void add_invite(CommandLine& commands, CLI::App& certs);
/// `train`: as in add_worker.
void add_join(CommandLine& commands, std::function<int(WorkerRequest)> train);

}  // namespace isthmus::app
