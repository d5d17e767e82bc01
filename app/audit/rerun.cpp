#include "audit/rerun.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "isthmus/base/aligned.h"
#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/data/loader.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/outer_state.h"
#include "isthmus/trainer/replica.h"
#include "run/output/terminal.h"
#include "worker/setup/machine_traits.h"
#include "worker/setup/model_setup.h"
#include "worker/setup/ranks.h"
#include "worker/training/checkpoints.h"
#include "worker/training/inner_rate.h"

namespace isthmus::app {

namespace {

namespace fs = std::filesystem;
using outer_sync::FragmentId;
using outer_sync::OuterLoop;

/// The sequences that the member trained on, in its order.
class JournalSamples final : public data::SampleSource {
 public:
  explicit JournalSamples(const std::vector<AuditEvent>& events) {
    for (const auto& event : events) {
      if (const auto* trained = std::get_if<AuditTrained>(&event))
        ranges_.insert(ranges_.end(), trained->samples.begin(), trained->samples.end());
    }
  }
  [[nodiscard]] SampleRange next(std::uint64_t most) override {
    if (at_ == ranges_.size()) return beyond_.next(most);  // the loader reads ahead
    auto& range = ranges_[at_];
    const SampleRange taken{range.track, range.begin, std::min(range.end, range.begin + most)};
    range.begin = taken.end;
    if (range.begin == range.end) ++at_;
    return taken;
  }

 private:
  std::vector<SampleRange> ranges_;
  std::size_t at_ = 0;
  data::OneTrack beyond_;
};

/// Throws unless the file is the checkpoint that the member has reported.
void check_reported(const fs::path& file, const AuditCheckpoint& reported) {
  const auto sections = trainer::section_digests(file);
  if (sections == reported.sections) return;
  const auto differs = std::ranges::mismatch(sections, reported.sections);
  const auto& name = differs.in1 != sections.end() ? differs.in1->first : differs.in2->first;
  throw NotGenuine(fmt::format(
      "{}: section {} differs from the digest that was reported when it was written: the file was "
      "changed or replaced",
      file.string(), name));
}

/// An inner step or a snapshot, and what followed it; the first one only has what followed the snapshot at
/// which the interval begins.
struct Step {
  const AuditTrained* trained = nullptr;
  std::optional<std::uint64_t> snapshot = {};  ///< its agreed step
  const AuditSpeeds* speeds = nullptr;
  std::deque<AuditApplied> in_step, between;  ///< rounds applied before and after the step was counted
};

std::vector<Step> journal_steps(const std::vector<AuditEvent>& events) {
  std::vector<Step> steps(1);
  for (const auto& event : events) {
    if (const auto* trained = std::get_if<AuditTrained>(&event)) {
      steps.emplace_back().trained = trained;
    } else if (const auto* applied = std::get_if<AuditApplied>(&event)) {
      (applied->between_steps ? steps.back().between : steps.back().in_step).push_back(*applied);
    } else if (const auto* speeds = std::get_if<AuditSpeeds>(&event)) {
      steps.back().speeds = speeds;
    } else {
      steps.emplace_back().snapshot = std::get<AuditSnapshot>(event).step;
    }
  }
  return steps;
}

class Rerunner {
 public:
  Rerunner(const RerunRequest& request, const Receipts& receipts)
      : request_(request),
        config_(request_.experiment),
        setup_(config_),
        ranks_(start_ranks(config_, setup_,
                           {.experiment = config_,
                            .name = request_.member,
                            .build = request_.build,
                            .program = request_.program},
                           request_.work)),
        replica_(make_replica(config_, setup_, ranks_.get())),
        exchange_(
            {.member = request_.member,
             .layout = setup_.table.layout(),
             .codecs = outer_sync::codec_plan(config_.outer, static_cast<std::uint64_t>(config_.run.seed)),
             .receipts = receipts,
             .log = log_,
             .settings = request_.settings}),
        outer_(config_.outer, setup_.table.layout(), trainer::make_outer_state(*replica_, config_.outer),
               exchange_, trace_, noise_seed(config_, request_.member)),
        samples_(request_.interval.events) {
    outer_.share_moments(*replica_);
  }

