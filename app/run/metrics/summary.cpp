#include "run/metrics/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "isthmus/base/progress.h"
#include "run/output/lines.h"
#include "run/output/version.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

/// Bits that one replica sends per parameter and step in a ring all-reduce of bf16 gradients at every step.
double data_parallel_bits(std::size_t replicas) {
  const auto m = static_cast<double>(replicas);
  return 16 * 2 * (m - 1) / m;
}

template <class Get>
double mean(const std::vector<MemberReport>& members, Get get) {
  double sum = 0;
  for (const auto& member : members) sum += get(member);
  return ratio(sum, static_cast<double>(members.size()));
}

template <class Get>
double most(const std::vector<MemberReport>& members, Get get) {
  double value = 0;
  for (const auto& member : members) value = std::max(value, get(member));
  return value;
}

/// The last norms and cosines or, if any replica was an outlier, the worst one by name. Names have up to 64
/// characters, a row 63.
std::string gradients_row(const ordered_json& gradients) {
  double smallest = std::numeric_limits<double>::infinity(), largest = 0, cosine = 1;
  std::string worst;
  std::uint64_t rounds = 0;
  for (const auto& [name, gradient] : gradients.items()) {
    // JSON has no infinity.
    const double norm = gradient["norm"].is_number() ? gradient["norm"].get<double>()
                                                     : std::numeric_limits<double>::infinity();
    smallest = std::min(smallest, norm);
    largest = std::max(largest, norm);
    cosine = std::min(cosine, gradient["cosine"].get<double>());
    if (gradient["outlier_rounds"].get<std::uint64_t>() <= rounds) continue;
    rounds = gradient["outlier_rounds"];
    worst = name;
  }
  if (!worst.empty()) return fmt::format("{} was an outlier in {} rounds", short_name(worst, 32), rounds);
  return fmt::format("outer gradients' norms {:.3g} to {:.3g}, cosines from {:.2f}", smallest, largest,
                     cosine);
}

/// The member with the longest history: later members have not seen all of the run's steps and rounds.
const MemberReport& whole_run(const std::vector<MemberReport>& members) {
  const auto length = [](const MemberReport& m) { return std::pair(m.last_step - m.first_step, m.rounds); };
  return *std::ranges::max_element(members, {}, length);
}

}  // namespace

ordered_json summary_json(Experiment& experiment, const RunReport& report) {
  const auto& members = report.members;
  const auto& longest = whole_run(members);
  // A worker that was restarted has counted only what it sent since then, so it is left out.
  std::vector<MemberReport> whole;
  std::ranges::copy_if(members, std::back_inserter(whole),
                       [&](const auto& m) { return m.first_step == longest.first_step; });
  const auto steps = static_cast<double>(longest.last_step - longest.first_step);
  const auto parameters = static_cast<double>(longest.parameters);
  const double bits =
      ratio(mean(whole, [](const auto& m) { return 8.0 * static_cast<double>(m.payload_bytes); }),
            parameters * steps);
  const double baseline = data_parallel_bits(members.size());

  ordered_json json;
  json["run"] = experiment.run.name;
  json["folder"] = std::filesystem::absolute(experiment.folder()).string();
  json["commit"] = commit();
  json["config_fingerprint"] = fingerprint(experiment).hex();
  json["method"] = to_string(experiment.outer.method);
  json["codec"] = experiment.outer.codec;
  json["replicas"] = members.size();
  json["parameters"] = longest.parameters;
  json["steps"] = longest.last_step;
  json["first_step"] = longest.first_step;
  json["stopped"] = longest.stopped;
  std::uint64_t tokens = 0;
  for (const auto& member : members) tokens += member.tokens;
  json["tokens"] = tokens;
  if (!report.evaluations.empty()) {
    json["initial_eval_loss"] = report.evaluations.begin()->second;
    json["final_eval_loss"] = report.evaluations.rbegin()->second;
  }
  json["wall_seconds"] = report.wall_seconds;
  json["train_seconds"] = most(members, [](const auto& m) { return m.train_seconds; });
  json["compute_utilization"] =
      mean(members, [](const auto& m) { return ratio(m.compute_seconds, m.train_seconds); });
  json["stall_seconds"] = most(members, [](const auto& m) { return m.stall_seconds; });
  json["warmup_wait_seconds"] = most(members, [](const auto& m) { return m.warmup_wait_seconds; });
  json["data_wait_seconds"] = most(members, [](const auto& m) { return m.data_wait_seconds; });
  for (const auto& member : members) {
    json["wan_bytes_sent"][member.name] = {{"payload", member.payload_bytes}, {"total", member.total_bytes}};
  }
  for (const auto& [name, bytes] : report.reducer_bytes) json["reducer_bytes_sent"][name] = bytes;
  json["bits_per_parameter_per_step"] = bits;
  json["data_parallel_bf16_bits_per_parameter_per_step"] = baseline;
  json["rounds_committed"] = longest.rounds;
  json["warmup_rounds"] = longest.warmup_rounds;
  if (experiment.outer.gossip_every > 0) {
    const auto sum = [&](auto field) {
      std::uint64_t all = 0;
      for (const auto& member : members) all += member.*field;
      return all;
    };
    json["exchanges"] = {{"ended", sum(&MemberReport::exchanges)},
                         {"averaged", sum(&MemberReport::exchanges_averaged)}};
  }
  if (longest.outer_steps > 0)
    json["outer_steps"] = {{"gain", longest.outer_gain}, {"correlation", longest.outer_correlation}};
  for (const auto& [name, gradient] : report.gradients) {
    json["outer_gradients"][name] = {{"norm", gradient.norm},
                                     {"cosine", gradient.cosine},
                                     {"rounds_judged", gradient.rounds},
                                     {"outlier_rounds", gradient.outlier_rounds}};
  }
  for (const auto& member : members) json["global_hash"][member.name] = member.global_hash;
  for (const auto& [step, loss] : report.evaluations)
    json["evaluations"].push_back({{"step", step}, {"loss", loss}});
  for (const auto& member : members) {
    auto details = to_json(member);
    details.erase("sample");
    json["members"].push_back(std::move(details));
  }
  return json;
}

