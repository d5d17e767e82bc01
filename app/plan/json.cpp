#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/outer_sync/config/outer_method.h"
#include "isthmus/outer_sync/plan/recommend.h"
#include "isthmus/quant/codec.h"
#include "plan/memory.h"
#include "plan/plan.h"
#include "plan/windows.h"

namespace isthmus::app {

using nlohmann::ordered_json;
using outer_sync::OuterConfig;
using outer_sync::plan::Choice;
using outer_sync::plan::Prediction;
using outer_sync::plan::Setting;

namespace {

constexpr double giga = 1e9;

double sum(const std::vector<double>& values) {
  double out = 0;
  for (const double value : values) out += value;
  return out;
}

std::optional<Prediction> predicted(const OuterConfig& outer, const PlanInput& input,
                                    const Setting& setting) {
  auto resolved = outer;
  try {
    resolved.resolve();
  } catch (const Error&) {
    return {};  // the codec's unit does not divide the chunks, or the delay is too long
  }
  return outer_sync::plan::predict(resolved, input.cut(resolved.num_fragments), setting);
}

/// One row of the tables.
ordered_json row_of(const OuterConfig& outer, const Prediction& p, const PlanRequest& request,
                    const PlanInput& input) {
  const auto steps = static_cast<double>(input.experiment.run.steps);
  const double bytes = p.bytes_per_step * steps;
  return {{"method", to_string(outer.method)},
          {"sync_every", outer.data_parallel() ? 1 : outer.sync_every.parts.back().value},
          {"num_fragments", outer.data_parallel() ? 1 : outer.num_fragments},
          {"sync_delay", outer.data_parallel() ? 0 : outer.sync_delay},
          {"codec", outer.data_parallel() ? "fp32" : outer.codec},
          {"bits_per_parameter", p.bits_per_parameter},
          {"utilization", p.utilization},
          {"steps_per_second", p.steps_per_second},
          {"tokens_per_second", p.steps_per_second * sum(input.tokens_per_step)},
          {"seconds", steps / p.steps_per_second},
          {"bytes_per_replica", bytes},
          {"mean_bits_per_second", 8 * p.mean_bytes_per_second},
          {"peak_bits_per_second", 8 * p.peak_bytes_per_second},
          {"traffic_cost", bytes / giga * request.price * static_cast<double>(input.experiment.replicas)}};
}

ordered_json methods_json(const PlanRequest& request, const PlanInput& input) {
  ordered_json rows = ordered_json::array();
  for (const auto name : outer_sync::method_names()) {
    const auto method = outer_sync::method_of(name);
    auto outer = input.experiment.outer;
    if (outer.method == method) continue;
    outer.method = method;
    outer.pace = outer.data_parallel() ? "steps" : outer.pace;
    const auto prediction = predicted(outer, input, input.setting);
    if (!prediction) continue;
    outer.resolve();
    rows.push_back(row_of(outer, *prediction, request, input));
  }
  return rows;
}

ordered_json codecs_json(const PlanRequest& request, const PlanInput& input) {
  ordered_json rows = ordered_json::array();
  if (input.experiment.outer.data_parallel()) return rows;
  for (const auto codec : quant::codec_names) {
    auto outer = input.experiment.outer;
    if (outer.codec == codec) continue;
    outer.codec = codec;
    if (const auto prediction = predicted(outer, input, input.setting))
      rows.push_back(row_of(outer, *prediction, request, input));
  }
  return rows;
}

/// Steps of one sync interval at which each fragment is sent and applied.
ordered_json timetable_json(const OuterConfig& outer, const Prediction& p) {
  ordered_json rows = ordered_json::array();
  if (outer.data_parallel() || p.timetable.rounds.empty()) return rows;
  const auto every = outer_sync::plan::last_sync_every(outer);
  const auto first = p.timetable.rounds.front().send_step;
  for (const auto& round : p.timetable.rounds) {
    if (round.send_step >= first + every) break;
    rows.push_back({{"fragment", round.fragment},
                    {"sent_at", (round.send_step - 1) % every + 1},
                    {"applied_after_steps", round.apply_step - round.send_step},
                    {"seconds", round.seconds},
                    {"slack_seconds", round.slack}});
  }
  return rows;
}

std::string site_of_replica(const Links& links, std::size_t replica) {
  for (const auto& site : links.sites) {
    if (replica < static_cast<std::size_t>(site.replicas)) return site.name;
    replica -= static_cast<std::size_t>(site.replicas);
  }
  return "?";
}

/// The bottlenecks of the configured run, one line each.
std::vector<std::string> limits_of(const PlanInput& input, const Prediction& p, double wanted) {
  std::vector<std::string> out;
  const auto& replicas = input.setting.network.replicas;
  const auto step = [](const auto& replica) { return replica.step_seconds; };
  const auto& slowest = *std::ranges::max_element(replicas, {}, step);
  const auto& fastest = *std::ranges::min_element(replicas, {}, step);
  if (fastest.step_seconds < wanted * slowest.step_seconds) {
    out.push_back(fmt::format(
        "steps: {} takes {:.4g} s and {} takes {:.4g} s, so faster sites wait for slower ones: set "
        "outer.pace: time, or choose batches with equal step times",
        site_of_replica(input.links, static_cast<std::size_t>(&slowest - replicas.data())),
        slowest.step_seconds,
        site_of_replica(input.links, static_cast<std::size_t>(&fastest - replicas.data())),
        fastest.step_seconds));
  }
  if (p.utilization >= wanted) return out;
  std::size_t fullest = 0;
  const auto full = [&](std::size_t m) {
    const auto& times = p.timetable.replicas[m];
    const double exchanged = p.exchange_bytes_per_second * times.seconds;
    return std::max((times.sent + exchanged) / replicas[m].up,
                    (times.received + exchanged) / replicas[m].down) /
           times.seconds;
  };
  for (std::size_t m = 1; m < replicas.size(); ++m) fullest = full(m) > full(fullest) ? m : fullest;
  const auto& times = p.timetable.replicas[fullest];
  constexpr double busy = 0.9;
  if (full(fullest) > busy) {
    const bool outwards = times.sent / replicas[fullest].up >= times.received / replicas[fullest].down;
    out.push_back(
        fmt::format("link: the link of {} ({}) is full {:.0f} % of the time: use a longer sync_every{} or a "
                    "codec with fewer bits",
                    site_of_replica(input.links, fullest), outwards ? "outbound" : "inbound",
                    100 * full(fullest), p.exchanges > 0 ? " or gossip_every," : ""));
  }
  double late = 0, seconds = 0;
  for (const auto& round : p.timetable.rounds) {
    late = std::min(late, round.slack);
    seconds = std::max(seconds, round.seconds);
  }
  if (late < 0) {
    out.push_back(
        fmt::format("delay: a fragment takes up to {:.3g} s from send to result, {:.3g} s more than "
                    "sync_delay {} allows: use a longer sync_delay or more fragments",
                    seconds, -late, input.experiment.outer.sync_delay));
  }
  return out;
}

void check_fit(std::vector<std::string>& out, const char* what, const std::string& given, std::uint64_t need,
               const std::string& mend) {
  if (given.empty()) return;
  struct Room {
    const char* key;
    config::Size size;
    void serialize(config::Archive& ar) { ar({key, &size, config::Scope::per_site, "", 1, 1e18}); }
  };
  Room room{what, {}};
  config::Source source;
  source.put({what, {given}, false, false, "command line", {}});
  config::Reader reader(source);
  room.serialize(reader);
  if (need <= static_cast<std::uint64_t>(room.size.bytes)) return;
  out.push_back(fmt::format("{} does not fit in {}: the plan needs {}; use {}", what + 2,
                            format_bytes(static_cast<double>(room.size.bytes)),
                            format_bytes(static_cast<double>(need)), mend));
}

/// Bytes that a replica copies to the object store with each checkpoint, and the mean rate of that.
ordered_json object_store_json(const PlanInput& input, const PlanMemory& memory) {
  const auto& run = input.experiment.run;
  const double every = static_cast<double>(run.checkpoint_every) * input.step_seconds;
  const double interval = run.checkpoint_interval.seconds;
  const double apart = every > 0 && interval > 0 ? std::min(every, interval) : std::max(every, interval);
  const auto bytes = static_cast<double>(memory.checkpoint);
  return {{"checkpoint_bytes", memory.checkpoint},
          {"mean_bits_per_second", apart > 0 ? 8 * bytes / apart : 0}};
}

/// The settings of ranks at a site.
trainer::ReplicaConfig replica_at(const Site& site, trainer::ReplicaConfig replica) {
  if (const auto* own = site.find("replica.ranks")) replica.ranks = std::stoll(own->values.front());
  if (const auto* own = site.find("replica.average_every"))
    replica.average_every = std::stoll(own->values.front());
  return replica;
}

/// The averages over the ranks of a replica, and the rate at which they take a twentieth of the time; null if
/// it has one rank.
ordered_json rank_averages(const PlanInput& input, const PlanMemory& memory, std::uint64_t exchanges,
                           const trainer::ReplicaConfig& replica) {
  if (replica.ranks == 1) return nullptr;
  const auto ranks = static_cast<double>(replica.ranks);
  const double bytes = 2 * (ranks - 1) / ranks * static_cast<double>(memory.global_parameters);  // a ring
  // Each fragment is also averaged before it is sent, before its result is applied, and likewise in
  // exchanges.
  const auto moves = 2 + 2 * static_cast<double>(exchanges);
  const double syncs = static_cast<double>(outer_sync::plan::last_sync_every(input.experiment.outer));
  const double per_step =
      1 / static_cast<double>(replica.average_every) + (replica.average_every == 1 ? 0 : moves / syncs);
  const double rate = input.step_seconds > 0 ? 8 * bytes * per_step / input.step_seconds : 0;
  return {{"bytes", bytes}, {"every", replica.average_every}, {"bits_per_second", 20 * rate}};
}

/// The averages at the site that needs the highest rate for them; null if all replicas have one rank.
ordered_json rank_averages_json(const PlanInput& input, const PlanMemory& memory, std::uint64_t exchanges) {
  const auto& experiment = input.experiment;
  if (experiment.sites.empty()) return rank_averages(input, memory, exchanges, experiment.replica);
  ordered_json most;
  for (const auto& site : experiment.sites) {
    auto here = rank_averages(input, memory, exchanges, replica_at(site, experiment.replica));
    if (here.is_null() || (!most.is_null() && most["bits_per_second"] >= here["bits_per_second"])) continue;
    most = std::move(here);
    most["site"] = site.name;
  }
  return most;
}

std::vector<std::string> memory_limits(const PlanRequest& request, const PlanMemory& memory) {
  std::vector<std::string> out;
  check_fit(out, "--device-memory", request.device_memory, memory.device,
            "a smaller model, replica.zero over more ranks (moments) or error_feedback: false (residuals)");
  check_fit(out, "--host-memory", request.host_memory, memory.host,
            "fewer replicas on a machine, or a smaller model");
  check_fit(out, "--disk", request.disk, memory.disk, "a smaller run.keep_checkpoints or outer.log_budget");
  return out;
}

/// The search optimizes for links and delays only: with any settings, faster replicas wait for the slowest.
Setting as_slow_as_the_slowest(Setting setting) {
  double slowest = 0;
  for (const auto& replica : setting.network.replicas) slowest = std::max(slowest, replica.step_seconds);
  for (auto& replica : setting.network.replicas) replica.step_seconds = slowest;
  return setting;
}

ordered_json recommendation_json(const PlanRequest& request, const PlanInput& input) {
  ordered_json json;
  json["wanted_utilization"] = request.utilization;
  json["links_are_known"] = input.links.are_known();
  if (!input.links.are_known()) return json;
  const auto found = find_choices(request.utilization, input);
  const auto* best = outer_sync::plan::best(found);
  json["choices"] = ordered_json::array();
  for (const auto& choice : found)
    json["choices"].push_back(row_of(choice.outer, choice.prediction, request, input));
  if (best == nullptr) return json;
  const auto& outer = best->outer;
  json["best"] = row_of(outer, best->prediction, request, input);
  json["set"] = {fmt::format("outer.method={}", to_string(outer.method)),
                 fmt::format("outer.sync_every={}", outer_sync::plan::last_sync_every(outer)),
                 fmt::format("outer.num_fragments={}", outer.num_fragments),
                 fmt::format("outer.sync_delay={}", outer.sync_delay),
                 fmt::format("outer.codec={}", outer.codec)};
  if (outer.error_feedback) json["set"].push_back("outer.error_feedback=true");
  return json;
}

ordered_json input_links_json(const PlanInput& input) {
  ordered_json json;
  json["source"] = input.links.source;
  for (std::size_t i = 0; i < input.links.sites.size(); ++i) {
    const auto& site = input.links.sites[i];
    json["sites"].push_back(
        {{"name", site.name},
         {"replicas", site.replicas},
         {"up_bits_per_second", site.up.bits_per_second},
         {"down_bits_per_second", site.down.bits_per_second},
         {"step_seconds", site.step_time.seconds > 0 ? site.step_time.seconds : input.step_seconds}});
  }
  json["longest_rtt_seconds"] = *std::ranges::max_element(input.links.rtt);
  return json;
}

}  // namespace

std::vector<Choice> find_choices(double utilization, const PlanInput& input) {
  auto base = input.experiment.outer;
  base.gossip_every = 0;  // the search does not choose exchanges
  if (base.method != outer_sync::Method::streaming_diloco) {
    base.method = outer_sync::Method::streaming_diloco;
    if (base.codec == "topk") base.codec = "4bit";
  }
  outer_sync::plan::Wanted wanted;
  wanted.utilization = utilization;
  if (input.layers) {
    constexpr std::int64_t layers_of_fragment = 3;
    wanted.num_fragments = {std::max<std::int64_t>(2, *input.layers / layers_of_fragment + 1),
                            *input.layers + 1};
  } else {
    wanted.num_fragments = {8, 20};
  }
  const auto enough = static_cast<std::int64_t>(input.parameters / 1024);
  std::erase_if(wanted.num_fragments, [&](auto count) { return count > std::max<std::int64_t>(1, enough); });
  wanted.codecs = {base.codec};
  for (const auto* codec : {"4bit", "3bit", "2bit"}) {
    auto outer = base;
    outer.codec = codec;
    if (codec != base.codec &&
        quant::bits_per_element(outer.codec_spec()) < quant::bits_per_element(base.codec_spec()))
      wanted.codecs.emplace_back(codec);
  }
  const auto cut = [&](std::int64_t count) -> const outer_sync::plan::Cut& { return input.cut(count); };
  return outer_sync::plan::choices(base, cut, as_slow_as_the_slowest(input.setting), wanted);
}

ordered_json plan_json(const PlanRequest& request, const PlanInput& input) {
  const auto begin = std::chrono::steady_clock::now();
  const auto& outer = input.experiment.outer;
  const auto& cut = input.cut(outer.num_fragments);
  const auto prediction = outer_sync::plan::predict(outer, cut, input.setting);
  const auto memory = plan_memory(input.experiment, cut.layout);
  ordered_json json;
  json["replicas"] = input.experiment.replicas;
  json["parameters"] = input.parameters;
  json["steps"] = input.experiment.run.steps;
  json["warmup_steps"] = outer.data_parallel() ? 0 : outer.warmup_steps;
  json["tokens_per_step"] = sum(input.tokens_per_step);
  json["step_seconds"] = input.step_seconds;
  json["step_source"] = input.step_source;
  json["links"] = input_links_json(input);
  json["price_per_gigabyte"] = request.price;
  json["elements_per_second"] = {{"encode", input.setting.speeds.encode},
                                 {"reduce", input.setting.speeds.reduce},
                                 {"apply", input.setting.speeds.apply}};
  json["configured"] = row_of(outer, prediction, request, input);
  json["configured"]["owners"] = outer.data_parallel() ? "ring with equal shares" : cut.reason;
  json["methods"] = methods_json(request, input);
  json["codecs"] = codecs_json(request, input);
  json["timetable"] = timetable_json(outer, prediction);
  if (auto windows = calendar_json(request, input); !windows.is_null()) json["calendar"] = std::move(windows);
  json["memory"] = to_json(memory);
  if (const auto& run = input.experiment.run; run.audit && run.gathers()) {
    const auto limit = static_cast<std::uint64_t>(run.gather_limit.bytes);
    json["gathered_audit_records"] = {{"bytes", std::min(memory.audit_most, limit)},
                                      {"all", memory.audit_most <= limit}};
  }
  if (input.experiment.object_store.gets_copies()) json["object_store"] = object_store_json(input, memory);
  if (prediction.exchanges > 0)
    json["exchanges"] = {{"between_syncs", prediction.exchanges},
                         {"seconds", prediction.exchange_seconds},
                         {"room_seconds", static_cast<double>(outer.gossip_every) * input.step_seconds}};
  if (auto averages = rank_averages_json(input, memory, prediction.exchanges); !averages.is_null())
    json["rank_averages"] = std::move(averages);
  json["recommended"] = recommendation_json(request, input);
  auto limits = limits_of(input, prediction, request.utilization);
  for (auto& limit : memory_limits(request, memory)) limits.push_back(std::move(limit));
  json["limits"] = limits;
  json["planned_in_seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return json;
}

}  // namespace isthmus::app
