#pragma once
// Questions of an operator to the coordinator of a live run; `ctl` and `top` ask them.

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "command_line/command_line.h"
#include "isthmus/outer_sync/protocol/messages/commands.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct OperatorOptions : ConfigOptions {
  std::string name = "operator";  ///< name of the certificate
};
/// --coordinator and --name. The verb adds its config file itself.
void add_operator(CLI::App& verb, OperatorOptions& options);
inline constexpr auto operators_config =
    "the run's experiment in YAML, for its address and certificates, or the folder in which `launch` runs it";

/// The coordinator that the options name. Used by one thread.
class LiveRun {
 public:
  /// Throws Error(config).
  explicit LiveRun(const OperatorOptions& options);
  /// The coordinator's answer. Throws Error(config) if it refuses the command, Error(network) if it does not
  /// answer within `limit`.
  [[nodiscard]] nlohmann::json ask(outer_sync::protocol::Command command, std::chrono::seconds limit) const;

 private:
  Experiment experiment_;
  bool knows_run_;
  std::string name_;
};

}  // namespace isthmus::app
