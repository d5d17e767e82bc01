#include "window_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <deque>

#include "data_support.h"
#include "token_source.h"

namespace isthmus::data {
namespace {

/// Ids that count, in blocks of `block` ids.
class Counting : public TokenSource {
 public:
  Counting(std::uint64_t tokens, std::uint64_t block) : tokens_(tokens), block_(block) {}
  std::uint64_t tokens() const override { return tokens_; }
  std::uint32_t width() const override { return 4; }
  std::uint64_t block_tokens() const override { return block_; }
  std::uint64_t heldout_begin(std::uint64_t) const override { return tokens_; }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::uint32_t>(begin + i);
      std::memcpy(out + 4 * i, &id, sizeof id);
    }
  }
  std::string place(std::uint64_t token) const override { return std::to_string(token); }
  Digest fingerprint() const override { return {}; }

 private:
  std::uint64_t tokens_, block_;
};

struct Sizes {
  std::uint64_t windows, seq_len, block, blocks, replicas, replica, in_use;
};

std::uint32_t id_at(const std::byte* row, std::uint64_t index) {
  std::uint32_t id = 0;
  std::memcpy(&id, row + 4 * index, sizeof id);
  return id;
}

/// Takes sequences in turn and lets go of each when `in_use` more have been taken: whether each is then still
/// the window that it was.
bool rows_stay(const Sizes& s, std::uint64_t first, std::uint64_t count) {
  const auto tokens = s.windows * s.seq_len + 1;
  const DataSet set(std::make_unique<Counting>(tokens, s.block * s.seq_len), 1U << 31, tokens, "counting", 1);
  const auto shuffle = shuffle_of(set, s.seq_len, s.blocks);
  const Sampler sampler(s.windows, s.replica, s.replicas, 5, shuffle);
  WindowReader reader(set, sampler, shuffle, s.seq_len, 4, s.in_use, s.replicas);
  ReaderPool pool(2);
  struct Held {
    std::uint64_t sequence;
    WindowReader::Row row;
  };
  std::deque<Held> held;
  std::vector<std::byte> space((s.seq_len + 1) * 4);
  for (auto sequence = first; sequence < first + count; ++sequence) {
    const auto row = reader.row(sequence, pool, space.data());
    if (row.group == nullptr) {
      if (id_at(row.tokens, 0) != sampler.at(sequence).window * s.seq_len) return false;
      continue;
    }
    row.group->use();
    held.push_back({sequence, row});
    if (held.size() <= s.in_use) continue;
    const auto& oldest = held.front();
    const auto id = sampler.at(oldest.sequence).window * s.seq_len;
    if (id_at(oldest.row.tokens, 0) != id || id_at(oldest.row.tokens, s.seq_len) != id + s.seq_len)
      return false;
    oldest.row.group->release();
    held.pop_front();
  }
  return true;
}

TEST(WindowReader, RowsStayWhereReplicasTurnsAndEpochsEndsAreOutOfStep) {
  // Groups of 64 windows and of 1 by turns, so that each turn of 64 has parts of three.
  for (std::uint64_t replicas = 1; replicas <= 7; ++replicas) {
    for (const std::uint64_t in_use : {0, 1, 2, 32, 62, 63, 64, 127, 200})
      EXPECT_TRUE(rows_stay({65, 3, 1, 64, replicas, replicas - 1, in_use}, 11, 1000))
          << replicas << ' ' << in_use;
  }
}

RC_GTEST_PROP(WindowReaderProperty, RowsStayAsLongAsTheyAreInUse, ()) {
  const auto number = [](std::uint64_t from, std::uint64_t to) {
    return *rc::gen::inRange<std::uint64_t>(from, to);
  };
  Sizes s{};
  s.block = number(1, 6);
  s.blocks = number(1, 6);
  s.windows = s.block * s.blocks + number(1, 4 * s.block);
  s.seq_len = number(1, 5);
  s.replicas = number(1, 8);
  s.replica = number(0, s.replicas);
  s.in_use = number(0, 60);
  RC_ASSERT(rows_stay(s, number(0, 1000), 300));
}

}  // namespace
}  // namespace isthmus::data