  Rerun run() {
    try {
      make_steps();
    } catch (const NotGenuine& error) {
      out_.problem = error;
    } catch (const Error& error) {  // no evidence against the member
      out_.problem = Error(ErrorKind::data, error.what());
    }
    outer_.finish_hand_overs();
    progress_.finish();
    out_.rounds = exchange_.compared();
    out_.owners = exchange_.owners();
    return std::move(out_);
  }

 private:
  void make_steps() {
    out_.machine = machine_traits(config_, setup_, request_.build);
    check_data();
    restore();
    open_log();
    loader_.emplace(setup_.corpus, loader_options(config_), samples_, *setup_.hardware.memory, trace_);
    outer_.end_at(config_.run.last_step());
    if (const auto& speeds = request_.interval.speeds) outer_.set_speeds(speeds->own, speeds->reference);
    const auto steps = journal_steps(request_.interval.events);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto& step = steps[i];
      // Ranks average their state for a checkpoint.
      if (step.snapshot && config_.replica.average_every > 1) static_cast<void>(replica_->state());
      if (step.trained != nullptr) {
        expect(step.in_step);
        make_step(*step.trained);
      }
      if (step.speeds != nullptr) outer_.set_speeds(step.speeds->own, step.speeds->reference);
      expect(step.between);
      make_agreed_steps(i + 1 < steps.size() ? steps[i + 1].snapshot : std::nullopt);
    }
    end();
  }

  void check_data() const {
    const auto data = request_.interval.machine.find(data_trait);
    if (data == request_.interval.machine.end() || data->second == out_.machine.at(data_trait)) return;
    data_error(fmt::format(
        "the training data in {} is not that of {}; expected the same files: give their path with "
        "--set data.path=...",
        config_.data.path, request_.member));
  }

  void restore() {
    check_reported(request_.begin, request_.interval.begin);
    check_reported(request_.end, request_.interval.end);
    const auto checkpoint = trainer::load_replica(request_.begin, *replica_);
    outer_.restore(checkpoint.section(trainer::agreed_section), checkpoint.section(outer_section),
                   checkpoint_settings(checkpoint));
    if (outer_.synchronous())
      data_error(fmt::format("{}: step {} is in the warm-up, and the rounds of the warm-up are in no log",
                             request_.begin.string(), outer_.step()));
    ramp_steps_ = from_bytes<LoopState>(checkpoint.section(loop_section)).ramp_steps;
  }

  /// The agreed state of the checkpoint must be that of a log: from any other state, a member could have
  /// computed anything. A log of a member that joined late begins late, one of a member that was lost ends
  /// early, and any of them may be damaged: the first that will do is read.
  void open_log() {
    std::optional<NotGenuine> not_genuine;
    std::optional<Error> problem;
    for (const auto& folder : request_.logs) {
      try {
        return read_log(folder);
      } catch (const NotGenuine& error) {
        not_genuine = error;
      } catch (const Error& error) {
        if (!problem) problem = error;
      }
    }
    if (not_genuine) throw NotGenuine(*not_genuine);
    throw Error(*problem);
  }

