#include "coordinator/display.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/records/state_file.h"
#include "coordinator/run_status.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text.h"
#include "isthmus/base/time.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "run/output/terminal.h"

namespace isthmus::app {

namespace {

/// The folder of the run's own curves, next to those of the replicas. No member can have this name.
std::filesystem::path own_curves(const Experiment& experiment, bool fresh) {
  auto folder = experiment.folder() / outer_sync::tls::coordinator_name;
  make_private_folder(folder);
  if (fresh) set_event_files_aside(folder);
  return folder;
}

}  // namespace

Display::Display(const Experiment& experiment, bool fresh)
    : experiment_(experiment),
      progress_(stdout, is_terminal(stdout)),
      metrics_(experiment.folder() / "metrics.jsonl",
               [this](const std::string& text) { progress_.message(text); }),
      curves_(own_curves(experiment, fresh), experiment.folder() / "metrics.jsonl",
              [this](const std::string& text) { progress_.message(text); }),
      hook_(experiment.run.on_event, [this](const std::string& text) { message(text); }),
      events_(
          experiment, hook_, [this](const std::string& text) { message(text); },
          [this](const std::string& line) { keep(printable(line)); }),
      gathered_(
          experiment.folder(), fresh, static_cast<std::uint64_t>(experiment.run.gather_limit.bytes),
          [this](const std::string& text) { message(text); },
          [this](const std::string& why) { events_.gathering_stopped(why); }) {}

void Display::recall_evaluations() {
  std::ifstream in(experiment_.folder() / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("eval_loss") && json["eval_loss"].is_number()) {
      evaluations_[json.value("step", std::uint64_t{0})] = json["eval_loss"];
    }
  }
}

void Display::serve() {
  server_ = serve_metrics(
      experiment_.metrics, {experiment_.run.name, std::string(outer_sync::tls::coordinator_name)},
      [this] { return *readings_.get(); }, [this](const std::string& text) { progress_.message(text); });
  if (experiment_.dashboard.listen.empty()) return;
  dashboard_ = std::make_unique<Dashboard>(experiment_, lines_);
  // Not by message(): the page must not show its own token.
  const std::lock_guard lock(output_);
  progress_.message("dashboard at " + dashboard_->url());
}

void Display::store(const outer_sync::protocol::LastView& view) { store_view(experiment_.folder(), view); }

nlohmann::ordered_json Display::status_json(const Coordinator& coordinator) const {
  const auto newest = evaluations_.rbegin();
  const auto evaluation =
      newest == evaluations_.rend() ? std::nullopt : std::optional(std::pair(newest->first, newest->second));
  auto status = status_of(coordinator, experiment_, evaluation);
  constexpr std::size_t max_rounds = 128;
  status["rounds"] = timeline_.json(seconds_since(began_), max_rounds);
  const bool by_the_clock = std::ranges::any_of(
      coordinator.members(), [](const auto& entry) { return !entry.second.calendar.text().empty(); });
  status["timetable"] =
      by_the_clock ? timeline_.timetable(static_cast<std::uint64_t>(experiment_.run.steps), max_rounds)
                   : nlohmann::ordered_json::array();
  return status;
}

std::string Display::status(const Coordinator& coordinator) {
  return status_json(coordinator).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void Display::ticked(const Coordinator& coordinator) {
  constexpr auto every = std::chrono::seconds(1);
  if (!dashboard_ || Clock::now() - shown_at_ < every) return;
  shown_at_ = Clock::now();
  dashboard_->show(coordinator, status_json(coordinator), evaluations_);
}

void Display::message(const std::string& text) {
  const auto line = printable(text);  // as one line, even if a member sent several
  keep(line);
  const std::lock_guard lock(output_);
  progress_.message(line);
}

void Display::keep(const std::string& line) {
  lines_.add(seconds(std::chrono::system_clock::now().time_since_epoch()), line);
}

bool Display::gathered(const outer_sync::protocol::Gathered& news) {
  return experiment_.run.gathers() && gathered_.keep(news);
}

void Display::evaluated(std::uint64_t step, double loss) {
  // Members of a resumed run report earlier evaluations again.
  if (const auto known = evaluations_.find(step); known != evaluations_.end() && known->second == loss)
    return;
  evaluations_[step] = loss;
  {
    // Not by message(): evaluations would fill the dashboard's log, and its curve has them.
    const std::lock_guard lock(output_);
    progress_.message(fmt::format("step {}: eval loss {:.4f}", step, loss));
  }
  const nlohmann::ordered_json line{{"step", step}, {"eval_loss", loss}};
  metrics_.write(line);
  curves_.add(line);
}

void Display::round_judged(const outer_sync::protocol::RoundJudged& round) {
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

void Display::members_changed(const Coordinator& coordinator) {
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
    if (wandb_ != nullptr) wandb_->follow(name);
    slowest = std::min(slowest, beat.step);
    state.loss += beat.loss / trainers;
    state.utilization += beat.utilization / trainers;
    state.tokens_per_second += beat.tokens_per_second;
  }
  if (const auto view = std::pair(coordinator.view(), coordinator.participating()); view != shown_) {
    if (view.first != shown_.first) ++view_changes_;
    shown_ = view;
    metrics_.write({{"view", view.first}, {"live", coordinator.trainers()}, {"participating", view.second}});
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

/// Sets the wire rate over the last seconds, and the time left at the pace since the first step seen.
void Display::rate(const Totals& now, ProgressState& state) {
  if (!first_) first_ = now;
  if (!recent_ || now.at - recent_->at > std::chrono::seconds(2)) {
    // The sum falls when a member has left.
    if (recent_ && now.bytes >= recent_->bytes)
      wire_ = 8e-6 * (now.bytes - recent_->bytes) / seconds(now.at - recent_->at);
    recent_ = now;
  }
  state.wire_mbit_per_second = wire_;
  const double took = seconds(now.at - first_->at);
  const double done = now.steps - first_->steps;
  if (done > 0) state.eta_seconds = took / done * (static_cast<double>(state.steps) - now.steps);
}

/// Not at every heartbeat: there are figures for each pair of members.
void Display::publish(const Coordinator& coordinator) {
  constexpr auto every = std::chrono::milliseconds(500);
  if (!server_ || Clock::now() - published_ < every) return;
  published_ = Clock::now();
  readings_.put(readings_of(coordinator, {.steps = static_cast<std::uint64_t>(experiment_.run.steps),
                                          .view_changes = view_changes_,
                                          .evaluations = &evaluations_,
                                          .gradients = &gradients_}));
}

/// Not at every heartbeat: there is a figure for each pair of members.
void Display::write_paths(const outer_sync::protocol::RunPaths& paths) {
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

void Display::write_relays(std::vector<Coordinator::RelayedPair> relays) {
  if (relays == relays_) return;
  relays_ = std::move(relays);
  auto pairs = nlohmann::ordered_json::array();
  for (const auto& [a, b, by] : relays_) pairs.push_back({{"between", {a, b}}, {"by", by}});
  metrics_.write({{"relays", pairs}});
}

}  // namespace isthmus::app
