#include "coordinator/coordinator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>

#include "coordinator/events/run_events.h"
#include "coordinator/newcomer_config.h"
#include "coordinator/records/gathered_folders.h"
#include "coordinator/records/round_timeline.h"
#include "coordinator/replan/auto_replan.h"
#include "coordinator/run_status.h"
#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/net/link/run_secret.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "run/experiment/identity.h"
#include "run/experiment/live_settings.h"
#include "run/metrics/metrics_server.h"
#include "run/metrics/run_readings.h"
#include "run/metrics/summary.h"
#include "run/output/exit_codes.h"
#include "run/output/json_output.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"

namespace isthmus::app {

using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Ended;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Sums over members at one moment, for rates.
struct Totals {
  double steps = 0;  ///< of the slowest member
  double bytes = 0;
  Clock::time_point at = Clock::now();
};

std::filesystem::path state_file(const Experiment& experiment) {
  return experiment.folder() / "coordinator.state";
}

outer_sync::protocol::LastView last_view_of(const Bytes& bytes, const std::filesystem::path& path) {
  try {
    return from_bytes<outer_sync::protocol::LastView>(bytes);
  } catch (const Error&) {  // the digest is right, so it is not damaged
    throw Error(
        ErrorKind::data,
        path.string() +
            " was written by another build; start the coordinator with that build, or with --recover, "
            "which forms the run from its members");
  }
}

/// The last view that an earlier coordinator announced; nullopt without an earlier coordinator.
std::optional<outer_sync::protocol::LastView> recall(const Experiment& experiment) {
  const auto path = state_file(experiment);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const File file(path, File::Mode::read);
  Digest digest;
  const auto size = file.size();
  constexpr std::uint64_t most = 1 << 20;
  if (size >= digest.bytes.size() && size <= most) {
    Bytes bytes(size - digest.bytes.size());
    if (file.read(std::as_writable_bytes(std::span(digest.bytes))) && file.read(bytes) &&
        hash_of(bytes) == digest)
      return last_view_of(bytes, path);
  }
  throw Error(ErrorKind::data,
              path.string() +
                  " is damaged; start the coordinator with --recover, which forms the run from "
                  "its members");
}

/// For a coordinator that recovers a run, and does not need the file.
std::optional<outer_sync::protocol::LastView> recall_if_readable(const Experiment& experiment) {
  try {
    return recall(experiment);
  } catch (const Error&) {
    return std::nullopt;
  }
}

class Display final : public outer_sync::CoordinatorObserver {
 public:
  /// `fresh`: the run is neither continued nor resumed.
  Display(const Experiment& experiment, bool fresh)
      : experiment_(experiment),
        progress_(stdout, isatty(STDOUT_FILENO) == 1),
        metrics_(experiment.folder() / "metrics.jsonl",
                 [this](const std::string& text) { progress_.message(text); }),
        hook_(experiment.run.on_event, [this](const std::string& text) { said(text); }),
        events_(experiment, hook_, [this](const std::string& text) { said(text); }),
        gathered_(
            experiment.folder(), fresh, static_cast<std::uint64_t>(experiment.run.gather_limit.bytes),
            [this](const std::string& text) { said(text); },
            [this](const std::string& why) { events_.gathering_stopped(why); }) {}

  void ended(const Ended& ended, bool stopped) { events_.ended(ended, stopped); }
  /// `replan` must outlive the run.
  void plans_with(AutoReplan& replan) { replan_ = &replan; }

  void store(const outer_sync::protocol::LastView& view) override {
    const auto bytes = to_bytes(view);
    const auto digest = hash_of(bytes);
    replace_file(state_file(experiment_), [&](const File& file) {
      file.write(std::as_bytes(std::span(digest.bytes)));
      file.write(bytes);
    });
  }

