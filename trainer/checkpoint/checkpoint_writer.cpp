#include "isthmus/trainer/checkpoint_writer.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/trainer/checkpoint.h"

namespace isthmus::trainer {
namespace {

/// Zero for a file that cannot be read any more: no run can resume from it.
Digest agreed_digest(const std::filesystem::path& file) {
  try {
    return section_digest(file, agreed_section).value_or(Digest{});
  } catch (const Error&) {
    return {};
  }
}

std::string step_args(std::uint64_t step) { return "{\"step\":" + std::to_string(step) + "}"; }

}  // namespace

/// The thread yields to compute threads (nice 10, a tenth of their share, also in the disk's queue) and does
/// not interrupt them when its disk is ready (SCHED_BATCH). Not SCHED_IDLE: if training keeps all cores busy,
/// a checkpoint would never be finished. If the system refuses, the priority stays unchanged.
void yield_to_training() {
  constexpr int nice = 10;
  const sched_param none{};
  static_cast<void>(::sched_setscheduler(0, SCHED_BATCH, &none));
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice));
}

CheckpointWriter::CheckpointWriter(Options options, const std::vector<std::uint64_t>& steps, Trace& trace)
    : options_(std::move(options)), trace_(trace) {
  for (const auto step : steps) known_[step] = agreed_digest(checkpoint_file(options_.folder, step, 0));
  thread_ = std::thread([this] { loop(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// ---- the caller's thread ----

Snapshot& CheckpointWriter::begin(std::uint64_t step) {
  std::unique_lock lock(mutex_);
  if (state_ == State::ready || state_ == State::busy) {
    options_.say("the checkpoint of step " + std::to_string(step) + " waits for that of step " +
                 std::to_string(snapshot_.step) +
                 ", which is still being written: the disk is too slow for such frequent checkpoints");
    const Trace::Scope scope(trace_, Trace::Row::train, "checkpoint_wait", step_args(step));
    wait_until_over(lock);
  }
  if (state_ == State::failed)
    options_.say("the checkpoint of step " + std::to_string(snapshot_.step) + " is given up");
  state_ = State::idle;
  snapshot_.step = step;
  return snapshot_;
}

void CheckpointWriter::write() {
  {
    const std::lock_guard lock(mutex_);
    assert(state_ == State::idle);
    state_ = State::ready;
    said_ = false;
  }
  changed_.notify_all();
}

bool CheckpointWriter::finish() {
  std::unique_lock lock(mutex_);
  wait_until_over(lock);
  if (state_ == State::failed) {
    state_ = State::ready;
    changed_.notify_all();
    wait_until_over(lock);
  }
  return state_ == State::idle;
}

void CheckpointWriter::wait_until_over(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return state_ == State::idle || state_ == State::failed; });
}

std::vector<std::uint64_t> CheckpointWriter::steps() const {
  std::vector<std::uint64_t> steps;
  const std::lock_guard lock(mutex_);
  for (const auto& [step, agreed] : known_) steps.push_back(step);
  return steps;
}

std::map<std::uint64_t, Digest> CheckpointWriter::checkpoints() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

void CheckpointWriter::all_have(std::uint64_t step) {
  {
    const std::lock_guard lock(mutex_);
    if (step <= common_) return;
    common_ = step;
  }
  changed_.notify_all();
}

// ---- the writer's thread ----

void CheckpointWriter::loop() {
  yield_to_training();
  std::unique_lock lock(mutex_);
  while (true) {
    const auto has_work = [this] {
      return state_ == State::ready || closing_ || (state_ == State::idle && common_ > removed_for_);
    };
    if (state_ == State::failed) {
      if (!changed_.wait_for(lock, options_.retry_after, has_work) && state_ == State::failed)
        state_ = State::ready;
    } else {
      changed_.wait(lock, has_work);
    }
    // First: a process that is killed repeatedly must not leave one more checkpoint each time.
    if (common_ > removed_for_) remove_superseded(lock);
    if (state_ == State::ready) {
      write_snapshot(lock);
    } else if (closing_ && common_ <= removed_for_) {
      return;
    }
  }
}

void CheckpointWriter::write_snapshot(std::unique_lock<std::mutex>& lock) {
  state_ = State::busy;
  lock.unlock();
  std::string problem;
  Digest agreed;
  try {
    const Trace::Scope scope(trace_, Trace::Row::writer, "checkpoint", step_args(snapshot_.step));
    prepare_checkpoint_folder(options_.folder);
    std::vector<SectionView> others;
    for (const auto& [name, bytes] : snapshot_.others) others.push_back({name, bytes});
    const auto file = checkpoint_file(options_.folder, snapshot_.step, 0);
    save_replica(file, snapshot_.model, snapshot_.replica, others);
    agreed = agreed_digest(file);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  lock.lock();
  problem.empty() ? written(agreed) : failed(problem);
  changed_.notify_all();
}

void CheckpointWriter::written(const Digest& agreed) {
  if (said_) options_.say("the checkpoint of step " + std::to_string(snapshot_.step) + " is written now");
  known_[snapshot_.step] = agreed;
  state_ = State::idle;
  removed_for_ = 0;  // one more may be removed
}

void CheckpointWriter::failed(const std::string& why) {
  state_ = State::failed;
  if (std::exchange(said_, true)) return;
  const auto newest = known_.empty()
                          ? "there is no older one"
                          : "the newest on disk is of step " + std::to_string(known_.rbegin()->first);
  options_.say("NO CHECKPOINT of step " + std::to_string(snapshot_.step) + ": " + why +
               "; training continues, writing is retried until the next checkpoint is due, and " + newest);
}

/// A file that cannot be removed only costs disk space: removal is retried after the next checkpoint.
void CheckpointWriter::remove_superseded(std::unique_lock<std::mutex>& lock) {
  const auto common = removed_for_ = common_;
  lock.unlock();
  std::vector<std::uint64_t> gone;
  for (const auto step : superseded(checkpoint_steps(options_.folder, 0), options_.keep, common)) {
    try {
      remove_file(checkpoint_file(options_.folder, step, 0));
      gone.push_back(step);
    } catch (const Error& error) {
      options_.say(error.what());
    }
  }
  lock.lock();
  for (const auto step : gone) known_.erase(step);
}

}  // namespace isthmus::trainer
