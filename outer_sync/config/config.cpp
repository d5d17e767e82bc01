#include "isthmus/outer_sync/config/config.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/core/calendar.h"
#include "isthmus/outer_sync/protocol/rejection.h"

namespace isthmus::outer_sync {

using config::Scope;

namespace {
const std::vector<std::string_view> codecs(std::begin(quant::codec_names), std::end(quant::codec_names));
const std::vector<std::string_view> scales(std::begin(quant::scale_names), std::end(quant::scale_names));
const std::vector<std::string_view> roundings = {"nearest", "stochastic"};
const std::vector<std::string_view> lossless_stages(std::begin(quant::lossless_names),
                                                    std::end(quant::lossless_names));
const std::vector<std::string_view> merges = {"carry", "alpha"};
const std::vector<std::string_view> topologies(std::begin(protocol::topology_names),
                                               std::end(protocol::topology_names));
}  // namespace

void OuterOptimizerConfig::serialize(config::Archive& ar) {
  ar({"lr", &lr, Scope::live, "outer learning rate", 0, 10});
  ar({"momentum", &momentum, Scope::live,
      "outer momentum mu; auto: by the length of the run, 1 - 8 / sqrt(run.steps), from 0 to 0.9", 0,
      0.9999});
  ar({"nesterov", &nesterov, Scope::agreed, "Nesterov form: step along g + mu v instead of v"});
  ar({"average_first", &average_first, Scope::agreed,
      "first part of run.steps in which rounds only average: lr 1, momentum 0; auto: 100 steps, at least a "
      "tenth of the run and at most half of it",
      0, 1});
  ar({"average_last", &average_last, Scope::agreed, "last part of run.steps in which rounds only average", 0,
      1});
}

void OuterConfig::serialize(config::Archive& ar) {
  std::string method_name(to_string(method));
  ar({"method", &method_name, Scope::agreed, "algorithm that synchronises the replicas", -config::unbounded,
      config::unbounded, method_names()});
  method = method_of(method_name);
  ar({"num_fragments", &num_fragments, Scope::agreed, "number of fragments P, which are synchronised in turn",
      1, 1e9});
  ar({"sync_every", &sync_every, Scope::live, "inner steps H between two syncs of one fragment", 1, 1e9});
  ar({"pace",
      &pace,
      Scope::agreed,
      "steps: every replica makes H inner steps between two syncs; time: each replica makes as many as it "
      "can while the median replica makes H, from H/8 to 8 H, and the run is not reproducible bit for bit",
      -config::unbounded,
      config::unbounded,
      {"steps", "time"}});
  ar({"sync_delay", &sync_delay, Scope::live,
      "inner steps tau between sending a fragment and applying its result", 0, 1e9});
  ar({"gossip_every", &gossip_every, Scope::agreed,
      "between two syncs of a fragment, inner steps between two averages of its local parameters with those "
      "of one other replica, in random pairs; the run is then not reproducible bit for bit; 0: none",
      0, 1e9});
  ar({"merge", &merge, Scope::agreed,
      "how a result changes the local parameters: carry keeps all inner steps made while the round was in "
      "flight; alpha averages local and global parameters",
      -config::unbounded, config::unbounded, merges});
  ar({"merge_alpha", &merge_alpha, Scope::live,
      "with merge alpha: weight of the local parameters when a result is merged", 0, 1});
  ar({"codec", &codec, Scope::agreed,
      "format in which outer gradients are sent: floats, integers, or 2 to 4 bits for a value with levels "
      "fitted "
      "to outer gradients (docs/numerics.md)",
      -config::unbounded, config::unbounded, codecs});
  ar({"codec_block", &codec_block, Scope::agreed,
      "elements that share one scale: a power of two, at least 16; 0: the codec's default", 0, 4096});
  ar({"codec_scale", &codec_scale, Scope::agreed, "format of the blocks' scales", -config::unbounded,
      config::unbounded, scales});
  ar({"codec_clip", &codec_clip, Scope::agreed,
      "value of the largest level, as a share of the block's largest magnitude", 0.01, 1});
  ar({"codec_rounding", &codec_rounding, Scope::agreed,
      "nearest: each value is rounded to the nearest level; stochastic: at random to one of the two nearest, "
      "so "
      "that it is right on average",
      -config::unbounded, config::unbounded, roundings});
  ar({"codec_top_k", &codec_top_k, Scope::agreed, "codec topk: elements kept of every 4096", 1, 4096});
  ar({"lossless", &lossless, Scope::agreed, "lossless compression of encoded chunks before they are sent",
      -config::unbounded, config::unbounded, lossless_stages});
  ar({"error_feedback", &error_feedback, Scope::agreed,
      "whether what the codec lost is added to the next contribution, and what chunk owners lost to the next "
      "result; with merge carry only the latter"});
  ar({"feedback_decay", &feedback_decay, Scope::agreed,
      "share of the codec's error that error feedback carries into the next round", 0, 1});
  ar({"chunk_elements", &chunk_elements, Scope::agreed,
      "elements of a chunk, a multiple of codec_block (topk: of 4096)", 16, 16777216});
  ar({"warmup_steps", &warmup_steps, Scope::agreed,
      "number of steps, from the first on, in which gradients are averaged at every step, before the outer "
      "loop "
      "begins",
      0, 1e12});
  ar({"warmup_codec", &warmup_codec, Scope::agreed,
      "format in which gradients are sent in the steps of outer.warmup_steps, always with error feedback",
      -config::unbounded, config::unbounded, codecs});
  ar({"final_sync", &final_sync, Scope::agreed,
      "whether every fragment is synchronised once more after the last step"});
  ar({"max_local_rounds", &max_local_rounds, Scope::live,
      "rounds, of H steps each, that a replica trains alone while rounds do not commit, before it waits", 0,
      1e9});
  ar({"min_replicas", &min_replicas, Scope::agreed,
      "minimum number of replicas for a round to commit; 0: half of the configured ones", 0, 1024});
  ar({"quorum", &quorum, Scope::agreed,
      "contributions after which a round closes, and late ones go into the next round; 0: all of them", 0,
      1024});
  ar({"topology", &topology, Scope::agreed,
      "which members own the chunks: mesh: equal shares; weighted: shares by upload rate; hub: one member; "
      "auto: the fastest of these",
      -config::unbounded, config::unbounded, topologies});
  ar({"grace", &grace, Scope::agreed,
      "how long a round waits for late contributions after reaching the quorum", 0, 3600});
  ar({"reject", &reject, Scope::agreed,
      "multiple of the median norm above which a contribution to a chunk is left out of the mean; 0: none is "
      "left out",
      0, 1e6});
  ar({"log", &log, Scope::per_site,
      "folder for a log of all results, from which `isthmus replay` rebuilds the model; empty: no log"});
  ar({"log_budget", &log_budget, Scope::per_site, "maximum size of the log", 1e6, 1e18});
  ar.section("optimizer", optimizer);
}

void OuterConfig::resolve() {
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::config, why); };
  if (data_parallel() && paced_by_time()) {
    refuse(
        "outer.pace is time and outer.method is data_parallel; expected pace steps: gradients are averaged "
        "at every step, so all replicas must make the same steps");
  }
  outer_method(method).fix(*this);
  if (const auto problem = quant::problem_of(codec_spec()); !problem.empty())
    refuse("outer.codec_block is " + std::to_string(codec_block) + ": " + problem);
  for (const auto& spec : {codec_spec(), warmup_codec_spec()}) {
    const std::int64_t unit = quant::unit_of(spec);
    if (chunk_elements % unit == 0) continue;
    refuse("outer.chunk_elements is " + std::to_string(chunk_elements) + "; expected a multiple of " +
           std::to_string(unit) + ", so that no block of " + std::string(to_string(spec.kind)) + " is cut");
  }
  if (reject != 0 && !(reject > 1)) {
    std::ostringstream value;
    value << reject;
    refuse("outer.reject is " + value.str() +
           "; expected 0 (off) or more than 1, because half of all contributions exceed the median");
  }
  for (const auto& part : sync_every.parts) {
    if (data_parallel() || sync_delay < part.value) continue;
    refuse("outer.sync_delay is " + std::to_string(sync_delay) + " and outer.sync_every is " +
           std::to_string(part.value) +
           "; expected sync_delay < sync_every: a fragment's result must be applied before the fragment is "
           "sent again");
  }
  if (gossip_every == 0) return;
  const auto expect = [&](const std::string& other, const std::string& why) {
    refuse("outer.gossip_every is " + std::to_string(gossip_every) + " and " + other + why);
  };
  if (gossip_every <= std::max<std::int64_t>(1, sync_delay)) {
    expect(
        "outer.sync_delay is " + std::to_string(sync_delay),
        "; expected gossip_every > sync_delay, and at least 2: an exchange may take as long as a round, and "
        "must end before the next one of its fragment");
  }
  const auto longest = std::ranges::max_element(sync_every.parts, {}, &config::Stepped::Part::value)->value;
  if (gossip_every + sync_delay >= longest) {
    expect("outer.sync_every is " + std::to_string(longest),
           "; expected gossip_every + sync_delay < sync_every, with sync_delay " +
               std::to_string(sync_delay) + ": otherwise no exchange fits between two syncs of a fragment");
  }
}

