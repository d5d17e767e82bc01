#include "cli/certs_command.h"

#include <fmt/format.h>

#include "isthmus/outer_sync/tls/authority.h"
#include "run/output/json_output.h"

namespace isthmus::app {

using outer_sync::tls::Authority;

int run_certs(const CertsRequest& request) {
  JsonOutput json(request.json);
  const auto folder = request.folder / request.run;
  switch (request.task) {
    case CertsRequest::Task::init:
      (void)Authority::create(folder, request.run);
      fmt::print(
          "{0}: the authority of run {1}. Keep ca.key here and secret: anyone with it can join the run.\n"
          "Next: isthmus certs issue {1} {2}, and the same for every replica.\n",
          folder.string(), request.run, outer_sync::tls::coordinator_name);
      json.print({{"run", request.run}, {"folder", folder.string()}});
      break;
    case CertsRequest::Task::issue: {
      const auto role = outer_sync::tls::role_for(request.name, request.role);
      const auto own = Authority::open(folder).issue(request.name, request.days, role);
      fmt::print(
          "{0}: the certificate of {1} as {3} of the run, valid for {2} days. Copy this folder to its "
          "machine and set network.certs to it there.\n",
          own.string(), request.name, request.days, to_string(role));
      json.print({{"run", request.run},
                  {"name", request.name},
                  {"role", to_string(role)},
                  {"folder", own.string()},
                  {"days", request.days}});
      break;
    }
    case CertsRequest::Task::revoke:
      Authority::open(folder).revoke(request.name);
      fmt::print(
          "{0}: the certificates issued to {1} so far are revoked, and its invitations are void. Copy ca.crl "
          "next to cert.pem on every machine of the run; no restart is needed.\n",
          (folder / "ca.crl").string(), request.name);
      json.print(
          {{"run", request.run}, {"name", request.name}, {"revoked_in", (folder / "ca.crl").string()}});
      break;
  }
  return 0;
}

}  // namespace isthmus::app
