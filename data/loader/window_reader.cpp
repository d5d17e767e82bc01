#include "loader/window_reader.h"

#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::data {

// ---- ReaderPool ----

ReaderPool::ReaderPool(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "data_read");
      work();
    });
}

void ReaderPool::load(WindowGroup& group) {
  const auto blocks = group.sampler_->blocks_of(group.group_);
  {
    const std::lock_guard lock(mutex_);
    group.missing_ = blocks;
    group.fault_.reset();
    for (std::uint64_t rank = 0; rank < blocks; ++rank) tasks_.push_back({&group, rank});
  }
  work_.notify_all();
}

bool ReaderPool::wait(const WindowGroup& group) {
  std::unique_lock lock(mutex_);
  while (!stopped_ && group.missing_ > 0) {
    // Only this group's: another group's block could take long, and is not needed yet.
    if (!tasks_.empty() && tasks_.front().group == &group)
      do_first(lock);
    else
      done_.wait(lock);
  }
  if (stopped_) return false;
  if (group.fault_) throw Error(group.fault_->kind, group.fault_->message);
  return true;
}

void ReaderPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    tasks_.clear();
  }
  stopping_.request_stop();
  work_.notify_all();
  done_.notify_all();
}

void ReaderPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    do_first(lock);
  }
}

/// Runs the first task, without holding the lock meanwhile.
void ReaderPool::do_first(std::unique_lock<std::mutex>& lock) {
  const auto task = tasks_.front();
  tasks_.pop_front();
  lock.unlock();
  std::optional<Fault> fault;
  try {
    task.group->load(task.rank);
  } catch (const Error& error) {
    fault = {error.kind(), error.what()};
  } catch (const std::exception& error) {
    fault = {ErrorKind::data, std::string("loader: ") + error.what()};
  }
  lock.lock();
  if (fault && !task.group->fault_) task.group->fault_ = std::move(fault);
  if (--task.group->missing_ > 0) return;
  lock.unlock();  // the woken thread needs it at once
  done_.notify_all();
  lock.lock();
}

// ---- WindowGroup ----

namespace {

/// Aligns blocks to cache lines: the system copies to other addresses a third more slowly.
std::uint64_t bytes_of_block(const Shuffle& shuffle, std::uint64_t seq_len, std::uint32_t width) {
  constexpr std::uint64_t line = 64;
  return ((shuffle.block * seq_len + 1) * width + line - 1) / line * line;
}

/// One more than full blocks: the last group also has the partial block.
std::uint64_t max_blocks(const Shuffle& shuffle) { return shuffle.group + 1; }

}  // namespace

std::uint64_t WindowGroup::bytes(const Shuffle& shuffle, std::uint64_t seq_len, std::uint32_t width) {
  return max_blocks(shuffle) * bytes_of_block(shuffle, seq_len, width);
}

WindowGroup::WindowGroup(const DataSet& set, const Shuffle& shuffle, std::uint64_t seq_len,
                         std::uint32_t width, std::span<std::byte> memory)
    : set_(set),
      seq_len_(seq_len),
      block_bytes_(bytes_of_block(shuffle, seq_len, width)),
      width_(width),
      tokens_(memory),
      order_(max_blocks(shuffle) * shuffle.block) {
  for (std::uint64_t window = 0; window < order_.size(); ++window)
    places_.push_back(window / shuffle.block * block_bytes_ + window % shuffle.block * seq_len_ * width_);
}

void WindowGroup::assign(const Sampler& sampler, const Sampler::Visit& visit) {
  assert(!used());
  sampler_ = sampler;
  epoch_ = visit.epoch;
  group_ = visit.group;
}

bool WindowGroup::has(const Sampler& sampler, const Sampler::Visit& visit) const {
  return sampler_ && sampler_->seed() == sampler.seed() && epoch_ == visit.epoch && group_ == visit.group;
}

void WindowGroup::load(std::uint64_t rank) {
  if (rank == 0) sampler_->order(epoch_, group_, order_);
  const auto block = sampler_->block(epoch_, group_, rank);
  set_.read(Split::train, block.first * seq_len_, block.count * seq_len_ + 1, width_,
            tokens_.data() + rank * block_bytes_);
}

// ---- WindowReader ----

namespace {

/// Groups to read before they are needed: enough for each thread to have four blocks, and one more, which may
/// already be read completely. No more: memory that was used lately is in the processor's caches.
std::uint64_t groups_ahead(const Shuffle& shuffle, std::uint64_t threads) {
  return 1 + (4 * threads + shuffle.group - 1) / shuffle.group;
}

/// Groups that the rows of a window and of the `in_use` windows before it may stay in. Consecutive windows
/// are in as many groups as they fill, one more at each end, and one more at each epoch's end. If replicas
/// take turns, they are in as many turns as they fill and one more at each end; each turn, as long as a
/// group, has parts of up to three groups, since epochs' ends put turns out of step with groups and the last
/// group of an epoch may be short.
std::uint64_t groups_for(const WindowOrder& order, std::uint64_t in_use) {
  if (in_use == 0) return 1;
  const auto filled = in_use / order.shuffle.group_windows();
  return order.replicas > 1 ? 3 * (filled + 2) : filled + in_use / order.windows + 3;
}

}  // namespace