void OuterConfig::use_stored_names() {
  for (auto* name : {&codec, &warmup_codec})
    *name = std::string(quant::codec_of(quant::codec_kind(*name)).stored_name);
}

void OuterConfig::take_replicas(std::int64_t number) {
  replicas = number;
  const auto refuse = [&](const char* key, std::int64_t value, const std::string& expected) {
    throw Error(ErrorKind::config, std::string("outer.") + key + " is " + std::to_string(value) +
                                       " and replicas is " + std::to_string(replicas) + "; expected " +
                                       expected);
  };
  if (min_replicas > replicas) refuse("min_replicas", min_replicas, "min_replicas <= replicas");
  if (quorum > replicas) refuse("quorum", quorum, "quorum <= replicas");
  if (quorum > 0 && quorum < min_replicas) {
    refuse("quorum", quorum, "quorum >= outer.min_replicas, which is " + std::to_string(min_replicas));
  }
}

double OuterConfig::outer_momentum() const {
  constexpr double longest = 0.9;  // the papers' value
  if (optimizer.momentum.number) return *optimizer.momentum.number;
  return steps > 0 ? std::clamp(1 - 8 / std::sqrt(static_cast<double>(steps)), 0.0, longest) : longest;
}

double OuterConfig::average_first() const {
  if (optimizer.average_first.number) return *optimizer.average_first.number;
  return steps > 0 ? std::clamp(100 / static_cast<double>(steps), 0.1, 0.5) : 0.1;
}

