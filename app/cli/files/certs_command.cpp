#include "cli/files/certs_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>

#include "isthmus/outer_sync/tls/authority.h"
#include "launch/join.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"

namespace isthmus::app {

using outer_sync::tls::Authority;

namespace {

struct CertsFlags {
  std::filesystem::path parent;  ///< of the runs' certificates
  std::string run, name, role;
  int days = 0;
  bool json = false;

  [[nodiscard]] std::filesystem::path folder() const { return parent / run; }
};

int init(const CertsFlags& flags) {
  JsonOutput json(flags.json);
  const auto folder = flags.folder();
  (void)Authority::create(folder, flags.run);
  fmt::print(
      "{}Next: isthmus certs issue {} {}, and the same for every replica.\n",
      in_lines(fmt::format("{}: the authority of run {}. Keep ca.key here and secret: anyone with it can "
                           "join the run.",
                           folder.string(), flags.run),
               2),
      flags.run, outer_sync::tls::coordinator_name);
  json.print({{"run", flags.run}, {"folder", folder.string()}});
  return 0;
}

int issue(const CertsFlags& flags) {
  JsonOutput json(flags.json);
  const auto role = outer_sync::tls::role_for(flags.name, flags.role);
  const auto own = Authority::open(flags.folder()).issue(flags.name, flags.days, role);
  fmt::print("{}",
             in_lines(fmt::format("{}: the certificate of {} as {} of the run, valid for {} days. Copy this "
                                  "folder to its machine and set network.certs to it there.",
                                  own.string(), flags.name, to_string(role), flags.days),
                      2));
  json.print({{"run", flags.run},
              {"name", flags.name},
              {"role", to_string(role)},
              {"folder", own.string()},
              {"days", flags.days}});
  return 0;
}

int revoke(const CertsFlags& flags) {
  JsonOutput json(flags.json);
  const auto list = (flags.folder() / "ca.crl").string();
  Authority::open(flags.folder()).revoke(flags.name);
  fmt::print("{}",
             in_lines(fmt::format("{}: the certificates issued to {} so far are revoked, and its "
                                  "invitations are void. Copy ca.crl next to cert.pem on every machine of "
                                  "the run; no restart is needed.",
                                  list, flags.name),
                      2));
  json.print({{"run", flags.run}, {"name", flags.name}, {"revoked_in", list}});
  return 0;
}

}  // namespace

void add_certs(CommandLine& commands) {
  auto* verb = commands.app().add_subcommand("certs", "make, issue and revoke the certificates of a run");
  verb->require_subcommand(1);
  const auto flags = std::make_shared<CertsFlags>();
  const auto add = [&](const char* name, const char* help, int (*act)(const CertsFlags&),
                       const char* example) {
    auto* part = verb->add_subcommand(name, help);
    part->add_option("run", flags->run, "name of the run")->required();
    if (act != init) part->add_option("name", flags->name, "name of a replica, or coordinator")->required();
    part->add_option("--dir", flags->parent, "parent folder of the runs' certificates")->default_val("certs");
    commands.on(*part, [flags, act] { return act(*flags); });
    add_json(*part, flags->json);
    part->footer(fmt::format("Example: isthmus certs {}", example));
    return part;
  };
  add("init", "create the certificate authority of a run", init, "init my-run");
  auto* issuing = add("issue", "issue a certificate for one process; run it again to replace it", issue,
                      "issue my-run eu-1");
  issuing->add_option("--days", flags->days, "validity of the certificate in days")
      ->default_val(365)
      ->check(CLI::Range(1, 3650));
  issuing->add_option("--role", flags->role, role_help);
  add_invite(commands, *verb);
  add("revoke", "revoke every certificate and invitation of one process", revoke, "revoke my-run eu-1");
}

}  // namespace isthmus::app
