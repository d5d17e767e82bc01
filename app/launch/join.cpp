#include "launch/join.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "coordinator/newcomer_config.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/net/coordinator/enrol.h"
#include "isthmus/outer_sync/tls/newcomer.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"
#include "worker/followers/reducer.h"

namespace isthmus::app {

namespace {

namespace fs = std::filesystem;
using outer_sync::Address;
using outer_sync::NetworkConfig;
using outer_sync::parse_address;
using outer_sync::tls::JoinToken;

constexpr auto enrolment_limit = std::chrono::seconds(30);
constexpr double max_invitation = 30 * 86400.0;

struct Lifetime {
  config::Duration expires;
  void serialize(config::Archive& ar) {
    ar({"--expires", &expires, config::Scope::per_site, "validity of the invitation", 1, max_invitation});
  }
};

config::Duration lifetime(const std::string& text) {
  auto source = config::Source::from_text("", "command line");
  source.put({"--expires", {text}, false, false, "command line", {}});
  return config::read<Lifetime>(source).expires;
}

JoinToken read_token(const std::string& argument) {
  std::string text = argument;
  if (argument == "-") {
    std::getline(std::cin, text);
  } else if (!argument.starts_with(outer_sync::tls::token_prefix) && fs::exists(argument)) {
    constexpr std::size_t max_token = 1 << 16;
    text = read_text(argument, max_token);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  return outer_sync::tls::parse_token(text);
}

bool is_anywhere(const Address& address) { return address.host == "0.0.0.0" || address.host == "::"; }

/// Guesses where peers reach this machine from its connection to the coordinator: at its own address if the
/// coordinator sees the same one; nowhere if the address is translated in between.
void guess_addresses(JoinRequest& request, const outer_sync::Enrolled& enrolled) {
  const auto& seen_as = enrolled.answer.seen_as;
  if (request.listen.empty()) {
    const bool direct = enrolled.own_address == seen_as;
    request.listen = direct ? Address{seen_as, 0}.to_string() : NetworkConfig::no_port;
    if (direct) {
      fmt::print("this machine accepts peers at {}, on any free port; --listen and --advertise change that\n",
                 seen_as);
    } else {
      fmt::print(
          "the coordinator sees this machine as {}, which is not its own address, so it opens no port and "
          "dials the others. If a port is forwarded to it, pass --listen and --advertise\n",
          seen_as);
    }
  } else if (request.listen != NetworkConfig::no_port && request.advertise.empty()) {
    const auto at = parse_address(request.listen, "--listen");
    if (is_anywhere(at)) request.advertise = Address{seen_as, at.port}.to_string();
  }
}

/// The machine's own config, which extends the run's.
std::string own_config(const JoinRequest& request, const JoinToken& token, const fs::path& folder) {
  std::vector<config::Item> items;
  const auto say = [&](const char* key, const std::string& value) {
    if (value.empty()) return;
    items.push_back({key, value, config::Scope::per_site, {}, {}, config::Kind::text});
  };
  say("extends", "run.yaml");
  say("network.coordinator", token.coordinator);
  say("network.listen", request.listen);
  say("network.advertise", request.advertise);
  say("network.certs", fs::absolute(folder).string());
  say("data.path", request.data);
  return "# Settings of this machine; those of the run are in run.yaml.\n" + config::yaml_of(items);
}

void enrol(JoinRequest& request, const JoinToken& token, const fs::path& folder) {
  const outer_sync::tls::NewcomerFolder own(folder);
  const auto enrolled = outer_sync::enrol(token, own.request(token), enrolment_limit);
  check_config_for_newcomers(enrolled.answer.config);
  guess_addresses(request, enrolled);
  replace_file(folder / "run.yaml", enrolled.answer.config, File::Mode::secret);
  replace_file(folder / "config.yaml", own_config(request, token, folder), File::Mode::secret);
  own.complete(token, enrolled.answer);  // last: the certificate marks the folder as complete
  say_line(fmt::format("{} has its certificate and the config of run {}: {}", token.name, token.run,
                       folder.string()));
}

/// Assignments from the command line, which override the config file.
std::vector<std::string> assignments_of(const JoinRequest& request) {
  auto assignments = request.assignments;
  const auto set = [&](const char* key, const std::string& value) {
    if (!value.empty()) assignments.push_back(fmt::format("{}={}", key, nlohmann::json(value).dump()));
  };
  set("network.listen", request.listen);
  set("network.advertise", request.advertise);
  set("data.path", request.data);
  return assignments;
}

std::string in_full(const std::string& data) {
  const bool is_file = !data.empty() && data != "-" && data.find("://") == std::string::npos;
  return is_file ? fs::absolute(data).lexically_normal().string() : data;
}

}  // namespace

int run_invite(const InviteRequest& request) {
  using namespace outer_sync::tls;
  check_word("the name", request.name);
  if (request.name == coordinator_name)
    config_error(
        "the name is 'coordinator'; expected another name: the coordinator's certificate comes from "
        "`isthmus certs issue`");
  for (const auto& address : outer_sync::parse_addresses(request.coordinator, "--coordinator")) {
    if (address.port == 0 || is_anywhere(address))
      config_error("--coordinator is '" + address.to_string() +
                   "'; expected the HOST:PORT that the joining machine dials");
  }
  const auto role = role_for(request.name, request.role);
  const auto authority = Authority::open(request.folder / request.run);
  if (!fs::exists(authority.folder() / "ca.key"))
    config_error((authority.folder() / "ca.key").string() +
                 " does not exist; create invitations on the machine that issues certificates");
  const auto seconds = std::chrono::seconds(static_cast<std::int64_t>(lifetime(request.expires).seconds));
  const auto secret =
      authority.invite(request.name, role, std::chrono::system_clock::now(), seconds, request.days);
  const auto token = to_text({.run = authority.run(),
                              .name = request.name,
                              .coordinator = request.coordinator,
                              .authority = authority.fingerprint(),
                              .secret = secret});
  JsonOutput output(request.json);
  output.print({{"run", authority.run()},
                {"name", request.name},
                {"role", to_string(role)},
                {"expires_seconds", seconds.count()},
                {"token", token}});
  if (request.json) return 0;
  const auto about = fmt::format(
      "This token admits one machine, as {} of run {}. It is valid once, for {}. On that machine:",
      request.name, authority.run(), request.expires);
  fmt::print("{}\n", token);
  std::fflush(stdout);
  fmt::print(stderr, "\n{}    isthmus join TOKEN --data PATH\n", in_lines(about, 2));
  return 0;
}

int run_join(JoinRequest request, const std::function<int(WorkerRequest)>& train, const std::string& build,
             const std::vector<std::string>& program) {
  const auto token = read_token(request.token);
  if (!train && !request.reduce_only && !request.only_enrol)
    config_error("this binary cannot train: pass --reduce-only or --only-enrol, or use `isthmus join`");
  request.data = in_full(request.data);
  const auto folder = request.folder.empty() ? fs::path("certs") / token.run / token.name : request.folder;
  if (!outer_sync::tls::NewcomerFolder(folder).enrolled()) enrol(request, token, folder);
  const auto config = folder / "config.yaml";
  if (request.only_enrol) {
    fmt::print("Next: isthmus worker {} --name {}\n", config.string(), token.name);
    return 0;
  }
  const auto assignments = assignments_of(request);
  WorkerRequest worker{
      .experiment = request.reduce_only
                        ? load_experiment(config, assignments, std::nullopt, Purpose::inference)
                        : load_experiment(config, assignments, WorkerPlace{token.name, request.site}),
      .name = token.name,
      .quiet = request.quiet,
      .build = build,
      .program = program};
  return request.reduce_only ? run_reducer(std::move(worker)) : train(std::move(worker));
}

void add_invite(CommandLine& commands, CLI::App& certs) {
  auto* verb = certs.add_subcommand(
      "invite", "create a token with which one machine joins the run and gets its certificate");
  const auto request = std::make_shared<InviteRequest>();
  verb->add_option("run", request->run, "name of the run")->required();
  verb->add_option("name", request->name, "name for the machine")->required();
  verb->add_option("--coordinator", request->coordinator,
                   "HOST:PORT at which the machine reaches the coordinator")
      ->required();
  verb->add_option("--expires", request->expires, "validity of the token")->capture_default_str();
  verb->add_option("--days", request->days, "validity of the certificate in days")
      ->capture_default_str()
      ->check(CLI::Range(1, 3650));
  verb->add_option("--role", request->role, role_help);
  verb->add_option("--dir", request->folder, "parent folder of the runs' certificates")->default_val("certs");
  add_json(*verb, request->json);
  verb->footer("Example: isthmus certs invite two-sites us-3 --coordinator third.example:7000");
  commands.on(*verb, [request] { return run_invite(*request); });
}

void add_join(CommandLine& commands, std::function<int(WorkerRequest)> train) {
  auto* verb =
      commands.app().add_subcommand("join", "join a run from a new machine with an invitation token");
  const auto request = std::make_shared<JoinRequest>();
  verb->add_option("token", request->token,
                   "token from `isthmus certs invite`, or a file with it; - reads standard input")
      ->required();
  verb->add_option("--data", request->data, "data.path on this machine");
  verb->add_option("--out,--dir", request->folder,
                   "folder for the certificate and config; certs/RUN/NAME by default");
  verb->add_option("--site", request->site,
                   "site that provides the settings; by default the site of the worker's name");
  verb->add_option("--listen", request->listen, "ADDRESS:PORT for peers, or none; guessed by default");
  verb->add_option("--advertise", request->advertise, "HOST:PORT that peers dial; guessed by default");
  verb->add_flag("--reduce-only", request->reduce_only, "reduce chunks only, without a model or data");
  verb->add_flag("--only-enrol", request->only_enrol, "fetch the certificate and config, then exit");
  verb->add_flag("--quiet", request->quiet, "print no progress line");
  add_set(*verb, request->assignments);
  verb->footer("Example: isthmus join isthmus1.AAkAAAB0... --data /data/corpus");
  commands.on(*verb, [&commands, request, train = std::move(train)] {
    return run_join(*request, train, commands.build(), commands.program());
  });
}

}  // namespace isthmus::app
