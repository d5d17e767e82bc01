#include "model/launched_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/coordinator/control_client.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "launch/launch_folder.h"
#include "launch/sites/launch_sites.h"
#include "launch/sites/site_models.h"
#include "model/site_choice.h"
#include "run/experiment/identity.h"
#include "run/output/terminal.h"
#include "run/process/joined.h"
#include "run/process/run_folder.h"
#include "worker/followers/global_copy.h"

namespace isthmus::app {

namespace fs = std::filesystem;
namespace protocol = outer_sync::protocol;
using namespace std::chrono_literals;
using Kind = LauncherConfig::Kind;

namespace {

constexpr const char* run_config_name = "config.yaml";
constexpr const char* fetched_name = "fetched";

/// Absolute, and without a slash at its end.
fs::path absolute_folder(const fs::path& folder) {
  const auto full = fs::absolute(folder).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

Experiment load_run(const fs::path& folder, const std::vector<std::string>& assignments) {
  auto experiment = load_experiment(folder / run_config_name, assignments, std::nullopt, Purpose::inference);
  move_to(experiment, folder);
  return experiment;
}

bool is_file_name(const std::string& tokenizer) {
  return tokenizer != "bytes" && !tokenizer.starts_with("vocab:");
}

/// A tokenizer of the run and the table that follows from its vocabulary.
struct Setup {
  std::string name;  ///< data.tokenizer here
  std::unique_ptr<const data::Tokenizer> tokenizer;
  trainer::ParameterTable table;

  Setup(const Experiment& experiment, std::string tokenizer_name)
      : name(std::move(tokenizer_name)),
        tokenizer(data::make_tokenizer(name)),
        table({experiment.model, tokenizer->vocab_size()}, experiment.outer.num_fragments,
              static_cast<std::uint64_t>(experiment.outer.chunk_elements)) {}
};

class LaunchedRun {
 public:
  LaunchedRun(const fs::path& folder, const std::vector<std::string>& assignments, std::string build)
      : folder_(absolute_folder(folder)),
        assignments_(assignments),
        build_(std::move(build)),
        run_(load_run(folder_, of_the_run(assignments))) {}

  TrainedModel model() {
    if (const auto copy = copy_of_ended_run()) return of_checkpoint(*copy, "fetched earlier");
    if (is_live()) {
      if (auto live = of_live_run()) return std::move(*live);
    }
    if (auto fetched = of_sites()) return std::move(*fetched);
    if (const auto copy = newest_copy()) {
      for (const auto& reason : reasons_) say_error("isthmus: " + reason);
      return of_checkpoint(*copy, "fetched earlier; it may be older than the run's newest");
    }
    fail();
  }

 private:
  /// Assignments that say how to reach the run. All others are for what is done with the model, and the
  /// coordinator would refuse an observer with other settings than the run's.
  static std::vector<std::string> of_the_run(const std::vector<std::string>& assignments) {
    std::vector<std::string> out;
    std::ranges::copy_if(assignments, std::back_inserter(out), [](const std::string& text) {
      return text.starts_with("network.") || text.starts_with("data.tokenizer=");
    });
    return out;
  }

  [[nodiscard]] TrainedModel model_with(Setup setup, std::vector<float> parameters,
                                        std::string origin) const {
    auto assignments = assignments_;
    if (is_file_name(setup.name))
      assignments.push_back("data.tokenizer=" + nlohmann::json(setup.name).dump());
    return {.experiment = load_run(folder_, assignments),
            .tokenizer = std::move(setup.tokenizer),
            .table = std::move(setup.table),
            .parameters = std::move(parameters),
            .origin = std::move(origin)};
  }

  // ---- the live run ----

  [[nodiscard]] std::string coordinator() const {
    return address_at(run_, nullptr, LaunchFolder(run_).kept_port());
  }

  /// Asks the coordinator as an operator. Without an operator's certificate, true: the attempt to join will
  /// show it.
  bool is_live() {
    try {
      auto experiment = run_;
      experiment.network.coordinator = coordinator();
      take_identity(protocol::operator_name, experiment);
      const auto& certs = experiment.network.certs;
      if (!certs.empty() && !fs::exists(fs::path(certs) / "cert.pem")) return true;
      protocol::Command status;
      status.run = run_.run.name;
      status.by = protocol::operator_name;
      status.verb = "status";
      const auto answer = outer_sync::ask(experiment.network, status, 10s);
      const auto json = nlohmann::json::parse(answer.text, nullptr, false);
      const auto phase = json.is_object() ? json.value("phase", "") : "";
      if (answer.problem.empty() && phase != "ended" && phase != "joining") return true;
      const auto* why = phase == "ended" ? "it has just ended" : "its coordinator waits for replicas";
      reasons_.push_back("the run is not live: " + (answer.problem.empty() ? why : answer.problem));
    } catch (const std::exception& error) {
      reasons_.push_back(fmt::format("the run is not live: {}", error.what()));
    }
    return false;
  }

  /// Without certificates any free name will do. Otherwise those of the certificates here that no process of
  /// the run uses from its start, the one for observers first.
  [[nodiscard]] std::vector<std::string> observer_names() const {
    const auto& certs = run_.network.certs;
    if (certs.empty()) return {fmt::format("copy-{}", getpid())};
    auto used = worker_names(run_);
    for (auto& name : reducer_names(run_)) used.push_back(std::move(name));
    used.emplace_back(outer_sync::tls::coordinator_name);
    std::vector<std::string> names;
    std::error_code no_folder;
    for (const auto& entry : fs::directory_iterator(certs, no_folder)) {
      const auto name = entry.path().filename().string();
      if (!fs::exists(entry.path() / "cert.pem") || protocol::is_operator(name)) continue;
      if (std::ranges::find(used, name) == used.end()) names.push_back(name);
    }
    std::ranges::sort(names);
    std::stable_partition(names.begin(), names.end(),
                          [](const std::string& name) { return name == "watch"; });
    return names;
  }

  std::optional<TrainedModel> of_live_run() {
    const auto names = observer_names();
    if (names.empty()) {
      const auto& certs = run_.network.certs;
      reasons_.push_back(fmt::format("the run may be live, but {} has no certificate of an observer", certs));
      next_ = fs::exists(certs)
                  ? fmt::format(
                        "run `isthmus certs issue {} watch --role observer --dir {}`, and repeat this "
                        "command",
                        run_.run.name, fs::path(certs).parent_path().string())
                  : fmt::format("repeat this command in the folder that contains {} (network.certs)", certs);
    }
    for (const auto& name : names) {
      try {
        auto setup = setup_here();
        auto experiment = run_;
        experiment.network.coordinator = coordinator();
        experiment.network.join_timeout.seconds = std::min(experiment.network.join_timeout.seconds, 15.0);
        take_replica_name(name, experiment);
        say_error(fmt::format("isthmus: {} is live; copying its global parameters ({})", run_.run.name,
                              format_bytes(static_cast<double>(setup.table.buffer_size() * sizeof(float)))));
        auto copy = copy_global_parameters(std::move(experiment), setup.table, setup.tokenizer->fingerprint(),
                                           name, build_);
        if (!copy) {
          reasons_.emplace_back("the run ended before its parameters were copied");
          return std::nullopt;
        }
        auto origin = fmt::format("step {} of {}, {}", copy->step, run_.run.name,
                                  copy->ended ? "which has just ended" : "which is live");
        return model_with(std::move(setup), std::move(copy->parameters), std::move(origin));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::divergence) throw;
        reasons_.push_back(fmt::format("the live run: {}", error.what()));
        if (error.kind() == ErrorKind::network) return std::nullopt;  // another name would not help
      }
    }
    return std::nullopt;
  }

  // ---- checkpoints fetched from sites ----

  struct Copy {
    std::string site;
    std::uint64_t step = 0;
    fs::path file;
  };

  [[nodiscard]] fs::path fetched() const { return folder_ / fetched_name; }

  [[nodiscard]] std::vector<Copy> copies() const {
    std::vector<Copy> all;
    for (const auto& site : run_.sites) {
      for (const auto step : trainer::checkpoint_steps(fetched() / site.name, 0))
        all.push_back({site.name, step, trainer::checkpoint_file(fetched() / site.name, step, 0)});
    }
    return all;
  }

  [[nodiscard]] std::optional<Copy> newest_copy() const {
    const auto all = copies();
    const auto newest = std::ranges::max_element(all, {}, &Copy::step);
    return newest == all.end() ? std::nullopt : std::optional(*newest);
  }

  /// A copy of the run's last step that was made after its end: nothing newer can be at the sites.
  [[nodiscard]] std::optional<Copy> copy_of_ended_run() const {
    const auto end = LaunchFolder(run_).ended_at();
    const auto copy = newest_copy();
    std::error_code gone;
    if (!end || !copy || fs::last_write_time(copy->file, gone) < *end) return std::nullopt;
    return copy->step == LaunchFolder(run_).last_step() ? copy : std::nullopt;
  }

  [[nodiscard]] TrainedModel of_checkpoint(const Copy& copy, const std::string& how) {
    return read_copy(copy, setup_here(), how);
  }

  [[nodiscard]] TrainedModel read_copy(const Copy& copy, Setup setup, const std::string& how) const {
    const auto checkpoint = trainer::read_checkpoint(copy.file, setup.table.fingerprint());
    const auto global = outer_sync::saved_global_parameters(checkpoint.section(trainer::agreed_section),
                                                            setup.table.layout());
    return model_with(std::move(setup), {global.begin(), global.end()},
                      fmt::format("step {} of {}, from site {} ({}): {}", copy.step, run_.run.name, copy.site,
                                  how, copy.file.string()));
  }

  /// Connects to all sites at the same time, once.
  std::vector<std::unique_ptr<SiteModels>>& sites() {
    if (std::exchange(dialled_, true)) return sites_;
    std::vector<std::unique_ptr<SiteModels>> all;
    for (const auto& site : run_.sites) {
      if (site.launch.kind() == Kind::ssh)
        all.push_back(std::make_unique<SiteModels>(site, run_.run.name));
      else if (site.is_elsewhere())
        reasons_.push_back(fmt::format("{} was started by {}, so this machine cannot reach its checkpoints",
                                       site.name, to_string(site.launch.kind())));
    }
    for (auto& one : all) {
      say_error(fmt::format("isthmus: asking {} ({}) for its checkpoints", one->site().name,
                            one->site().launch.ssh));
      try {
        one->connect();
        if (one->checkpoints().empty())
          reasons_.push_back(fmt::format("{} ({}) has no checkpoint of {} in {}", one->site().name,
                                         one->site().launch.ssh, run_.run.name, one->site().launch.folder));
        sites_.push_back(std::move(one));
      } catch (const Error& error) {
        unreachable_.push_back(one->site().launch.ssh);
        reasons_.emplace_back(error.what());
      }
    }
    return sites_;
  }

  std::optional<TrainedModel> of_sites() {
    std::vector<std::vector<SiteCheckpoint>> offered;
    for (const auto& site : sites()) offered.push_back(site->checkpoints());
    const auto choice = common_checkpoints(offered);
    if (choice.empty()) return std::nullopt;
    for (const auto& reason : reasons_) say_error("isthmus: " + reason);
    const FolderLock lock(fetched());
    const auto earlier = newest_copy();
    if (earlier && earlier->step > choice.front().step && !unreachable_.empty())
      return of_checkpoint(*earlier, "fetched earlier, and newer than what the sites that answer have");
    auto setup = setup_here();
    for (const auto& common : choice) {
      for (const auto& place : common.places) {
        if (const auto copy = try_to_fetch(place, setup))
          return read_copy(*copy, std::move(setup),
                           fmt::format("{} of {} workers have it", common.places.size(), common.workers));
      }
    }
    return std::nullopt;
  }

  std::optional<Copy> try_to_fetch(const CommonCheckpoint::Place& place, const Setup& setup) {
    auto& site = sites()[place.site];
    if (!site) return std::nullopt;
    try {
      return fetch(*site, place.checkpoint, setup);
    } catch (const Error& error) {
      say_error(fmt::format("isthmus: {}", error.what()));
      reasons_.emplace_back(error.what());
    }
    try {  // the rest of the file may still be on its way, so the next one needs another connection
      site = std::make_unique<SiteModels>(site->site(), run_.run.name);
      site->connect();
    } catch (const Error&) {
      site.reset();
    }
    return std::nullopt;
  }

  /// The file appears only after all of it was checked, and earlier ones are removed then.
  Copy fetch(SiteModels& site, const SiteCheckpoint& checkpoint, const Setup& setup) {
    constexpr std::uint64_t bytes_per_parameter = 8;  // global parameters and momentum
    constexpr std::uint64_t other = std::uint64_t{64} << 20;
    const auto most = setup.table.buffer_size() * bytes_per_parameter + other;
    const auto folder = fetched() / site.site().name;
    Copy copy{site.site().name, checkpoint.step, trainer::checkpoint_file(folder, checkpoint.step, 0)};
    make_private_folder(folder);
    Progress progress(stderr, is_terminal(stderr));
    replace_file(copy.file, [&](const File& file) {
      site.fetch(checkpoint, most,
                 [&](std::span<const std::byte> piece, std::uint64_t done, std::uint64_t all) {
                   if (done == piece.size()) check_space(folder, all);
                   file.write(piece);
                   progress.update(format_bar(static_cast<double>(done) / static_cast<double>(all),
                                              fmt::format("step {} from {}: {} of {}", checkpoint.step,
                                                          copy.site, format_bytes(static_cast<double>(done)),
                                                          format_bytes(static_cast<double>(all)))));
                 });
      progress.finish();
      trainer::check_checkpoint(file.path(), setup.table.fingerprint());
      const auto agreed = trainer::section_digest(file.path(), trainer::agreed_section);
      if (!agreed || agreed->hex() != checkpoint.agreed)
        data_error(fmt::format("{} sent another checkpoint of worker {} than it offered", copy.site,
                               checkpoint.worker));
    });
    for (const auto& old : copies()) {
      if (old.file != copy.file && old.step <= copy.step) remove_file(old.file);
    }
    return copy;
  }

  static void check_space(const fs::path& folder, std::uint64_t bytes) {
    std::error_code unknown;
    const auto space = fs::space(folder, unknown);
    if (unknown || space.available > bytes) return;
    data_error(fmt::format("{} has {} free, and the checkpoint needs {}; make room on its disk",
                           folder.string(), format_bytes(static_cast<double>(space.available)),
                           format_bytes(static_cast<double>(bytes))));
  }

  // ---- the tokenizer ----

  /// Whether the sites name tokenizers of their own, so that the run's setting means nothing here.
  [[nodiscard]] bool sites_set_tokenizer() const {
    const auto is_given = [](const std::string& text) { return text.starts_with("data.tokenizer="); };
    if (std::ranges::any_of(assignments_, is_given)) return false;
    return std::ranges::any_of(run_.sites,
                               [](const Site& site) { return site.find("data.tokenizer") != nullptr; });
  }

  /// With the tokenizer of the config if it is on this machine, otherwise with one fetched from a site.
  [[nodiscard]] Setup setup_here() {
    const auto& name = run_.data.tokenizer;
    if (!sites_set_tokenizer() && (!is_file_name(name) || fs::exists(name))) return {run_, name};
    for (const auto* kind : {".json", ".model"}) {
      const auto file = fetched() / ("tokenizer" + std::string(kind));
      if (fs::exists(file)) return {run_, file.string()};
    }
    for (const auto& site : sites()) {
      if (site->tokenizer().empty()) continue;
      const auto text = site->fetch_tokenizer();
      make_private_folder(fetched());
      const auto file =
          fetched() / (site->tokenizer().ends_with(".json") ? "tokenizer.json" : "tokenizer.model");
      replace_file(file, text);
      try {
        return {run_, file.string()};
      } catch (const Error&) {  // a file that is no tokenizer must not be found again
        remove_file(file);
        throw;
      }
    }
    config_error(
        fmt::format("data.tokenizer is {}, which is not on this machine, and no site could send it; "
                    "pass --set data.tokenizer=FILE",
                    name));
  }

  // ---- failure ----

  [[nodiscard]] std::string next_step() const {
    if (!next_.empty()) return next_;
    if (!unreachable_.empty())
      return fmt::format("make `ssh {} true` work without a question, and repeat this command",
                         unreachable_.front());
    if (std::ranges::any_of(run_.sites, [](const Site& site) { return site.is_elsewhere(); })) {
      auto copy = fmt::format(
          "copy WORKER/checkpoints from where a worker ran to {}/WORKER/checkpoints, or export there",
          folder_.string());
      if (LaunchFolder(run_).ended_at()) return copy;
      return fmt::format("{}, or isthmus launch --resume {} and repeat this command while the run is live",
                         copy, folder_.string());
    }
    return "start the run again with isthmus launch; it has written no checkpoint (run.checkpoint_interval)";
  }

  [[noreturn]] void fail() const {
    throw Error(ErrorKind::data, fmt::format("{} holds no model, and none could be fetched:\n  {}\nnext: {}",
                                             folder_.string(), joined(reasons_, "\n  "), next_step()));
  }

  fs::path folder_;
  std::vector<std::string> assignments_;
  std::string build_;
  Experiment run_;                                  ///< with the settings of the run
  std::vector<std::unique_ptr<SiteModels>> sites_;  ///< that answer
  bool dialled_ = false;
  std::vector<std::string> reasons_;      ///< why a way to the model failed
  std::vector<std::string> unreachable_;  ///< USER@HOST
  std::string next_;                      ///< what to do if all fails; empty: it depends on the sites
};

}  // namespace

bool is_launched_run(const fs::path& folder) { return fs::exists(folder / run_config_name); }

TrainedModel model_of_launched_run(const fs::path& folder, const std::vector<std::string>& assignments,
                                   const std::string& build) {
  auto model = LaunchedRun(folder, assignments, build).model();
  say_error("isthmus: the model is " + model.origin);
  return model;
}

}  // namespace isthmus::app