bool OuterConfig::averages_at(std::uint64_t step) const {
  const auto at = static_cast<double>(step), end = static_cast<double>(steps);
  if (end <= 0) return false;
  return at <= average_first() * end ||
         (optimizer.average_last > 0 && at > (1 - optimizer.average_last) * end);
}

bool OuterConfig::needs_feedback() const {
  return quant::bits_per_element(codec_spec()) < (carries() ? 2 : 3);
}

std::vector<SyncPhase> OuterConfig::sync_phases() const {
  std::vector<SyncPhase> phases;
  for (const auto& part : sync_every.parts)
    phases.push_back({static_cast<std::uint64_t>(part.after), static_cast<std::uint64_t>(part.value)});
  return phases;
}

std::vector<std::string> OuterConfig::notes() const {
  std::vector<std::string> out;
  if (data_parallel()) return out;
  for (const auto& part : sync_every.parts) {
    const auto every = std::to_string(part.value);
    if (part.value < num_fragments) {
      out.push_back("outer.sync_every is " + every + " and there are " + std::to_string(num_fragments) +
                    " fragments: several are sent in one step");
    } else if (part.value % num_fragments != 0) {
      out.push_back("outer.sync_every is " + every + ", not a multiple of the " +
                    std::to_string(num_fragments) + " fragments: they are sent at uneven intervals");
    }
  }
  if (carries() && merge_alpha != OuterConfig().merge_alpha)
    out.push_back(
        "outer.merge_alpha has no effect with outer.merge: carry; set outer.merge: alpha to use it");
  if (!carries() && merge_alpha == 1)
    out.push_back("outer.merge_alpha is 1: results never change the local parameters");
  if (reject > 0 && replicas > 0 && replicas < static_cast<std::int64_t>(protocol::fewest_to_compare))
    out.push_back("outer.reject compares at least 3 contributions; with fewer replicas it excludes none");
  if (needs_feedback() && !error_feedback) {
    out.push_back("outer.codec is " + codec + " without outer.error_feedback: " +
                  (carries() ? "the chunk owners' losses" : "its losses") + " are permanent");
  }
  return out;
}