  std::string status(const Coordinator& coordinator) override {
    const auto newest = evaluations_.rbegin();
    const auto evaluation = newest == evaluations_.rend()
                                ? std::nullopt
                                : std::optional(std::pair(newest->first, newest->second));
    using Json = nlohmann::ordered_json;
    auto status = status_of(coordinator, experiment_, evaluation);
    constexpr std::size_t max_rounds = 128;
    status["rounds"] = timeline_.json(seconds_since(began_), max_rounds);
    return status.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  void message(const std::string& text) override { said(text); }

  bool gathered(const outer_sync::protocol::Gathered& news) override {
    return experiment_.run.gathers() && gathered_.keep(news);
  }

  void evaluated(std::uint64_t step, double loss) override {
    // Members of a resumed run report earlier evaluations again.
    if (const auto known = evaluations_.find(step); known != evaluations_.end() && known->second == loss)
      return;
    evaluations_[step] = loss;
    said(fmt::format("step {}: eval loss {:.4f}", step, loss));
    metrics_.write({{"step", step}, {"eval_loss", loss}});
  }

  void round_judged(const outer_sync::protocol::RoundJudged& round) override {
    timeline_.committed(seconds_since(began_), round.fragment, round.round);
    nlohmann::ordered_json norms, cosines;
    for (const auto& replica : round.replicas) {
      auto& record = gradients_[replica.name];
      record.norm = replica.norm;
      record.cosine = replica.cosine;
      ++record.rounds;
      norms[replica.name] = replica.norm;
      cosines[replica.name] = replica.cosine;
    }
    for (const auto& name : round.outliers) ++gradients_[name].outlier_rounds;
    outlier_ = round.outliers.empty() ? std::string() : round.outliers.front();
    metrics_.write({{"fragment", round.fragment},
                    {"round", round.round},
                    {"outer_gradient_norm", norms},
                    {"outer_gradient_cosine", cosines},
                    {"outliers", round.outliers}});
  }

  void members_changed(const Coordinator& coordinator) override {
    events_.look(coordinator);
    timeline_.look(seconds_since(began_), coordinator, experiment_.outer);
    if (const auto change = replan_ != nullptr ? replan_->look(coordinator) : std::nullopt) {
      metrics_.write({{"replanned", *change}});
      events_.replanned(*change);
    }
    ProgressState state;
    Totals now;
    const auto& members = coordinator.members();
    std::uint64_t slowest = ~std::uint64_t{0};
    const auto trainers = static_cast<double>(coordinator.trainers());
    for (const auto& [name, member] : members) {
      const auto& beat = member.heartbeat;
      now.bytes += static_cast<double>(beat.bytes_sent);
      if (!outer_sync::protocol::trains(member.hello.member)) continue;
      slowest = std::min(slowest, beat.step);
      state.loss += beat.loss / trainers;
      state.utilization += beat.utilization / trainers;
      state.tokens_per_second += beat.tokens_per_second;
    }
    if (const auto view = std::pair(coordinator.view(), coordinator.participating()); view != shown_) {
      if (view.first != shown_.first) ++view_changes_;
      shown_ = view;
      metrics_.write(
          {{"view", view.first}, {"live", coordinator.trainers()}, {"participating", view.second}});
    }
    write_paths(coordinator.paths());
    write_relays(coordinator.relays());
    publish(coordinator);
    now.steps = static_cast<double>(slowest);
    if (coordinator.trainers() == 0 || slowest == 0) return;
    if (coordinator.participating() < coordinator.trainers() ||
        coordinator.trainers() != static_cast<std::size_t>(experiment_.replicas)) {
      state.note = fmt::format("{}/{} in", coordinator.participating(), experiment_.replicas);
    }
    if (!outlier_.empty()) state.note += (state.note.empty() ? "" : ", ") + outlier_ + " is an outlier";
    if (!relays_.empty())
      state.note += fmt::format("{}{} relayed", state.note.empty() ? "" : ", ", relays_.size());
    state.step = slowest;
    state.steps = static_cast<std::uint64_t>(experiment_.run.steps);
    rate(now, state);
    const std::lock_guard lock(output_);
    progress_.update(state);
  }

  /// Lets a resumed run continue the curve of the runs before it.
  void recall_evaluations() {
    std::ifstream in(experiment_.folder() / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("eval_loss") && json["eval_loss"].is_number()) {
        evaluations_[json.value("step", std::uint64_t{0})] = json["eval_loss"];
      }
    }
  }

