#include "window_reader.h"

#include <pthread.h>

#include <algorithm>
#include <cassert>
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
  const auto blocks = group.sampler_.blocks_of(group.group_);
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
  done_.wait(lock, [&] { return stopped_ || group.missing_ == 0; });
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
  work_.notify_all();
  done_.notify_all();
}

void ReaderPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
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
    if (--task.group->missing_ == 0) done_.notify_all();
  }
}

// ---- WindowGroup ----

WindowGroup::WindowGroup(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle,
                         std::uint64_t seq_len, std::uint32_t width)
    : set_(set),
      sampler_(sampler),
      seq_len_(seq_len),
      block_(shuffle.block),
      width_(width),
      // One more than full blocks: the one that is not.
      tokens_((shuffle.group + 1) * block_bytes()),
      order_((shuffle.group + 1) * block_) {
  for (std::uint64_t window = 0; window < order_.size(); ++window)
    places_.push_back(window / block_ * block_bytes() + window % block_ * seq_len_ * width_);
}

void WindowGroup::assign(const Sampler::Visit& visit) {
  assert(users_ == 0);
  epoch_ = visit.epoch;
  group_ = visit.group;
}

void WindowGroup::load(std::uint64_t rank) {
  if (rank == 0) sampler_.order(epoch_, group_, order_);
  const auto block = sampler_.block(epoch_, group_, rank);
  set_.read(Split::train, block.first * seq_len_, block.count * seq_len_ + 1, width_,
            tokens_.data() + rank * block_bytes());
}

// ---- WindowReader ----

namespace {

/// Groups that are read before they are needed: with one, the threads would rest until the next is asked for.
constexpr std::uint64_t read_ahead = 4;

/// Groups for a window and the `in_use` before it, and for those ahead. Windows in a row lie in as many
/// groups as they fill, in one more at each end and at each epoch's. Where replicas take turns they are of as
/// many turns as they fill and of one more at each end, and each of these, as long as a group, has parts of
/// up to three: epochs' ends put turns out of step with groups, and the last group of an epoch may be a short
/// one.
std::size_t groups_for(const Sampler& sampler, const Shuffle& shuffle, std::uint64_t in_use,
                       std::uint64_t replicas) {
  const auto filled = in_use / shuffle.group_windows();
  auto used = filled + in_use / sampler.windows() + 3;
  if (replicas > 1) used = 3 * (filled + 2);
  if (in_use == 0) used = 1;
  return static_cast<std::size_t>(used + read_ahead);
}

}  // namespace

WindowReader::WindowReader(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle,
                           std::uint64_t seq_len, std::uint32_t width, std::uint64_t in_use,
                           std::uint64_t replicas)
    : set_(set), sampler_(sampler), seq_len_(seq_len), width_(width) {
  if (!sampler_.has_groups()) return;
  groups_.resize(groups_for(sampler, shuffle, in_use, replicas));
  for (auto& group : groups_) group = std::make_unique<WindowGroup>(set_, sampler_, shuffle, seq_len, width);
}

WindowReader::Row WindowReader::row(std::uint64_t sequence, ReaderPool& pool, std::byte* space) {
  if (groups_.empty()) {
    set_.read(Split::train, sampler_.at(sequence).window * seq_len_, seq_len_ + 1, width_, space);
    return {space, nullptr};
  }
  if (sequence >= end_ && !take(sequence, pool)) return {nullptr, nullptr};
  auto& now = group(index_);
  return {now.row(rank_ + sequence - begin_), &now};
}

/// Waits for the group that is needed now and has the ones after it loaded meanwhile.
bool WindowReader::take(std::uint64_t sequence, ReaderPool& pool) {
  const auto visit = sampler_.visit(sequence);
  if (visits_.empty())
    next_ = sequence;
  else
    visits_.pop_front();
  while (visits_.size() <= read_ahead) {
    visits_.push_back(sampler_.visit(next_));
    next_ = visits_.back().end;
    auto& into = group(index_ + visits_.size());
    into.assign(visits_.back());
    pool.load(into);
  }
  ++index_;
  begin_ = sequence;
  end_ = visit.end;
  rank_ = visit.rank;
  return pool.wait(group(index_));
}

Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks) {
  if (set.block_tokens() == 0) return {};
  return {std::max<std::uint64_t>(1, set.block_tokens() / seq_len), blocks};
}

}  // namespace isthmus::data