protocol::Topology OuterConfig::topology_setting() const {
  return static_cast<protocol::Topology>(std::ranges::find(topologies, topology) - topologies.begin());
}

quant::CodecSpec OuterConfig::codec_spec() const {
  auto spec = quant::default_spec(quant::codec_kind(codec));
  if (codec_block > 0) spec.block = static_cast<std::uint32_t>(codec_block);
  spec.scale = quant::scale_format(codec_scale);
  spec.clip = static_cast<float>(codec_clip);
  spec.rounding = codec_rounding == "nearest" ? quant::Rounding::nearest : quant::Rounding::stochastic;
  spec.top_k = static_cast<std::uint32_t>(codec_top_k);
  return spec;
}
quant::CodecSpec OuterConfig::warmup_codec_spec() const {
  // Gradients may be far smaller than outer gradients, so their scales keep the default format, which has
  // the widest range.
  auto spec = quant::default_spec(quant::codec_kind(warmup_codec));
  if (codec_block > 0) spec.block = static_cast<std::uint32_t>(codec_block);
  return spec;
}

void JoinConfig::serialize(config::Archive& ar) {
  // Per site: members send what the joining replica asks for.
  ar({"inner_state",
      &inner_state,
      Scope::per_site,
      "initial state of a joining replica's inner optimizer: donor: a copy of a member's moments, which "
      "doubles the state transfer; fresh: zeros, with a learning rate that rises over 20 steps",
      -config::unbounded,
      config::unbounded,
      {"donor", "fresh"}});
}

void EmulateConfig::serialize(config::Archive& ar) {
  ar({"rate", &rate, Scope::per_site,
      "emulated rate of bulk data to each peer, in bits per second; auto: unlimited", 1e3, 1e13});
  ar({"rtt", &rtt, Scope::per_site, "emulated round-trip time: every message is delayed by half of this", 0,
      60});
  ar({"jitter", &jitter, Scope::per_site,
      "emulated jitter: bulk data is delayed by a random time of up to this", 0, 60});
  ar({"loss", &loss, Scope::per_site,
      "emulated packet loss: share of the packets with bulk data that arrive one round trip late", 0, 0.5});
}

void NetworkConfig::serialize(config::Archive& ar) {
  ar({"coordinator", &coordinator, Scope::per_site,
      "HOST:PORT of the coordinator, or several separated by commas; port 0: `launch` chooses"});
  ar({"listen", &listen, Scope::per_site,
      "ADDRESS:PORT at which this worker accepts connections from peers; port 0: any free port; none: open "
      "no port, only connect to others"});
  ar({"advertise", &advertise, Scope::per_site,
      "HOST:PORT that peers connect to; empty: the listen address"});
  ar({"mailbox", &mailbox, Scope::per_site,
      "whether this process exchanges data through object_store.url with processes that it cannot connect "
      "to"});
  ar({"certs", &certs, Scope::per_site,
      "folder of this process's certificate (see `isthmus certs`), or a folder that contains it under this "
      "process's name; makes all connections TLS"});
  ar({"secret", &secret, Scope::per_site,
      "file with the shared secret of a run without certificates; the coordinator creates it, and any "
      "process that can read it can join; empty: run.secret in the run's folder, or no secret with "
      "network.insecure"});
  ar({"insecure", &insecure, Scope::per_site,
      "allow addresses that other machines can reach, without certificates: anyone on the network path can "
      "read and change all traffic"});
  ar({"lanes", &lanes, Scope::agreed, "TCP connections to each peer for bulk data", 1, 64});
  ar({"heartbeat", &heartbeat, Scope::per_site, "time between two heartbeats", 0.05, 60});
  ar({"detect_timeout", &detect_timeout, Scope::per_site, "silence after which a peer counts as lost", 0.2,
      3600});
  ar({"join_timeout", &join_timeout, Scope::per_site, "how long to wait for all replicas at the start", 0.2,
      86400});
  ar({"join_rate", &join_rate, Scope::per_site,
      "maximum bytes per second of state that a member sends to all joining members together, so that "
      "rounds "
      "are not delayed",
      4096, 1e12});
  ar({"rate",
      &rate,
      Scope::per_site,
      "maximum rate at which this member sends to all its peers together: the upload rate of its link; "
      "auto "
      "measures and follows the link",
      1e3,
      1e13,
      {},
      true});
  ar({"calendar",
      &calendar,
      Scope::per_site,
      "when this member may send less than network.rate: entries of days, times and a rate, separated by "
      "semicolons, such as 'mon-fri 8:00-18:00 20Mbps; sat closed'; the last entry with a time in it "
      "applies; times are UTC, or those of a first entry such as utc+1",
      -config::unbounded,
      config::unbounded,
      {},
      true});
  ar({"congestion",
      &congestion,
      Scope::per_site,
      "TCP congestion control on connections to other machines; system: the operating system's choice",
      -config::unbounded,
      config::unbounded,
      {"bbr", "cubic", "system"}});
  ar.section("emulate", emulate);
}

