#include "run/experiment/identity.h"

#include <filesystem>

#include "run/process/names.h"

namespace isthmus::app {

std::string own_certificates(const std::string& certs, const std::string& name) {
  if (certs.empty() || std::filesystem::exists(std::filesystem::path(certs) / "cert.pem")) return certs;
  return (std::filesystem::path(certs) / name).string();
}

void take_identity(const std::string& name, Experiment& experiment) {
  auto& network = experiment.network;
  network.certs = own_certificates(network.certs, name);
  if (network.certs.empty() && !network.insecure && network.secret.empty())
    network.secret = (experiment.folder() / secret_file).string();
}

void take_replica_name(const std::string& name, Experiment& experiment) {
  check_member_name("--name", name);
  take_identity(name, experiment);
}

}  // namespace isthmus::app
