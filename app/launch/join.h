#pragma once
// `isthmus certs invite` and `isthmus join`: how a machine that has nothing but the binary takes part in a
// run.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace isthmus::app {

struct InviteRequest {
  std::filesystem::path folder;  ///< that has a folder for each run
  std::string run, name;
  std::string coordinator;  ///< HOST:PORT, or several with commas between
  std::string expires = "24h";
  int days = 365;
  std::string role;  ///< trainer if empty
  bool json = false;
};

struct JoinRequest {
  std::string token;             ///< or `-`: a line of standard input
  std::filesystem::path folder;  ///< of certificate and config; empty: certs/RUN/NAME
  std::string data, site, listen, advertise;
  std::vector<std::string> assignments;
  bool reduce_only = false, only_enrol = false, quiet = false;
};

/// Prints the token. Throws Error(config) or Error(data).
int run_invite(const InviteRequest& request);

/// Enrols, unless the folder has a certificate already, and works as `train` or as a reducer. `train` may be
/// empty. Returns the exit status. Throws what they throw, and Error(network) when the coordinator does not
/// let it in.
int run_join(JoinRequest request, const std::function<int(WorkerRequest)>& train, const std::string& build,
             const std::vector<std::string>& program);

void add_invite(CommandLine& commands, CLI::App& certs);
/// `train` as in CommandLine::add_worker.
void add_join(CommandLine& commands, std::function<int(WorkerRequest)> train);

}  // namespace isthmus::app
