#include "window_reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::data {

// ---- ReaderPool ----

ReaderPool::ReaderPool(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
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
      tokens_((shuffle.group + 1) * block_bytes()) {}

void WindowGroup::assign(std::uint64_t epoch, std::uint64_t group) {
  assigned_ = true;
  epoch_ = epoch;
  group_ = group;
}

const std::byte* WindowGroup::row(std::uint64_t in_group) const {
  return tokens_.data() + in_group / block_ * block_bytes() + in_group % block_ * seq_len_ * width_;
}

void WindowGroup::load(std::uint64_t rank) {
  const auto block = sampler_.block(epoch_, group_, rank);
  set_.read(Split::train, block.first * seq_len_, block.count * seq_len_ + 1, width_,
            tokens_.data() + rank * block_bytes());
}

// ---- WindowReader ----

WindowReader::WindowReader(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle,
                           std::uint64_t seq_len, std::uint32_t width)
    : set_(set), sampler_(sampler), seq_len_(seq_len), width_(width) {
  if (!sampler_.has_groups()) return;
  for (int i = 0; i < 2; ++i)
    groups_.push_back(std::make_unique<WindowGroup>(set_, sampler_, shuffle, seq_len, width));
}

bool WindowReader::read(std::uint64_t sequence, ReaderPool& pool, std::byte* row) {
  const auto place = sampler_.at(sequence);
  if (groups_.empty()) {
    set_.read(Split::train, place.window * seq_len_, seq_len_ + 1, width_, row);
    return true;
  }
  if (!groups_.front()->holds(place) && !take(place, sequence, pool)) return false;
  std::memcpy(row, groups_.front()->row(place.in_group), (seq_len_ + 1) * width_);
  return true;
}

/// Waits for the group that is needed now and has the one after it loaded meanwhile.
bool WindowReader::take(const Sampler::Place& place, std::uint64_t sequence, ReaderPool& pool) {
  const auto load = [&](WindowGroup& group, const Sampler::Place& of) {
    group.assign(of.epoch, of.group);
    pool.load(group);
  };
  std::swap(groups_.front(), groups_.back());
  auto& now = *groups_.front();
  if (!now.holds(place)) load(now, place);
  if (!pool.wait(now)) return false;
  load(*groups_.back(), sampler_.at(sampler_.next_group(sequence)));
  return true;
}

Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks) {
  if (set.block_tokens() == 0) return {};
  return {std::max<std::uint64_t>(1, set.block_tokens() / seq_len), blocks};
}

}  // namespace isthmus::data
