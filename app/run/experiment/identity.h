#pragma once
// How a process of a run proves who it is: with its certificate, or with the run's secret.

#include <string>

#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Help text of `--role`.
inline constexpr const char* role_help =
    "role in the run: trainer (may also reduce and observe), reducer or observer; default: trainer; the "
    "names coordinator and operator have roles of their own";

/// Folder with the certificate of process `name`: `certs` itself if it holds one, otherwise certs/`name`.
/// Empty if `certs` is empty.
[[nodiscard]] std::string own_certificates(const std::string& certs, const std::string& name);

/// Sets how this process identifies itself in its run: `network.certs` becomes its own folder of certificates
/// or, without certificates, `network.secret` the file of the run's secret.
void take_identity(const std::string& name, Experiment& experiment);
/// The same for a process that is neither the coordinator nor an operator. Throws Error(config) for a name
/// that it must not have.
void take_replica_name(const std::string& name, Experiment& experiment);

/// File name in the run's folder.
inline constexpr const char* secret_file = "run.secret";

}  // namespace isthmus::app
