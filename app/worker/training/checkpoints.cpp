#include "worker/training/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::app {

namespace {

constexpr const char* agreed_name = trainer::agreed_section;
constexpr const char* ledger_name = "ledger";
constexpr const char* settings_name = "settings";  ///< changes made during the run; absent without changes

outer_sync::protocol::CheckpointId id_of(std::uint64_t step, const Digest& agreed) {
  return {step, outer_sync::protocol::prefix_of(agreed)};
}

}  // namespace

trainer::KeepRule keep_rule(const RunConfig& run) {
  return {.newest = static_cast<std::uint64_t>(run.keep_checkpoints),
          .every = static_cast<std::uint64_t>(run.keep_every)};
}

// ---- resuming ----

void Checkpoints::find_sound() {
  constexpr std::size_t at_least = 2;  // if all are kept, there may be very many
  const auto in_full = std::max(at_least, static_cast<std::size_t>(parts_.experiment.run.keep_checkpoints));
  sound_ = trainer::sound_checkpoints(
      parts_.folder, 0, parts_.replica.table().fingerprint(), in_full,
      [&](const std::string& why) { parts_.say(why + "; offering the one before it"); });
}

std::vector<outer_sync::protocol::CheckpointId> Checkpoints::offer() {
  std::vector<outer_sync::protocol::CheckpointId> offered;
  std::vector<std::pair<std::uint64_t, Digest>> stored;
  if (parts_.uploads != nullptr) stored = parts_.uploads->stored();
  try {
    find_sound();
  } catch (const Error&) {
    if (stored.empty()) throw;  // otherwise each damaged file was reported
  }
  for (const auto step : sound_) {
    const auto file = trainer::checkpoint_file(parts_.folder, step, 0);
    offered.push_back(id_of(step, trainer::section_digest(file, agreed_name).value_or(Digest{})));
  }
  for (const auto& [step, agreed] : stored) {
    if (!std::ranges::binary_search(sound_, step)) offered.push_back(id_of(step, agreed));
  }
  std::ranges::sort(offered, {}, &outer_sync::protocol::CheckpointId::step);
  if (const auto most = outer_sync::protocol::max_checkpoints; offered.size() > most)
    offered.erase(offered.begin(), offered.end() - static_cast<std::ptrdiff_t>(most));
  return offered;
}

Checkpoints::Restored Checkpoints::restore(std::uint64_t step) {
  using outer_sync::protocol::Ledger;
  if (parts_.uploads != nullptr && !std::ranges::binary_search(sound_, step)) {
    parts_.uploads->fetch(step);
    sound_.insert(std::ranges::upper_bound(sound_, step), step);
  }
  const auto checkpoint =
      trainer::load_replica(trainer::checkpoint_file(parts_.folder, step, 0), parts_.replica);
  const auto settings = checkpoint_settings(checkpoint);
  parts_.outer.restore(checkpoint.section(agreed_name), checkpoint.section(outer_section), settings);
  Restored restored{.loop = from_bytes<LoopState>(checkpoint.section(loop_section)),
                    .ledger = from_bytes<Ledger>(checkpoint.section(ledger_name)),
                    .file = checkpoint.file};
  if (!outer_sync::protocol::ledger_fits(restored.ledger, parts_.outer.fragments()))
    throw Error(ErrorKind::data, checkpoint.file.string() + ": section ledger does not match its rounds");
  check_stored(restored);
  parts_.say(fmt::format("resumed from {}", checkpoint.file.string()));
  say_what_changes(checkpoint);
  for (const auto& change : settings.changes) {
    for (const auto& [key, value] : change.items)
      parts_.say(
          fmt::format("{}={} was set during the run, from the step after {} on", key, value, change.step));
  }
  return restored;
}

/// A stream continues at its old position, so its store must hold everything that was trained on.
void Checkpoints::check_stored(const Restored& restored) const {
  const auto& experiment = parts_.experiment;
  const auto stored = parts_.corpus.stored_sequences(experiment.data.seq_len);
  if (!stored || *stored >= restored.loop.sequences) return;
  throw Error(ErrorKind::data,
              fmt::format("{} was written after {} sequences of data.path {}, but its store {} has {}",
                          restored.file.string(), restored.loop.sequences, experiment.data.path,
                          stream_options(experiment, parts_.name)->store.string(), *stored));
}

outer_sync::protocol::Settings checkpoint_settings(const trainer::Checkpoint& checkpoint) {
  outer_sync::protocol::Settings settings;
  if (!checkpoint.sections.contains(settings_name)) return settings;
  settings.changes = from_bytes<outer_sync::protocol::Settings>(checkpoint.section(settings_name)).changes;
  if (!settings.sound())
    throw Error(ErrorKind::data, checkpoint.file.string() + ": section settings has invalid values");
  return settings;
}

