#include "cli/files/replay.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/log/replay.h"
#include "isthmus/outer_sync/log/safetensors.h"
#include "run/objects/stored_run.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"

namespace isthmus::app {
namespace {

using outer_sync::log::Replayed;

void print_replayed(const Replayed& run) {
  fmt::print("{}", in_lines(fmt::format("run {}, {} fragments, {} tensors", run.header.run,
                                        run.fragments.size(), run.header.tensors.size()),
                            2));
  for (std::size_t p = 0; p < run.fragments.size(); ++p) {
    const auto& fragment = run.fragments[p];
    fmt::print(
        "{}",
        in_lines(fmt::format("fragment {}: snapshot of round {}, applied up to round {}, chain {}{}", p,
                             fragment.first, fragment.state.round, fragment.state.chain.hex().substr(0, 16),
                             fragment.torn ? "; an incomplete record follows" : ""),
                 2));
  }
  fmt::print("chains: {} rounds recomputed, all as recorded\n", run.rounds());
  fmt::print("global hash {}\n", run.global_hash.hex());
}

nlohmann::ordered_json replay_json(const Replayed& run) {
  auto fragments = nlohmann::ordered_json::array();
  for (const auto& fragment : run.fragments)
    fragments.push_back({{"snapshot_round", fragment.first},
                         {"round", fragment.state.round},
                         {"chain", fragment.state.chain.hex()},
                         {"torn", fragment.torn}});
  return {{"run", run.header.run},
          {"rounds", run.rounds()},
          {"global_hash", run.global_hash.hex()},
          {"fragments", fragments}};
}

void write_model(const std::filesystem::path& file, const Replayed& run) {
  std::vector<outer_sync::log::TensorView> tensors;
  for (const auto& tensor : run.header.tensors)
    tensors.push_back({tensor.name, tensor.shape,
                       std::span(run.parameters).subspan(tensor.range.begin, tensor.range.size)});
  std::vector<outer_sync::protocol::Round> rounds;
  for (const auto& fragment : run.fragments) rounds.push_back(fragment.state.round);
  outer_sync::log::write_safetensors(file, tensors,
                                     {{"run", run.header.run},
                                      {"model", run.header.model.hex()},
                                      {"rounds", nlohmann::json(rounds).dump()},
                                      {"global_hash", run.global_hash.hex()}});
  fmt::print("wrote {}\n", file.string());
}

struct ReplayFlags {
  std::filesystem::path log, out;
  std::optional<std::uint64_t> until;
  std::vector<std::string> set;
  bool json = false;
};

std::filesystem::path local_log(const ReplayFlags& flags) {
  const auto url = flags.log.string();
  return is_bucket_url(url) ? fetch_round_log(stored_run_place(url, flags.set), {}) : flags.log;
}

int run_replay_verb(const ReplayFlags& flags) {
  JsonOutput json(flags.json);
  const auto run = outer_sync::log::replay(local_log(flags), flags.until);
  print_replayed(run);
  if (!flags.out.empty()) write_model(flags.out, run);
  json.print(replay_json(run));
  return 0;
}

}  // namespace

void add_replay(CommandLine& commands) {
  const auto flags = std::make_shared<ReplayFlags>();
  auto* verb = commands.app().add_subcommand(
      "replay", "rebuild the global parameters from a round log and check its hashes");
  verb->add_option("log", flags->log,
                   "folder of the log, or URL of a run in a bucket: its log is then fetched")
      ->required();
  verb->add_option("--until", flags->until, "last round of each fragment to apply; all by default");
  verb->add_option("--out", flags->out, "safetensors file to write");
  add_set(*verb, flags->set);
  add_json(*verb, flags->json);
  verb->footer("Example: isthmus replay runs/my/log/eu-1 --until 500 --out model.safetensors");
  commands.on(*verb, [flags] { return run_replay_verb(*flags); });
}

}  // namespace isthmus::app