  /// Serves metrics for Prometheus.
  void serve(const MetricsConfig& config) {
    server_ = serve_metrics(
        config, {experiment_.run.name, std::string(outer_sync::tls::coordinator_name)},
        [this] { return *readings_.get(); }, [this](const std::string& text) { progress_.message(text); });
  }

  void finish() { progress_.finish(); }
  [[nodiscard]] const std::map<std::uint64_t, double>& evaluations() const { return evaluations_; }
  [[nodiscard]] const std::map<std::string, GradientReport>& gradients() const { return gradients_; }

 private:
  /// The hook's thread calls this too.
  void said(const std::string& text) {
    const std::lock_guard lock(output_);
    progress_.message(printable(text));  // as one line, even if a member sent several
  }

  /// Sets the wire rate over the last seconds, and the time left at the pace since the first step seen.
  void rate(const Totals& now, ProgressState& state) {
    if (!first_) first_ = now;
    if (!recent_ || now.at - recent_->at > std::chrono::seconds(2)) {
      // The sum falls when a member has left.
      if (recent_ && now.bytes >= recent_->bytes)
        wire_ =
            8e-6 * (now.bytes - recent_->bytes) / std::chrono::duration<double>(now.at - recent_->at).count();
      recent_ = now;
    }
    state.wire_mbit_per_second = wire_;
    const double took = std::chrono::duration<double>(now.at - first_->at).count();
    const double done = now.steps - first_->steps;
    if (done > 0) state.eta_seconds = took / done * (static_cast<double>(state.steps) - now.steps);
  }

  /// Not at every heartbeat: there are figures for each pair of members.
  void publish(const Coordinator& coordinator) {
    constexpr auto every = std::chrono::milliseconds(500);
    if (!server_ || Clock::now() - published_ < every) return;
    published_ = Clock::now();
    readings_.put(readings_of(coordinator, {.steps = static_cast<std::uint64_t>(experiment_.run.steps),
                                            .view_changes = view_changes_,
                                            .evaluations = &evaluations_,
                                            .gradients = &gradients_}));
  }

  /// Not at every heartbeat: there is a figure for each pair of members.
  void write_paths(const outer_sync::protocol::RunPaths& paths) {
    constexpr std::uint64_t every = 10;
    if (paths.comparisons() < paths_written_ + (paths_written_ == 0 ? 1 : every)) return;
    paths_written_ = paths.comparisons();
    using Milliseconds = std::chrono::duration<double, std::milli>;
    nlohmann::ordered_json round_trips, shortest, rates;
    for (const auto& path : paths.all()) {
      round_trips[path.from][path.to] = Milliseconds(path.round_trip).count();
      shortest[path.from][path.to] = Milliseconds(path.shortest).count();
      if (path.bytes_per_second > 0) rates[path.from][path.to] = path.bytes_per_second;
    }
    if (round_trips.empty()) return;
    metrics_.write({{"round_trip_ms", round_trips},
                    {"shortest_round_trip_ms", shortest},
                    {"bytes_per_second", rates.empty() ? nlohmann::ordered_json::object() : rates}});
  }

  void write_relays(std::vector<Coordinator::RelayedPair> relays) {
    if (relays == relays_) return;
    relays_ = std::move(relays);
    auto pairs = nlohmann::ordered_json::array();
    for (const auto& [a, b, by] : relays_) pairs.push_back({{"between", {a, b}}, {"by", by}});
    metrics_.write({{"relays", pairs}});
  }

