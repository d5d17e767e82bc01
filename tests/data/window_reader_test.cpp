#include "loader/window_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <mutex>

#include "data_support.h"
#include "ids/token_source.h"

namespace isthmus::data {
namespace {

/// Number of reads, by first token.
struct Reads {
  std::mutex mutex;
  std::map<std::uint64_t, int> from;
};

/// Counting ids in blocks of `block` ids.
class Counting : public TokenSource {
 public:
  Counting(std::uint64_t tokens, std::uint64_t block, Reads* reads = nullptr)
      : tokens_(tokens), block_(block), reads_(reads) {}
  std::uint64_t tokens() const override { return tokens_; }
  std::uint32_t width() const override { return 4; }
  std::uint64_t block_tokens() const override { return block_; }
  std::uint64_t heldout_begin(std::uint64_t) const override { return tokens_; }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    if (reads_ != nullptr) {
      const std::lock_guard lock(reads_->mutex);
      ++reads_->from[begin];
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::uint32_t>(begin + i);
      std::memcpy(out + 4 * i, &id, sizeof id);
    }
  }
  std::string place(std::uint64_t token) const override { return std::to_string(token); }
  Digest fingerprint() const override { return {}; }

 private:
  std::uint64_t tokens_, block_;
  Reads* reads_;
};

struct Sizes {
  std::uint64_t windows, seq_len, block, blocks, replicas, in_use;
};

std::uint32_t id_at(const std::byte* row, std::uint64_t index) {
  std::uint32_t id = 0;
  std::memcpy(&id, row + 4 * index, sizeof id);
  return id;
}

/// A data set of these sizes and its reader, which receives its runs as a loader gives them.
class Reading {
 public:
  Reading(const Sizes& sizes, std::vector<SampleRange> runs, Reads* reads = nullptr)
      : tokens_(sizes.windows * sizes.seq_len + 1),
        set_(std::make_unique<Counting>(tokens_, sizes.block * sizes.seq_len, reads), 1U << 31, tokens_,
             "counting", 1),
        order_({sizes.windows, sizes.replicas, 5, shuffle_of(set_, sizes.seq_len, sizes.blocks)}),
        reader_(set_, order_, sizes.seq_len, 4, sizes.in_use, 2),
        runs_(std::move(runs)),
        space_((sizes.seq_len + 1) * 4),
        length_(sizes.seq_len) {}

  struct Row {
    const std::byte* tokens;
    WindowGroup* group;
  };
  /// The row of the next sequence.
  Row next() {
    for (; told_ < runs_.size() && known_ <= reader_.ahead(); ++told_) {
      reader_.expect(runs_[told_], pool_);
      known_ += runs_[told_].size();
    }
    --known_;
    const std::byte* tokens = nullptr;
    const auto rows = reader_.rows({&tokens, 1}, pool_, space_.data());
    return {tokens, rows.group};
  }
  [[nodiscard]] bool is_window(const std::byte* row, std::uint64_t track, std::uint64_t sequence) const {
    const auto id = order_.of_track(track).at(sequence).window * length_;
    return id_at(row, 0) == id && id_at(row, length_) == id + length_;
  }
  [[nodiscard]] bool has_groups() const { return order_.of_track(0).has_groups(); }