  void read_log(const fs::path& folder) {
    log_.clear();
    out_.log = folder;
    const auto& log = reader_.emplace(folder);
    const auto& layout = setup_.table.layout();
    const auto& header = log.header();
    if (header.model != setup_.table.fingerprint() ||
        !std::ranges::equal(header.fragments, layout.fragments()) ||
        header.chunk_elements != layout.chunk_elements() || header.codec != config_.outer.codec_spec() ||
        header.warmup_rounds != static_cast<std::uint64_t>(config_.outer.warmup_steps))
      data_error(folder.string() + ": the log of another model or other settings; expected one of this run");
    std::vector<outer_sync::protocol::Round> rounds;
    for (const auto& fragment : outer_.fragments()) rounds.push_back(fragment.round);
    check_end(log, rounds);
    theta_.assign(layout.buffer_size(), 0.0F);
    log_.reserve(rounds.size());
    for (FragmentId p = 0; p < rounds.size(); ++p) {
      const auto& range = layout.fragment(p);
      log_.push_back(log.open(layout, p, rounds[p], std::span(theta_).subspan(range.begin, range.size)));
      check_begin(p, log_.back());
    }
  }

  void check_begin(FragmentId p, outer_sync::log::LoggedFragment& fragment) {
    const auto& now = outer_.fragments()[p];
    while (fragment.state().round < now.round) {
      if (!fragment.next())
        data_error(
            fmt::format("{}: it ends before round {} of fragment {}; expected all rounds up to the "
                        "checkpoints under audit",
                        out_.log.string(), now.round, p));
    }
    if (fragment.state() != now)
      data_error(
          fmt::format("round {} of fragment {} in {} is not that of {}: the run has abandoned its history",
                      now.round, p, request_.begin.string(), out_.log.string()));
    const auto saved = outer_.snapshot(p);
    if (!std::ranges::equal(fragment.theta(), *saved.theta) ||
        !std::ranges::equal(fragment.velocity(), *saved.velocity))
      throw NotGenuine(
          fmt::format("{}: its global parameters or momentum of fragment {} are not those of round {} in {}",
                      request_.begin.string(), p, now.round, out_.log.string()));
  }

  /// Only a log with all rounds that the member applied will do.
  void check_end(const outer_sync::log::LogReader& log,
                 const std::vector<outer_sync::protocol::Round>& from) const {
    for (const auto& event : request_.interval.events) {
      const auto* applied = std::get_if<AuditApplied>(&event);
      if (applied == nullptr) continue;
      if (applied->fragment >= from.size())
        data_error(fmt::format("the journal of {} has fragment {} of {}", request_.member, applied->fragment,
                               from.size()));
      if (applied->round <= log.last_round(applied->fragment, from[applied->fragment])) continue;
      data_error(fmt::format("the log in {} ends before round {} of fragment {}, which {} applied",
                             out_.log.string(), applied->round, applied->fragment, request_.member));
    }
  }

  void expect(const std::deque<AuditApplied>& rounds) {
    if (exchange_.left() > 0) refuse_journal(outer_.step());
    exchange_.expect(rounds);
  }

  void make_step(const AuditTrained& trained) {
    if (outer_.step() != trained.step) refuse_journal(trained.step);
    const auto& batch = loader_->next();
    if (!std::ranges::equal(batch.samples, trained.samples))
      data_error(
          fmt::format("at step {} {} trained on other numbers of sequences than inner.batch {}; expected "
                      "the batch of its machine: give it with --set",
                      trained.step, request_.member, config_.inner.batch));
    exchange_.at_step(trained.step + 1, trained.others);
    replica_->forward_backward(batch);
    static_cast<void>(replica_->inner_step(inner_rate(config_, trained.step + 1, ramp_steps_)));
    ++ramp_steps_;
    ++out_.steps;
    const auto sequences = static_cast<std::uint64_t>(batch.sequences());
    outer_.after_step(sequences * static_cast<std::uint64_t>(batch.seq_len), batch.samples);
    progress_.update(format_bar(
        static_cast<double>(outer_.step() - request_.interval.begin.step) /
            static_cast<double>(request_.interval.end.step - request_.interval.begin.step),
        fmt::format("{}: step {} of {}", request_.member, outer_.step(), request_.interval.end.step)));
  }