std::string summary_table(const ordered_json& s, const std::string& sample) {
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    constexpr std::size_t margin = 16;
    text += in_lines(fmt::format("  {:<13} {}", name, value), margin);
  };
  if (!sample.empty()) text += "\n--- sample of the global parameters\n" + sample + "\n---\n";

  text += "\n";
  const auto steps = s["steps"].get<double>() - s["first_step"].get<double>();
  const double train = s["train_seconds"];
  row("run", fmt::format("{}: {}, {} replicas, {:.2f} M parameters",
                         short_name(s["run"].get<std::string>(), 63), s["method"].get<std::string>(),
                         s["replicas"].get<int>(), s["parameters"].get<double>() / 1e6));
  const auto from = s["first_step"].get<std::uint64_t>();
  row("trained", fmt::format("{} steps{}{} in {} ({:.1f} M tokens, {:.1f}k tokens/s)", steps,
                             from > 0 ? fmt::format(" from step {} on", from) : "",
                             s["stopped"].get<bool>() ? " (stopped early)" : "", format_duration(train),
                             s["tokens"].get<double>() / 1e6, ratio(s["tokens"].get<double>(), train) / 1e3));
  if (s.contains("final_eval_loss")) {
    row("eval loss", fmt::format("{:.4f} -> {:.4f} nats per token (global parameters, held-out)",
                                 s["initial_eval_loss"].get<double>(), s["final_eval_loss"].get<double>()));
  }
  double payload = 0;
  double total = 0;
  for (const auto& sent : s["wan_bytes_sent"]) {
    payload += sent["payload"].get<double>();
    total += sent["total"].get<double>();
  }
  const double replicas = s["replicas"];
  const double bits = s["bits_per_parameter_per_step"];
  const double baseline = s["data_parallel_bf16_bits_per_parameter_per_step"];
  row("sent", fmt::format("{} per replica ({} with headers and control)", format_bytes(payload / replicas),
                          format_bytes(total / replicas)));
  row("", bits > 0 ? fmt::format("{:.3f} bits per parameter and step; bf16 data parallel: {:.1f} ({:.1f} x)",
                                 bits, baseline, baseline / bits)
                   : "nothing");
  if (s.contains("reducer_bytes_sent")) {
    double reduced = 0;
    for (const auto& bytes : s["reducer_bytes_sent"]) reduced += bytes.get<double>();
    row("", fmt::format("{} by the reducers ({})", format_bytes(reduced), s["reducer_bytes_sent"].size()));
  }
  const auto warmup_rounds = s["warmup_rounds"].get<std::uint64_t>();
  const auto warmup = warmup_rounds == 0
                          ? std::string()
                          : fmt::format(", warm-up waited {:.1f} s", s["warmup_wait_seconds"].get<double>());
  row("compute",
      fmt::format("{:.1f} % of training time; stalled {:.2f} s{}",
                  100 * s["compute_utilization"].get<double>(), s["stall_seconds"].get<double>(), warmup));
  if (s.contains("outer_steps"))
    row("outer steps",
        fmt::format("gain {:.2f}, correlation {:.2f} (means)", s["outer_steps"]["gain"].get<double>(),
                    s["outer_steps"]["correlation"].get<double>()));
  if (s.contains("outer_gradients")) row("replicas", gradients_row(s["outer_gradients"]));
  if (s.contains("exchanges")) {
    row("gossip", fmt::format("averaged {} of {} exchanges in pairs; a repeated run may end with a different "
                              "hash, because the network decides which arrive in time",
                              s["exchanges"]["averaged"].get<std::uint64_t>(),
                              s["exchanges"]["ended"].get<std::uint64_t>()));
  }
  const auto hash = s["global_hash"].begin()->get<std::string>();
  const auto rounds = s["rounds_committed"].get<std::uint64_t>() - warmup_rounds;
  row("rounds", warmup_rounds == 0
                    ? fmt::format("{} of fragments", rounds)
                    : fmt::format("{} of fragments, {} of warm-up gradients", rounds, warmup_rounds));
  row("global hash", fmt::format("{}, equal on all replicas", hash.substr(0, 16)));
  // A path stays on its line, however long.
  return text + fmt::format("  {:<13} {}\n", "files", s["folder"].get<std::string>());
}

}  // namespace isthmus::app
