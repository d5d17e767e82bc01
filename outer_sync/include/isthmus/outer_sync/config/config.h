#pragma once
// Config keys `outer.*`, `join.*` and `network.*`.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/outer_sync/config/outer_method.h"
#include "isthmus/outer_sync/core/calendar.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/protocol/topology.h"
#include "isthmus/quant/codec.h"
#include "isthmus/quant/lossless.h"

namespace isthmus::outer_sync {

struct OuterOptimizerConfig {
  double lr = 0.7;
  config::NumberOrAuto momentum{};
  bool nesterov = true;
  config::NumberOrAuto average_first{};  ///< fraction of run.steps, like the next one
  double average_last = 0.1;
  void serialize(config::Archive& ar);
};

/// One field for each key of the section.
struct OuterConfig {
  Method method = Method::streaming_diloco;
  std::int64_t num_fragments = 3;
  config::Stepped sync_every = 30;
  std::string pace = "steps";
  std::int64_t sync_delay = 1;
  std::int64_t gossip_every = 0;
  std::string merge = "carry";
  double merge_alpha = 0.5;
  std::string codec = "4bit";
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
  std::string warmup_codec = "4bit";
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

  /// The experiment's `replicas`: not a key of this section, set by `take_replicas`.
  std::int64_t replicas = 0;
  /// The experiment's `run.steps`, also not a key of this section. 0: unknown, and no round only averages.
  std::int64_t steps = 0;

  /// Called after reading: overwrites the settings that the method fixes. Throws Error(config) for settings
  /// that cannot work together (tau >= H, a block that does not divide the chunk).
  void resolve();
  /// Replaces the codecs' names by the stored names, which members compare and which never change.
  void use_stored_names();
  /// Sets `replicas`. Throws Error(config) if min_replicas or quorum does not fit this number.
  void take_replicas(std::int64_t number);
  /// The settings, or what auto stands for (docs/numerics.md): by `steps`; without that, for a long run.
  [[nodiscard]] double outer_momentum() const;
  [[nodiscard]] double average_first() const;
  /// Whether a round sent at this step only averages: learning rate 1 and no momentum.
  [[nodiscard]] bool averages_at(std::uint64_t step) const;
  /// Human-readable warnings about settings that are allowed but unusual, one per line.
  [[nodiscard]] std::vector<std::string> notes() const;
  /// Trainers that a view needs: min_replicas, or half of the configured replicas, rounded up.
  [[nodiscard]] std::int64_t required_replicas() const {
    return min_replicas > 0 ? min_replicas : (replicas + 1) / 2;
  }
  [[nodiscard]] std::vector<SyncPhase> sync_phases() const;
  [[nodiscard]] quant::CodecSpec codec_spec() const;
  [[nodiscard]] quant::CodecSpec warmup_codec_spec() const;
  [[nodiscard]] protocol::Topology topology_setting() const;
  [[nodiscard]] quant::Lossless lossless_stage() const { return quant::lossless(lossless); }
  [[nodiscard]] bool carries() const { return merge == "carry"; }
  /// Whether the sender keeps what its codec lost. With carry the loss stays in the local parameters.
  [[nodiscard]] bool sender_feedback() const { return error_feedback && !carries(); }
  /// Whether the codec loses something for good without error feedback: below two bits per element with
  /// carry, otherwise below three.
  [[nodiscard]] bool needs_feedback() const;
  [[nodiscard]] bool paced_by_time() const { return pace == "time"; }
  [[nodiscard]] bool data_parallel() const { return method == Method::data_parallel; }
};

struct JoinConfig {
  std::string inner_state = "donor";
  void serialize(config::Archive& ar);
  /// Whether a joining replica copies a member's inner optimizer moments.
  [[nodiscard]] bool moments() const { return inner_state == "donor"; }
};

/// An emulated link: rate, delay and loss added to this machine's traffic.
struct EmulateConfig {
  config::Rate rate;
  config::Duration rtt, jitter;
  double loss = 0;
  void serialize(config::Archive& ar);
};

/// Parse a value of network.rate or network.calendar in YAML, as `--set` does. Throw Error(config) if it is
/// invalid.
[[nodiscard]] config::Rate rate_of(const std::string& text);
[[nodiscard]] Calendar calendar_of(const std::string& text);

struct NetworkConfig {
  std::string coordinator = "127.0.0.1:0";
  static constexpr auto no_port = "none";  ///< value of `listen`: open no port
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  bool mailbox = false;
  std::string certs;
  std::string secret;
  bool insecure = false;
  std::int64_t lanes = 8;
  config::Duration heartbeat{1.0};
  config::Duration detect_timeout{5.0};
  config::Duration join_timeout{120.0};
  std::int64_t join_rate = 25'000'000;
  config::Rate rate;
  std::string calendar;
  std::string congestion = "bbr";
  EmulateConfig emulate;
  void serialize(config::Archive& ar);
  /// Throws Error(config) if detect_timeout is too short for the heartbeat, if `advertise` is set although no
  /// port is open, if the calendar is invalid, or if other machines can reach an address without certificates
  /// and `insecure` is off.
  void check() const;
  void check_ports() const;  ///< the second of these checks alone
  /// Whether this process opens a port for peers.
  [[nodiscard]] bool listens() const { return listen != no_port; }
  /// Names the first address that other machines can reach, with its key; empty if all are loopback.
  [[nodiscard]] std::string reachable() const;

 private:
  void check_silence() const;
  void check_security() const;
};

}  // namespace isthmus::outer_sync
