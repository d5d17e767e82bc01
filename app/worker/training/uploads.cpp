#include "worker/training/uploads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_writer.h"

namespace isthmus::app {

namespace {

constexpr std::uint64_t header_bytes = std::uint64_t{64} << 10;  // more than a checkpoint's header can have
constexpr std::size_t max_offered = 16;
constexpr int max_pause_factor = 16;

std::vector<std::uint64_t> steps_of(const StoredWorker& worker) {
  std::vector<std::uint64_t> steps(worker.checkpoints.size());
  std::ranges::transform(worker.checkpoints, steps.begin(), &StoredCheckpoint::step);
  return steps;
}

}  // namespace

Uploads::Uploads(Options options) : options_(std::move(options)), store_(open_object_store(options_.store)) {
  if (!options_.log.empty())
    log_ = std::make_unique<StoredLog>(*store_, stored_worker_prefix(options_.run, options_.worker) + "log/",
                                       options_.log);
  try {
    learn(stored_workers(*store_, options_.run, options_.worker));
    if (refused_)
      config_error(fmt::format(
          "{} has checkpoints, the newest of step {}, but this run is not resumed; expected "
          "--resume, or another run.name or object_store.url",
          store_->name(stored_worker_prefix(options_.run, options_.worker)), stored_.rbegin()->first));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::network) throw;
    failed(error.what());
  }
  thread_ = std::thread([this] {
    trainer::yield_to_training();
    loop();
  });
}

Uploads::~Uploads() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  store_->give_up();
  changed_.notify_all();
  thread_.join();
}

// ---- the worker's thread ----

std::vector<std::pair<std::uint64_t, Digest>> Uploads::stored() {
  std::map<std::uint64_t, ObjectEntry> known;
  {
    const std::scoped_lock lock(mutex_);
    known = stored_;
  }
  std::vector<std::pair<std::uint64_t, Digest>> usable;
  while (known.size() > max_offered) known.erase(known.begin());
  for (const auto& [step, object] : known) {
    try {
      const auto beginning = store_->get(object.key, 0, header_bytes).value_or(Bytes());
      const auto digest =
          trainer::section_digest(beginning, store_->name(object.key), trainer::agreed_section);
      usable.emplace_back(step, digest.value_or(Digest{}));
    } catch (const Error& error) {
      options_.say(error.what());
    }
  }
  return usable;
}

void Uploads::fetch(std::uint64_t step) {
  ObjectEntry object;
  {
    const std::scoped_lock lock(mutex_);
    object = stored_.at(step);
  }
  options_.say(fmt::format("fetching {} ({:.1f} MB)", store_->name(object.key),
                           static_cast<double>(object.size) / 1e6));
  trainer::prepare_checkpoint_folder(options_.checkpoints);
  static_cast<void>(store_->get_file(object, file_of(step), [] { return false; }));
}

void Uploads::leave_later_than(std::uint64_t step) {
  {
    const std::scoped_lock lock(mutex_);
    abandoned_after_ = std::min(abandoned_after_.value_or(step), step);
    std::erase_if(on_disk_, [&](auto later) { return later > step; });
  }
  changed_.notify_all();
}

void Uploads::offer(std::vector<std::uint64_t> steps, std::vector<std::string> trainers) {
  {
    const std::scoped_lock lock(mutex_);
    std::set<std::uint64_t> now(steps.begin(), steps.end());
    if (now == on_disk_ && trainers == trainers_) return;
    log_due_ |= now != on_disk_ && log_ != nullptr;
    on_disk_ = std::move(now);
    trainers_ = std::move(trainers);
  }
  changed_.notify_all();
}

bool Uploads::finish(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  log_due_ = log_ != nullptr;
  pause_ = {};
  last_success_ = Clock::now();
  changed_.notify_all();
  const auto done = [&] { return refused_ || (!busy_ && !has_work()); };
  if (!done()) options_.say(fmt::format("copying what is left to {}", store_->name(options_.run)));
  while (!done() && Clock::now() < last_success_ + patience)
    changed_.wait_until(lock, last_success_ + patience);
  if (done() && !refused_) return true;
  const auto left = next_step();
  options_.say(
      fmt::format("NOT COPIED to {}: {}; `isthmus worker --resume` copies it, or copy {} yourself",
                  store_->name(options_.run),
                  left ? fmt::format("the checkpoint of step {}", *left) : std::string("the round log"),
                  left ? file_of(*left).string() : options_.log.string()));
  return false;
}

// ---- both ----

/// Call it with the mutex locked, or before there is a thread.
void Uploads::learn(const std::vector<StoredWorker>& workers) {
  for (const auto& worker : workers) {
    for (const auto& checkpoint : worker.checkpoints) stored_[checkpoint.step] = checkpoint.object;
  }
  listed_ = true;
  refused_ = !options_.resumed && !stored_.empty();
}

std::string Uploads::key_of(std::uint64_t step) const {
  return stored_checkpoint_key(options_.run, options_.worker, step);
}

std::filesystem::path Uploads::file_of(std::uint64_t step) const {
  return trainer::checkpoint_file(options_.checkpoints, step, 0);
}