  const Experiment& experiment_;
  Progress progress_;
  Metrics metrics_;
  std::map<std::uint64_t, double> evaluations_;
  std::map<std::string, GradientReport> gradients_;  ///< by name
  std::vector<Coordinator::RelayedPair> relays_;     ///< as last written
  std::string outlier_;                              ///< of the round judged last
  std::optional<Totals> first_, recent_;
  std::pair<std::uint64_t, std::size_t> shown_;  ///< view, members that participate
  std::uint64_t paths_written_ = 0;              ///< number of comparisons at the last write
  double wire_ = 0;
  std::mutex output_;
  EventHook hook_;
  RunEvents events_;
  GatheredFolders gathered_;
  AutoReplan* replan_ = nullptr;
  RoundTimeline timeline_;
  const Clock::time_point began_ = Clock::now();
  std::uint64_t view_changes_ = 0;
  Clock::time_point published_;
  LatestReadings readings_;
  std::unique_ptr<MetricsServer> server_;  ///< last: its threads read the members above
};

/// Higher than any view number of any coordinator before: views are formed less often than a million times
/// per second.
std::uint64_t first_view_number() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count()) << 20U;
}

/// Null unless this machine has the authority's key: in the folder of certificates, or in its parent folder.
std::unique_ptr<outer_sync::tls::EnrolmentDesk> enrolment_desk(const std::string& certs,
                                                               Experiment& experiment) {
  if (certs.empty()) return nullptr;
  const auto own = std::filesystem::absolute(certs).lexically_normal();
  for (const auto& folder : {own, own.has_filename() ? own.parent_path() : own.parent_path().parent_path()}) {
    if (!std::filesystem::exists(folder / "ca.key")) continue;
    return std::make_unique<outer_sync::tls::EnrolmentDesk>(outer_sync::tls::Authority::open(folder),
                                                            config_for_newcomers(experiment));
  }
  return nullptr;
}

void write_summary(Experiment& experiment, const Coordinator& coordinator, const Display& display,
                   double wall_seconds, JsonOutput& json) {
  RunReport report{.members = {},
                   .reducer_bytes = {},
                   .evaluations = display.evaluations(),
                   .gradients = display.gradients(),
                   .wall_seconds = wall_seconds};
  for (const auto& [name, member] : coordinator.members()) {
    if (outer_sync::protocol::trains(member.hello.member)) {
      if (member.done) report.members.push_back(report_of<MemberReport>(member.result.summary));
    } else {
      const auto done = nlohmann::json::parse(member.result.summary, nullptr, false);
      const bool says =
          done.is_object() && done.contains("total_bytes") && done["total_bytes"].is_number_unsigned();
      report.reducer_bytes[name] =
          says ? done["total_bytes"].get<std::uint64_t>() : member.heartbeat.bytes_sent;
    }
  }
  // If the run had got further before it was resumed, recalled evaluations may be of later steps.
  auto& evaluations = report.evaluations;
  evaluations.erase(evaluations.upper_bound(report.members.front().last_step), evaluations.end());
  const auto summary = summary_json(experiment, report);
  say_to(stdout, printable_lines(summary_table(summary, report.members.front().sample)));
  json.print(summary);
  replace_file(experiment.folder() / "summary.json", summary.dump(2) + "\n");
}

}  // namespace

void announce_port(int fd, std::uint16_t port) {
  if (fd < 0) return;
  const auto line = std::to_string(port) + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Error(ErrorKind::network, "cannot pass the coordinator's port to the launcher");
  }
  close(fd);
}