void Checkpoints::say_what_changes(const trainer::Checkpoint& checkpoint) const {
  const auto source = trainer::config_of(checkpoint);
  const auto* replicas = source.find("replicas");
  const auto now = std::to_string(parts_.experiment.replicas);
  if (replicas == nullptr || replicas->values.empty() || replicas->values.front() == now) return;
  parts_.say(fmt::format(
      "the checkpoint is of a run with replicas {}, and this run has {}: from here on the data is divided "
      "among that many, so in this epoch some sequences repeat and others are skipped, a step has that many "
      "batches, and the result differs from that of an unchanged run",
      replicas->values.front(), now));
}

void Checkpoints::leave_later_than(std::uint64_t step) {
  if (parts_.uploads != nullptr) parts_.uploads->leave_later_than(step);
  const auto count = trainer::set_aside_after(parts_.folder, 0, step);
  std::erase_if(sound_, [&](auto later) { return later > step; });
  if (count == 0) return;
  parts_.say(fmt::format("{} later checkpoint{} in {} {} of a history that the run abandons: renamed to *{}",
                         count, count == 1 ? "" : "s", parts_.folder.string(), count == 1 ? "is" : "are",
                         trainer::undone_suffix));
}

// ---- writing ----

trainer::CheckpointWriter& Checkpoints::writer() {
  if (!writer_) {
    writer_.emplace(
        trainer::CheckpointWriter::Options{
            .folder = parts_.folder, .keep = keep_rule(parts_.experiment.run), .say = parts_.say},
        sound_, parts_.trace);
  }
  return *writer_;
}

void Checkpoints::save(const LoopState& loop) {
  // Slow parts first: the outer results in flight must arrive, and a stream's store must hold what was
  // trained on.
  if (!parts_.outer.await_results()) return parts_.say("no checkpoint: rounds do not commit at present");
  parts_.corpus.commit();
  const auto step = parts_.outer.step();
  auto& snapshot = writer().begin(step);
  {
    const Trace::Scope scope(parts_.trace, Trace::Row::train, "checkpoint",
                             fmt::format(R"({{"step":{}}})", step));
    take(snapshot, loop);
  }
  writer().write();
  if (parts_.audit != nullptr) parts_.audit->write(AuditSnapshot{step});
}

void Checkpoints::take(trainer::Snapshot& snapshot, const LoopState& loop) {
  snapshot.model = parts_.replica.table().fingerprint();
  parts_.replica.copy_state(snapshot.replica);
  auto& agreed = snapshot.others[agreed_name];
  auto& own = snapshot.others[outer_section];
  auto saved = parts_.outer.save({std::move(agreed), std::move(own)}).value();
  agreed = std::move(saved.agreed);
  own = std::move(saved.own);
  auto stored = with_stored_names(parts_.experiment);
  const auto yaml = to_yaml(stored);
  const auto text = std::as_bytes(std::span(yaml));
  snapshot.others[trainer::config_section].assign(text.begin(), text.end());
  snapshot.others[loop_section] = to_bytes(loop);
  snapshot.others[ledger_name] = to_bytes(parts_.node.ledger());
  if (const auto& settings = parts_.outer.settings(); !settings.changes.empty())
    snapshot.others[settings_name] = to_bytes(settings);
}

void Checkpoints::exchange_news() {
  if (parts_.uploads != nullptr) parts_.uploads->offer(writer_ ? writer_->steps() : sound_, trainers());
  if (!writer_) return;
  if (parts_.audit != nullptr) report_digests();
  std::vector<outer_sync::protocol::CheckpointId> known;
  for (const auto& [step, agreed] : writer_->checkpoints()) known.push_back(id_of(step, agreed));
  parts_.node.report_checkpoints(std::move(known));
  writer_->all_have(parts_.node.status().common_checkpoint);
}

/// Of checkpoints of this process; those of earlier ones were reported by them.
void Checkpoints::report_digests() {
  for (const auto step : writer_->steps()) {
    if (step <= digests_reported_ || std::ranges::binary_search(sound_, step)) continue;
    digests_reported_ = step;
    try {
      parts_.audit->write(
          AuditCheckpoint{step, trainer::section_digests(trainer::checkpoint_file(parts_.folder, step, 0))});
    } catch (const Error& error) {
      parts_.say(fmt::format("cannot be audited: {}", error.what()));
    }
  }
}

std::vector<std::string> Checkpoints::trainers() const {
  std::vector<std::string> names;
  for (const auto& member : parts_.node.status().view->members) {
    if (trains(member)) names.push_back(member.name);
  }
  return names;
}

bool Checkpoints::finish() { return !writer_ || writer_->finish(); }

}  // namespace isthmus::app