/// The oldest checkpoint that is on disk and not in the store.
std::optional<std::uint64_t> Uploads::next_step() const {
  const auto next = std::ranges::find_if(on_disk_, [&](auto step) { return !stored_.contains(step); });
  return next == on_disk_.end() ? std::nullopt : std::optional(*next);
}

bool Uploads::has_work() const {
  return !listed_ || abandoned_after_ || next_step() || log_due_ || prune_due_;
}

/// For a copy that begins: it is asked before each part whether to give up. Each part that was sent is a
/// success, since a large checkpoint over a slow link takes longer than `finish` waits without one.
ObjectStore::Stopped Uploads::between_parts() {
  return [this, sent = false]() mutable {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(sent, true)) last_success_ = Clock::now();
    return closing_;
  };
}

// ---- the thread ----

void Uploads::loop() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (pause_.count() > 0)
      changed_.wait_for(lock, pause_, [&] { return closing_ || pause_.count() == 0; });
    else
      changed_.wait(lock, [&] { return closing_ || (!refused_ && has_work()); });
    if (closing_ || refused_ || !has_work()) continue;
    busy_ = true;
    try {
      work(lock);
      if (std::exchange(failing_, false))
        options_.say(fmt::format("copies to {} succeed again", store_->name(options_.run)));
      pause_ = {};
      last_success_ = Clock::now();
    } catch (const Error& error) {
      if (!lock.owns_lock()) lock.lock();
      failed(error.what());
    }
    busy_ = false;
    changed_.notify_all();
  }
}

void Uploads::failed(const std::string& why) {
  if (!std::exchange(failing_, true))
    options_.say(fmt::format("NOT COPIED to the object store: {}; trying again until it succeeds", why));
  pause_ = std::clamp(2 * pause_, options_.retry_after, max_pause_factor * options_.retry_after);
}

/// One piece of work, without the mutex while it calls the store.
void Uploads::work(std::unique_lock<std::mutex>& lock) {
  if (!listed_) {
    lock.unlock();
    const auto workers = stored_workers(*store_, options_.run, options_.worker);
    lock.lock();
    learn(workers);
    if (refused_)
      options_.say(fmt::format("NOTHING IS COPIED to {}: it has checkpoints of another run of this name",
                               store_->name(stored_worker_prefix(options_.run, options_.worker))));
    return;
  }
  if (abandoned_after_) return mark_abandoned(lock);
  if (const auto step = next_step()) return copy_checkpoint(lock, *step);
  if (log_due_) return copy_log(lock);
  if (prune_due_) remove_superseded(lock);
}

void Uploads::mark_abandoned(std::unique_lock<std::mutex>& lock) {
  const auto after = *abandoned_after_;
  const auto later = stored_.upper_bound(after);
  if (later == stored_.end()) {
    abandoned_after_.reset();
    return;
  }
  const auto [step, object] = *later;
  lock.unlock();
  store_->put(stored_mark_key(object.key), {});
  lock.lock();
  stored_.erase(step);
}

void Uploads::copy_checkpoint(std::unique_lock<std::mutex>& lock, std::uint64_t step) {
  const auto file = file_of(step);
  const auto key = key_of(step);
  lock.unlock();
  std::error_code gone;
  const auto size = std::filesystem::file_size(file, gone);
  bool copied = false;
  try {
    copied = !gone && store_->put_file(key, file, between_parts());
    if (copied) store_->remove(stored_mark_key(key));
  } catch (const Error&) {
    if (may_be_there(file)) throw;  // otherwise it has been superseded, or set aside
  }
  lock.lock();
  if (closing_) return;
  if (!copied) {
    on_disk_.erase(step);
    return;
  }
  stored_[step] = {key, size};
  prune_due_ = true;
}

void Uploads::copy_log(std::unique_lock<std::mutex>& lock) {
  log_due_ = false;
  lock.unlock();
  try {
    static_cast<void>(log_->copy(between_parts()));
  } catch (const Error&) {
    lock.lock();
    log_due_ = true;
    throw;
  }
  lock.lock();
}

void Uploads::remove_superseded(std::unique_lock<std::mutex>& lock) {
  prune_due_ = false;
  const auto trainers = trainers_;
  lock.unlock();
  std::vector<std::vector<std::uint64_t>> of_trainers;
  std::vector<std::uint64_t> own;
  for (const auto& worker : stored_workers(*store_, options_.run)) {
    auto steps = steps_of(worker);
    if (steps.empty()) continue;
    if (worker.name == options_.worker) own = steps;
    if (std::ranges::find(trainers, worker.name) != trainers.end()) of_trainers.push_back(std::move(steps));
  }
  const auto common = trainer::latest_common_step(of_trainers).value_or(0);
  const auto removed = trainer::superseded(own, options_.keep, common);
  for (const auto step : removed) store_->remove(key_of(step));
  lock.lock();
  // A checkpoint that is still on disk stays known, or it would be copied again.
  for (const auto step : removed) {
    if (!on_disk_.contains(step)) stored_.erase(step);
  }
}

}  // namespace isthmus::app