namespace {
NetworkConfig network_with(const std::string& assignment) {
  config::Source source;
  source.set(assignment);
  struct {
    NetworkConfig network;
    void serialize(config::Archive& ar) { network.serialize(ar); }
  } keys;
  config::Reader reader(source);
  keys.serialize(reader);
  reader.finish();
  return keys.network;
}
}  // namespace

config::Rate rate_of(const std::string& text) { return network_with("rate=" + text).rate; }

Calendar calendar_of(const std::string& text) {
  return Calendar::parse(network_with("calendar=" + text).calendar);
}

namespace {
std::string seconds_of(const config::Duration& duration) {
  const auto milliseconds = static_cast<std::int64_t>(duration.seconds * 1000);
  return milliseconds % 1000 == 0 ? std::to_string(milliseconds / 1000) + "s"
                                  : std::to_string(milliseconds) + "ms";
}
}  // namespace

void NetworkConfig::check() const {
  static_cast<void>(Calendar::parse(calendar));
  check_silence();
  check_ports();
  check_security();
}

void NetworkConfig::check_silence() const {
  if (detect_timeout.seconds >= 4 * heartbeat.seconds) return;
  throw Error(ErrorKind::config, "network.detect_timeout is " + seconds_of(detect_timeout) +
                                     " and network.heartbeat is " + seconds_of(heartbeat) +
                                     "; expected a detect_timeout of at least four heartbeats, so that a "
                                     "late heartbeat does not count as silence");
}

void NetworkConfig::check_ports() const {
  if (listens() || advertise.empty()) return;
  throw Error(ErrorKind::config, "network.advertise is '" + advertise +
                                     "' and network.listen is none; expected an empty network.advertise, "
                                     "because no port is open for peers to connect to");
}

std::string NetworkConfig::reachable() const {
  for (const auto& [key, text] : {std::pair("network.coordinator", &coordinator),
                                  {"network.listen", &listen},
                                  {"network.advertise", &advertise}}) {
    if (text->empty() || *text == no_port) continue;
    const auto addresses = parse_addresses(*text, key);
    if (!std::ranges::all_of(addresses, &Address::is_loopback))
      return std::string(key) + " is '" + *text + "'";
  }
  return {};
}

void NetworkConfig::check_security() const {
  if (mailbox && certs.empty() && !insecure)
    throw Error(ErrorKind::config,
                "network.mailbox is true and there are no certificates; expected network.certs, because the "
                "owner of the object store could read and change what passes through it");
  const auto open = reachable();
  if (open.empty() || !certs.empty() || insecure) return;
  throw Error(ErrorKind::config,
              open +
                  ", which other machines can reach, and there are no certificates. Make some with `isthmus "
                  "certs init` and name their folder in network.certs; or pass --insecure: then anyone who "
                  "sees the packets can read and change all traffic, and join the run");
}

}  // namespace isthmus::outer_sync