 private:
  std::uint64_t tokens_;
  DataSet set_;
  WindowOrder order_;
  WindowReader reader_;
  ReaderPool pool_{2};
  std::vector<SampleRange> runs_;
  std::vector<std::byte> space_;
  std::uint64_t length_, known_ = 0;
  std::size_t told_ = 0;
};

/// Takes the sequences of the runs in order and releases each once `in_use` more have been taken. Returns
/// whether each row is then still its window. Copied rows are checked only when taken; `copied` counts them.
bool rows_stay(const Sizes& s, const std::vector<SampleRange>& runs, std::uint64_t& copied) {
  Reading reading(s, runs);
  struct Held {
    std::uint64_t track, sequence;
    Reading::Row row;
  };
  std::deque<Held> held;
  copied = 0;
  for (const auto& run : runs) {
    for (auto sequence = run.begin; sequence < run.end; ++sequence) {
      const auto row = reading.next();
      if (!reading.is_window(row.tokens, run.track, sequence)) return false;
      if (row.group == nullptr)
        ++copied;
      else
        row.group->use();
      held.push_back({run.track, sequence, row});
      if (held.size() <= s.in_use) continue;
      const auto& oldest = held.front();
      if (oldest.row.group != nullptr) {
        if (!reading.is_window(oldest.row.tokens, oldest.track, oldest.sequence)) return false;
        oldest.row.group->release();
      }
      held.pop_front();
    }
  }
  return copied == 0 || runs.size() > 1 || !reading.has_groups();
}

TEST(WindowReader, RowsStayWhereReplicasTurnsAndEpochsEndsAreOutOfStep) {
  std::uint64_t copied = 0;
  // Alternates groups of 64 windows and of 1, so that 64 windows in sequence cover parts of three groups.
  for (std::uint64_t replicas = 1; replicas <= 7; ++replicas) {
    for (const std::uint64_t in_use : {0, 1, 2, 32, 62, 63, 64, 127, 200}) {
      EXPECT_TRUE(rows_stay({65, 3, 1, 64, replicas, in_use}, {{replicas - 1, 11, 1011}}, copied))
          << replicas << ' ' << in_use;
    }
  }
}

TEST(WindowReader, OfShortRunsOfManyTracksRowsAreCopiedWhereGroupsAreScarce) {
  std::vector<SampleRange> runs;
  for (std::uint64_t i = 0; i < 2000; ++i) runs.push_back({i * 7 % 50, i * 131 % 1000, i * 131 % 1000 + 1});
  std::uint64_t copied = 0;
  EXPECT_TRUE(rows_stay({1000, 3, 2, 5, 10, 100}, runs, copied));
  EXPECT_GT(copied, 0U);
  EXPECT_LT(copied, 2000U);
}

Sizes any_sizes() {
  const auto number = [](std::uint64_t from, std::uint64_t to) {
    return *rc::gen::inRange<std::uint64_t>(from, to);
  };
  Sizes s{};
  s.block = number(1, 6);
  s.blocks = number(1, 6);
  s.windows = s.block * s.blocks + number(1, 4 * s.block);
  s.seq_len = number(1, 5);
  s.replicas = number(1, 8);
  s.in_use = number(0, 60);
  return s;
}

RC_GTEST_PROP(WindowReaderProperty, RowsStayAsLongAsTheyAreInUse, ()) {
  const auto first = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const auto sizes = any_sizes();
  std::uint64_t copied = 0;
  RC_ASSERT(rows_stay(sizes, {{*rc::gen::inRange<std::uint64_t>(0, 2 * sizes.replicas), first, first + 300}},
                      copied));
}

RC_GTEST_PROP(WindowReaderProperty, RowsOfAnyRunsStayAsLongAsTheyAreInUse, ()) {
  const auto runs = random_runs(*rc::gen::arbitrary<std::uint32_t>(), *rc::gen::inRange<std::uint64_t>(1, 12),
                                *rc::gen::element(1, 5, 40), 300);
  std::uint64_t copied = 0;
  RC_ASSERT(rows_stay(any_sizes(), runs, copied));
}

/// Takes all sequences of the runs, for `replicas` replicas. Returns how often a block was read at most.
int max_reads(const std::vector<SampleRange>& runs, std::uint64_t replicas) {
  Reads reads;
  {
    Reading reading({640, 3, 4, 8, replicas, 30}, runs, &reads);
    for (const auto& run : runs)
      for (auto sequence = run.begin; sequence < run.end; ++sequence)
        EXPECT_TRUE(reading.is_window(reading.next().tokens, run.track, sequence));
  }
  EXPECT_EQ(reads.from.size(), 160U);
  int most = 0;
  for (const auto& [begin, count] : reads.from) most = std::max(most, count);
  return most;
}

TEST(WindowReader, NoGroupIsReadTwiceHoweverItsRunIsHandedOut) {
  // An epoch has 20 groups of 32 windows, shared by the tracks.
  for (const std::uint64_t tracks : {2, 4}) {
    for (const std::uint64_t piece : {1, 3, 31, 32, 33, 320}) {
      const auto share = 640 / tracks;
      std::vector<SampleRange> one_after_another, by_turns;
      const auto add = [&](std::vector<SampleRange>& runs, std::uint64_t track, std::uint64_t k) {
        runs.push_back({track, k, std::min(k + piece, share)});
      };
      for (std::uint64_t track = 0; track < tracks; ++track)
        for (std::uint64_t k = 0; k < share; k += piece) add(one_after_another, track, k);
      for (std::uint64_t k = 0; k < share; k += piece)
        for (std::uint64_t track = 0; track < tracks; ++track) add(by_turns, track, k);
      EXPECT_EQ(max_reads(one_after_another, tracks), 1) << tracks << ' ' << piece;
      EXPECT_EQ(max_reads(by_turns, tracks), 1) << tracks << ' ' << piece;
    }
  }
}

}  // namespace
}  // namespace isthmus::data
