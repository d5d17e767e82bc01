// The `isthmus` binary: verbs and their flags. Each verb's work is in a file of its name.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>

#include "coordinator.h"
#include "isthmus/base/error.h"
#include "launch.h"
#include "observe.h"
#include "replay.h"
#include "version.h"
#include "worker.h"

namespace {

using namespace isthmus;
using namespace isthmus::app;

struct Flags {
  std::string config, coordinator, name, site, listen, advertise, log, out;
  std::vector<std::string> set;
  bool resume = false, recover = false, quiet = false, once = false;
  int announce_fd = -1;
  std::optional<std::uint64_t> until;
};

void add_set(CLI::App& verb, Flags& flags) {
  verb.add_option("--set", flags.set, "KEY=VALUE over the config file's, as often as wanted")
      ->allow_extra_args(false);
}

Experiment load(const Flags& flags, const std::optional<WorkerPlace>& worker = std::nullopt) {
  auto assignments = flags.set;
  const auto override_with = [&](const char* key, const std::string& value) {
    if (!value.empty()) assignments.push_back(std::string(key) + "=\"" + value + "\"");
  };
  override_with("network.coordinator", flags.coordinator);
  override_with("network.listen", flags.listen);
  override_with("network.advertise", flags.advertise);
  return load_experiment(flags.config, assignments, worker);
}

void add_launch(CLI::App& app, Flags& flags, std::function<int()>& act) {
  auto* verb =
      app.add_subcommand("launch", "start a coordinator and all replicas of an experiment on this machine");
  verb->add_option("config", flags.config, "experiment in YAML");
  verb->add_option("--resume", flags.name, "a run's folder: go on from its newest checkpoint");
  add_set(*verb, flags);
  verb->footer("Example: isthmus launch configs/quickstart.yaml --set outer.sync_every=60");
  verb->callback([&] {
    act = [&flags] {
      const bool resume = !flags.name.empty();
      if (resume != flags.config.empty())
        throw Error(ErrorKind::config, "launch needs a config file, or --resume FOLDER, and not both");
      return run_launch({.config = resume ? flags.name : flags.config,
                         .assignments = flags.set,
                         .resume = resume,
                         .program = std::filesystem::read_symlink("/proc/self/exe")});
    };
  });
}

void add_coordinator(CLI::App& app, Flags& flags, std::function<int()>& act) {
  auto* verb = app.add_subcommand("coordinator", "form the run, show its progress, write its summary");
  verb->add_option("--config", flags.config, "experiment in YAML")->required();
  verb->add_option("--listen", flags.coordinator, "ADDRESS:PORT, in place of network.coordinator");
  verb->add_flag("--resume", flags.resume, "the workers resume");
  verb->add_flag("--recover", flags.recover,
                 "take up a run that is going on, from its members alone: this disk's memory of it is lost");
  verb->add_option("--announce-fd", flags.announce_fd, "descriptor that gets the port, for launchers")
      ->group("");
  add_set(*verb, flags);
  verb->footer("Example: isthmus coordinator --config two_sites.yaml --listen 0.0.0.0:7000");
  verb->callback([&] {
    act = [&flags] {
      return run_coordinator({.experiment = load(flags),
                              .announce_fd = flags.announce_fd,
                              .resume = flags.resume,
                              .recover = flags.recover});
    };
  });
}

void add_worker(CLI::App& app, Flags& flags, std::function<int()>& act) {
  auto* verb = app.add_subcommand("worker", "train one replica");
  verb->add_option("--config", flags.config, "experiment in YAML")->required();
  verb->add_option("--coordinator", flags.coordinator, "HOST:PORT");
  verb->add_option("--name", flags.name, "of this replica, unique in the run")->required();
  verb->add_option("--site", flags.site, "whose settings apply; without it the site that the name is of");
  verb->add_option("--listen", flags.listen, "ADDRESS:PORT for peers, in place of network.listen");
  verb->add_option("--advertise", flags.advertise,
                   "HOST:PORT that peers dial, in place of network.advertise");
  verb->add_flag("--resume", flags.resume, "go on from the newest checkpoint that all replicas have");
  verb->add_flag("--quiet", flags.quiet, "no progress line");
  add_set(*verb, flags);
  verb->footer(
      "Example: isthmus worker --config two_sites.yaml --coordinator eu.example:7000 --name us-1 "
      "--listen 0.0.0.0:7001 --advertise us.example:7001");
  verb->callback([&] {
    act = [&flags] {
      return run_worker({.experiment = load(flags, WorkerPlace{flags.name, flags.site}),
                         .name = flags.name,
                         .resume = flags.resume,
                         .quiet = flags.quiet});
    };
  });
}

void add_observe(CLI::App& app, Flags& flags, std::function<int()>& act) {
  auto* verb =
      app.add_subcommand("observe", "follow a live run and evaluate it here, without taking part in it");
  verb->add_option("--config,config", flags.config, "experiment in YAML, the run's")->required();
  verb->add_option("--coordinator", flags.coordinator, "HOST:PORT");
  verb->add_option("--name", flags.name, "of this observer, unique in the run; its folder's too")->required();
  verb->add_option("--out", flags.out,
                   "safetensors file for the newest global parameters, written at the end");
  verb->add_flag("--once", flags.once, "take the state, evaluate it, and leave");
  add_set(*verb, flags);
  verb->footer("Example: isthmus observe --config two_sites.yaml --coordinator eu.example:7000 --name watch");
  verb->callback([&] {
    act = [&flags] {
      return run_observe(
          {.experiment = load(flags), .name = flags.name, .out = flags.out, .once = flags.once});
    };
  });
}

void add_config(CLI::App& app, Flags& flags, std::function<int()>& act) {
  auto* verb =
      app.add_subcommand("config", "print an experiment with every key, or the reference of all keys");
  verb->add_option("config", flags.config, "experiment in YAML; none prints the reference in Markdown");
  verb->add_option("--name", flags.name, "as it is for this worker");
  verb->add_option("--site", flags.site, "as it is at this site");
  add_set(*verb, flags);
  verb->footer("Example: isthmus config configs/quickstart.yaml --set replicas=4");
  verb->callback([&] {
    act = [&flags] {
      if (flags.config.empty()) {
        std::fputs(reference().c_str(), stdout);
        return 0;
      }
      auto experiment = flags.name.empty() && flags.site.empty()
                            ? load(flags)
                            : load(flags, WorkerPlace{flags.name, flags.site});
      std::fputs(to_yaml(experiment).c_str(), stdout);
      return 0;
    };
  });
}

void add_replay(CLI::App& app, Flags& flags, std::function<int()>& act) {
  auto* verb =
      app.add_subcommand("replay", "make the global parameters from a round log, and check its hashes");
  verb->add_option("log", flags.log, "folder of the log")->required();
  verb->add_option("--until", flags.until, "last ROUND of each fragment; none for all that is there");
  verb->add_option("--out", flags.out, "safetensors file to write");
  verb->footer("Example: isthmus replay runs/my/eu-1/log --until 500 --out model.safetensors");
  verb->callback([&] {
    act = [&flags] { return run_replay({.log = flags.log, .until = flags.until, .out = flags.out}); };
  });
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  std::function<int()> act;
  CLI::App app("isthmus: one language model on machines that are far apart");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  add_launch(app, flags, act);
  add_coordinator(app, flags, act);
  add_worker(app, flags, act);
  add_observe(app, flags, act);
  add_config(app, flags, act);
  add_replay(app, flags, act);
  app.footer(
      "Exit status: 0 done, 2 config, 3 data or files, 4 network or a lost peer, 5 replicas or values "
      "diverged, 130 stopped");
  try {
    app.parse(argc, argv);
    return act();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const isthmus::Error& error) {
    std::fprintf(stderr, "isthmus: %s\n", error.what());
    return error.exit_status();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "isthmus: %s\n", error.what());
    return 1;
  }
}
