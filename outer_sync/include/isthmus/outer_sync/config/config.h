#pragma once
// Keys `outer.*`, `join.*` and `network.*`.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/protocol/topology.h"
#include "isthmus/quant/codec.h"
#include "isthmus/quant/lossless.h"

namespace isthmus::outer_sync {

struct OuterOptimizerConfig {
  double lr = 0.7;
  double momentum = 0.8;
  bool nesterov = true;
  double average_first = 0.1, average_last = 0.1;  ///< parts of the run
  void serialize(config::Archive& ar);
};

struct OuterConfig {
  std::string method = "streaming_diloco";
  std::int64_t num_fragments = 3;
  config::Stepped sync_every = 30;
  std::string pace = "steps";
  std::int64_t sync_delay = 1;
  std::string merge = "carry";
  double merge_alpha = 0.5;
  double staleness_penalty = 1;
  double momentum_clip = 0;
  std::string codec = "lloyd4";
  std::int64_t codec_block = 0;
  std::string codec_scale = "bf16";
  double codec_clip = 1;
  std::string codec_rounding = "nearest";
  std::int64_t codec_top_k = 64;
  std::string lossless = "none";
  bool error_feedback = false;
  double feedback_decay = 1;
  std::int64_t chunk_elements = 65536;
  std::int64_t warmup_steps = 0;
  std::string warmup_codec = "lloyd4";
  bool final_sync = true;
  std::int64_t max_local_rounds = 2;
  std::int64_t min_replicas = 0;
  std::int64_t quorum = 0;
  std::string topology = "auto";
  config::Duration grace{10.0};
  double reject = 0;
  std::string log;
  config::Size log_budget{20'000'000'000};
  OuterOptimizerConfig optimizer;
  void serialize(config::Archive& ar);

  /// The experiment's `replicas`, no key of this section; known after `take_replicas`.
  std::int64_t replicas = 0;
  /// The experiment's `run.steps`, likewise; 0: not known, and no round only averages.
  std::int64_t steps = 0;

  /// The method's own rules, applied after reading: diloco is one fragment without delay, local_sgd plain
  /// averaging, the others what method_defaults.h says; and the codec's defaults. Throws Error(config) for
  /// settings that cannot work together (tau >= H, a block that does not divide the chunk).
  void resolve();
  /// Throws Error(config) for settings that a run of so many replicas cannot have.
  void take_replicas(std::int64_t number);
  /// Whether a round that is sent at this step only averages: learning rate 1 and no momentum.
  [[nodiscard]] bool averages_at(std::uint64_t step) const;
  /// What is allowed and unusual, a line each, for people to read.
  [[nodiscard]] std::vector<std::string> notes() const;
  /// Training replicas that a view needs: min_replicas, or half of the configured ones, rounded up.
  [[nodiscard]] std::int64_t required_replicas() const {
    return min_replicas > 0 ? min_replicas : (replicas + 1) / 2;
  }
  [[nodiscard]] std::vector<SyncPhase> sync_phases() const;
  [[nodiscard]] quant::CodecSpec codec_spec() const;
  [[nodiscard]] quant::CodecSpec warmup_codec_spec() const;
  [[nodiscard]] protocol::Topology topology_setting() const;
  [[nodiscard]] quant::Lossless lossless_stage() const { return quant::lossless(lossless); }
  [[nodiscard]] bool carries() const { return merge == "carry"; }
  /// The sender keeps what its codec lost. With carry what is lost stays in the local parameters.
  [[nodiscard]] bool sender_feedback() const { return error_feedback && !carries(); }
  /// Without error feedback the codec loses something for good: with carry below two bits, else below three.
  [[nodiscard]] bool needs_feedback() const;
  [[nodiscard]] bool paced_by_time() const { return pace == "time"; }
  [[nodiscard]] bool data_parallel() const { return method == "data_parallel"; }
  [[nodiscard]] bool eager() const { return method == "eager"; }
  [[nodiscard]] bool co2() const { return method == "co2"; }
  [[nodiscard]] Overlap overlap() const { return eager() || co2() ? Overlap::whole_round : Overlap::delay; }
};

struct JoinConfig {
  std::string inner_state = "donor";
  void serialize(config::Archive& ar);
  /// A newcomer takes the inner optimizer's moments from the members.
  [[nodiscard]] bool moments() const { return inner_state == "donor"; }
};

/// A link that this machine does not have.
struct EmulateConfig {
  config::Rate rate;
  config::Duration rtt, jitter;
  double loss = 0;
  void serialize(config::Archive& ar);
};

/// Throws Error(config) for a text that is no network.rate.
[[nodiscard]] config::Rate rate_of(const std::string& text);

struct NetworkConfig {
  std::string coordinator = "127.0.0.1:0";
  static constexpr auto no_port = "none";  ///< as `listen`
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  std::string certs;
  std::string secret;
  bool insecure = false;
  std::int64_t lanes = 8;
  config::Duration heartbeat{1.0};
  config::Duration detect_timeout{5.0};
  config::Duration join_timeout{120.0};
  std::int64_t join_rate = 25'000'000;
  config::Rate rate;
  std::string congestion = "bbr";
  EmulateConfig emulate;
  void serialize(config::Archive& ar);
  /// Throws Error(config) for a detect_timeout that is too short for the heartbeat, for an address to be
  /// dialled at where no port is open, and for one that others can reach where nothing keeps strangers out.
  void check() const;
  void check_ports() const;  ///< the second of these alone
  /// Whether there is a port that peers can dial.
  [[nodiscard]] bool listens() const { return listen != no_port; }
  /// The first address that other machines can reach, with its key; empty if there is none.
  [[nodiscard]] std::string reachable() const;

 private:
  void check_silence() const;
  void check_security() const;
};

}  // namespace isthmus::outer_sync