WindowReader::WindowReader(const DataSet& set, const WindowOrder& order, std::uint64_t seq_len,
                           std::uint32_t width, std::uint64_t in_use, std::uint64_t threads)
    : set_(set),
      order_(order),
      seq_len_(seq_len),
      width_(width),
      read_ahead_(groups_ahead(order.shuffle, threads)),
      sampler_(order.of_track(0)) {
  if (!sampler_.has_groups()) return;
  groups_.resize(static_cast<std::size_t>(groups_for(order, in_use) + read_ahead_));
  const auto bytes = WindowGroup::bytes(order.shuffle, seq_len, width);
  memory_.emplace(groups_.size() * bytes);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    groups_[i] = std::make_unique<WindowGroup>(set_, order.shuffle, seq_len, width,
                                               memory_->bytes().subspan(i * bytes, bytes));
  }
}

std::uint64_t WindowReader::ahead() const {
  // The last group of an epoch may have one more block.
  return groups_.empty() ? 0 : read_ahead_ * (order_.shuffle.group + 1) * order_.shuffle.block;
}

void WindowReader::expect(SampleRange run, ReaderPool& pool) {
  if (!visits_.empty() && visits_.back().track == run.track && visits_.back().end == run.begin) {
    auto& last = visits_.back();
    run.begin = last.end = std::min(run.end, last.limit);
  }
  const auto sampler = order_.of_track(run.track);
  while (run.begin < run.end) {
    const auto limit =
        groups_.empty() ? std::numeric_limits<std::uint64_t>::max() : sampler.visit(run.begin).end;
    const auto end = std::min(run.end, limit);
    visits_.push_back({run.track, run.begin, end, limit});
    run.begin = end;
  }
  load_ahead(pool);
}

WindowReader::Rows WindowReader::rows(std::span<const std::byte*> out, ReaderPool& pool, std::byte* space) {
  if (!(taken_ && visits_.front().begin < visits_.front().end) && !take(pool)) return {0, nullptr};
  auto& now = visits_.front();
  const auto first = now.begin;
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), now.end - first));
  now.begin += count;
  if (now.group != nullptr) {
    for (std::size_t i = 0; i < count; ++i) out[i] = now.group->row(rank_ + i);
    rank_ += count;
    if (stays_) return {count, now.group};
  }
  const auto bytes = (seq_len_ + 1) * width_;
  for (std::size_t i = 0; i < count; ++i, space += bytes) {
    if (now.group != nullptr)
      std::memcpy(space, out[i], bytes);
    else
      set_.read(Split::train, sampler_.at(first + i).window * seq_len_, seq_len_ + 1, width_, space);
    out[i] = space;
  }
  return {count, nullptr};
}

/// Moves to the next visit: waits for its group while the groups after it are loaded.
bool WindowReader::take(ReaderPool& pool) {
  if (taken_) {
    if (const auto& last = visits_.front(); last.group != nullptr) {
      --last.group->visits;
      last.group->used_up = last.begin == last.limit;
      --loaded_;
    }
    visits_.pop_front();
  }
  taken_ = true;
  load_ahead(pool);
  assert(!visits_.empty());
  const auto& now = visits_.front();
  sampler_ = order_.of_track(now.track);
  if (groups_.empty()) return true;
  assert(now.group != nullptr);  // may_stay() leaves groups free for later visits
  rank_ = sampler_.visit(now.begin).rank;
  stays_ = may_stay(*now.group);
  return pool.wait(*now.group);
}

/// Loads the groups of the visit that is next or in use, and of those after it as far as there are free
/// groups.
void WindowReader::load_ahead(ReaderPool& pool) {
  if (groups_.empty()) return;
  for (; loaded_ < std::min<std::size_t>(visits_.size(), 1 + read_ahead_); ++loaded_) {
    auto& visit = visits_[loaded_];
    const auto sampler = order_.of_track(visit.track);
    visit.group = find_group(sampler, sampler.visit(visit.begin), pool);
    if (visit.group == nullptr) return;
    ++visit.group->visits;
  }
}

/// The group that already has the visit's windows, else a free one; null if no group is free.
WindowGroup* WindowReader::find_group(const Sampler& sampler, const Sampler::Visit& visit, ReaderPool& pool) {
  const auto has =
      std::ranges::find_if(groups_, [&](const auto& group) { return group->has(sampler, visit); });
  if (has != groups_.end()) return has->get();
  auto* const group = free_group();
  if (group == nullptr) return nullptr;
  group->assign(sampler, visit);
  pool.load(*group);
  return group;
}

/// The first used-up group, so that the same few are overwritten again and again. If short runs of several
/// tracks leave none, takes the others in turn, although their remaining windows may be needed later.
WindowGroup* WindowReader::free_group() {
  const auto is_free = [](const WindowGroup& group) { return group.visits == 0 && !group.used(); };
  const auto found =
      std::ranges::find_if(groups_, [&](const auto& group) { return group->used_up && is_free(*group); });
  if (found != groups_.end()) return found->get();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto index = (oldest_ + i) % groups_.size();
    if (!is_free(*groups_[index])) continue;
    oldest_ = index + 1;
    return groups_[index].get();
  }
  return nullptr;
}

/// Keeps at least `read_ahead_` groups free of rows that stay.
bool WindowReader::may_stay(const WindowGroup& group) const {
  const auto others = std::ranges::count_if(
      groups_, [&](const auto& other) { return other.get() != &group && other->used(); });
  return static_cast<std::size_t>(others) + read_ahead_ < groups_.size();
}

Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks) {
  if (set.block_tokens() == 0) return {};
  return {std::max<std::uint64_t>(1, set.block_tokens() / seq_len), blocks};
}

}  // namespace isthmus::data