outer_sync::protocol::CoordinatorOptions coordinator_options(Experiment& experiment) {
  const auto rule = closing_rule(experiment);
  outer_sync::protocol::CoordinatorOptions options;
  options.run = experiment.run.name;
  options.replicas = static_cast<std::size_t>(experiment.replicas);
  options.reducers = static_cast<std::size_t>(experiment.reducers);
  options.config = shared_items(experiment);
  options.least = std::max(rule.least, rule.quorum);
  options.leases = rule.quorum > 0;
  options.topology = {experiment.outer.topology_setting(),
                      quant::bits_per_element(experiment.outer.codec_spec())};
  options.elastic = !experiment.outer.data_parallel();
  options.warmup_rounds = static_cast<std::uint64_t>(experiment.outer.warmup_steps);
  options.steps = static_cast<std::uint64_t>(experiment.run.steps);
  options.checkpoint_interval = std::chrono::duration_cast<outer_sync::protocol::Time>(
      std::chrono::duration<double>(experiment.run.checkpoint_interval.seconds));
  options.judge = [experiment](const auto& before, const auto& items) {
    return judge_change(experiment, before, items);
  };
  return options;
}

int run_coordinator(CoordinatorRequest request) {
  JsonOutput json(request.json);
  auto& experiment = request.experiment;
  make_private_folder(experiment.folder());
  // If a run continued without its coordinator, this one takes it over. A run that is resumed has ended, so
  // its last view does not count.
  const auto last = request.recover || request.resume ? std::nullopt : recall(experiment);
  const bool goes_on = last || request.recover;
  if (!request.resume && !goes_on) {
    for (const auto* file : {"metrics.jsonl", "summary.json"}) make_room(experiment.folder() / file);
  }
  Display display(experiment, !request.resume && !goes_on);
  if (request.resume || goes_on) display.recall_evaluations();
  auto options = coordinator_options(experiment);
  options.last = last;
  options.build = request.build;
  if (!request.given_up.empty() && !request.recover)
    throw Error(ErrorKind::config, "--give-up needs --recover");
  if (request.recover) {
    options.recover = first_view_number();
    options.before = recall_if_readable(experiment);
    options.given_up = std::move(request.given_up);
  }
  auto desk = enrolment_desk(experiment.network.certs, experiment);
  take_identity(outer_sync::tls::coordinator_name, experiment);
  if (!experiment.network.secret.empty()) outer_sync::make_run_secret(experiment.network.secret);
  outer_sync::CoordinatorNode node(experiment.network, std::move(options), display, std::move(desk));
  const SignalThread signals([&](int, int count) {
    if (count > 1) _exit(stopped_exit);
    node.request_stop("asked to by a signal");
  });
  AutoReplan replan(
      experiment,
      [&node](const auto& items, const std::string& why) { node.propose(items, "outer.auto", why); },
      [&display](const std::string& text) { display.message(text); });
  display.plans_with(replan);
  display.serve(experiment.metrics);
  announce_port(request.announce_fd, node.port());
  display.message(
      fmt::format("coordinator of '{}' listens at port {}, waiting for {}", experiment.run.name, node.port(),
                  goes_on ? "the members of the run" : fmt::format("{} replicas", experiment.replicas)));
  if (!request.chosen.empty()) display.message(request.chosen);
  const auto begin = Clock::now();
  const auto ended = node.run();
  display.finish();
  display.ended(ended, node.coordinator().stopping());
  // Before the state is removed: a coordinator that is killed in between leaves the summary.
  std::exception_ptr no_summary;
  try {
    if (ended.how == Ended::How::finished)
      write_summary(experiment, node.coordinator(), display, seconds_since(begin), json);
  } catch (const Error&) {
    no_summary = std::current_exception();
  }
  // The run is over. A later run with this name starts from its own first view.
  remove_file(state_file(experiment));
  if (no_summary) std::rethrow_exception(no_summary);
  if (ended.how == Ended::How::finished) return node.coordinator().stopping() ? stopped_exit : 0;
  if (ended.how == Ended::How::stopped) return stopped_exit;
  // Also after a signal: `launch` sends one when a process has ended, and only the coordinator knows the
  // reason.
  throw Error(ended.how == Ended::How::diverged ? ErrorKind::divergence : ErrorKind::network, ended.reason);
}

}  // namespace isthmus::app