  /// Makes all that can be made, up to a snapshot. A result may have come while the agreed step stood still.
  void make_agreed_steps(std::optional<std::uint64_t> snapshot) {
    const auto last = snapshot.value_or(request_.interval.end.step);
    for (std::size_t before = 0;;) {
      while (outer_.step() < last && outer_.next_step()) {
      }
      before = exchange_.left();
      if (before == 0) return;
      static_cast<void>(outer_.complete_step());
      if (exchange_.left() == before) return;
    }
  }

  void end() {
    if (outer_.step() != request_.interval.end.step) refuse_journal(request_.interval.end.step);
    if (outer_.step() == static_cast<std::uint64_t>(config_.run.steps)) {  // no replica trained on from here
      exchange_.must_have_all();
      outer_.finish();
    }
    const auto checkpoint = trainer::read_checkpoint(request_.end);
    compare_agreed(checkpoint);
    outer_.finish_hand_overs();
    exchange_.compare_the_rest();
    compare_state();
    compare_own(checkpoint);
  }

  /// A lost member may have applied a last round without its result reaching the others.
  void compare_agreed(const trainer::Checkpoint& end) {
    const auto& agreed = end.section(trainer::agreed_section);
    if (outer_sync::saved_fragments(agreed) != outer_.fragments())
      data_error(fmt::format("the rounds in {} are not those of {}: the run has abandoned its history",
                             request_.end.string(), out_.log.string()));
    const auto saved = outer_sync::saved_global_parameters(agreed, setup_.table.layout());
    if (!std::ranges::equal(saved, outer_.global_parameters()))
      throw NotGenuine(fmt::format("{}: its global parameters are not those of its rounds in {}",
                                   request_.end.string(), out_.log.string()));
    if (end.step != replica_->state().steps) out_.exact.emplace_back("number of inner steps");
  }

  void compare_own(const trainer::Checkpoint& end) {
    if (from_bytes<LoopState>(end.section(loop_section)).ramp_steps != ramp_steps_)
      out_.exact.emplace_back("steps since the inner optimizer was reset");
    const auto outcome = [this](auto fragment, auto round) { return exchange_.outcome(fragment, round); };
    auto differences = outer_.differences_from(end.section(outer_section), outcome);
    std::ranges::move(differences.exact, std::back_inserter(out_.exact));
    std::ranges::move(differences.values, std::back_inserter(out_.sections));
  }

  void compare_state() {
    const auto state = replica_->state();
    const std::pair<const char*, const std::vector<float>&> sections[] = {
        {trainer::parameters_section, state.parameters},
        {trainer::first_moment_section, state.first_moment},
        {trainer::second_moment_section, state.second_moment}};
    for (const auto& [name, values] : sections) {
      const auto reported = request_.interval.end.sections.find(name);
      const bool same = reported != request_.interval.end.sections.end() &&
                        reported->second == hash_of(std::as_bytes(std::span(values)));
      if (!same) out_.sections.emplace_back(name);
    }
  }

  [[noreturn]] void refuse_journal(std::uint64_t step) const {
    data_error(
        fmt::format("the journal of {} does not fit its steps: it was at agreed step {}, and its journal "
                    "leads to {}",
                    request_.member, step, outer_.step()));
  }

  const RerunRequest& request_;
  Experiment config_;
  ModelSetup setup_;
  std::unique_ptr<RankProcesses> ranks_;  ///< null for one rank
  std::unique_ptr<trainer::Replica> replica_;
  Trace trace_;  ///< without a file
  std::optional<outer_sync::log::LogReader> reader_;
  AlignedVector<float> theta_;
  std::vector<outer_sync::log::LoggedFragment> log_;
  LoggedExchange exchange_;
  OuterLoop outer_;
  JournalSamples samples_;
  std::optional<data::Loader> loader_;
  std::uint64_t ramp_steps_ = 0;
  Progress progress_{stderr, is_terminal(stderr)};
  Rerun out_;
};

}  // namespace

Rerun rerun(const RerunRequest& request, const Receipts& receipts) {
  return Rerunner(request, receipts).run();
}

}  // namespace isthmus::app
