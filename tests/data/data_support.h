#pragma once
// Helpers shared by the data tests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/loader.h"
#include "isthmus/data/tokenizer.h"
#include "temporary_folder.h"

namespace isthmus::data {

/// The message of the Error that `call` throws; fails the test if it throws none or one of another kind.
template <class Call>
std::string error_of(ErrorKind kind, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

using Ids = std::vector<std::uint32_t>;

inline Ids encoded(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

inline DataConfig config_of(const std::filesystem::path& path, std::int64_t seq_len = 4,
                            double heldout = 0.1) {
  DataConfig config;
  config.path = path.string();
  config.seq_len = seq_len;
  config.heldout = heldout;
  return config;
}

/// All ids of one split.
inline std::vector<std::int64_t> tokens_of(const Corpus& corpus, Split split) {
  std::vector<std::int64_t> out(corpus.tokens(split));
  corpus.read(split, 0, out);
  return out;
}

/// The ids as text, separators as '|'.
inline std::string text_of(const Corpus& corpus, Split split) {
  std::string text;
  for (const auto id : tokens_of(corpus, split)) text += id == 0 ? '|' : static_cast<char>(id);
  return text;
}

/// Runs fixed in advance, given in pieces of at most `piece`; after the last run its track continues forever.
class ListedRuns : public SampleSource {
 public:
  explicit ListedRuns(std::vector<SampleRange> runs, std::uint64_t piece = 1U << 30)
      : runs_(std::move(runs)), piece_(piece) {}
  [[nodiscard]] SampleRange next(std::uint64_t most) override {
    if (next_ + 1 == runs_.size()) runs_.back().end = runs_.back().begin + most;
    auto& run = runs_[next_];
    const SampleRange given = {run.track, run.begin,
                               std::min({run.end, run.begin + most, run.begin + piece_})};
    run.begin = given.end;
    if (run.size() == 0 && next_ + 1 < runs_.size()) ++next_;
    given_ += given.size();
    return given;
  }
  /// Number of sequences given so far. Any thread.
  [[nodiscard]] std::uint64_t given() const { return given_; }

 private:
  std::vector<SampleRange> runs_;
  std::uint64_t piece_;
  std::size_t next_ = 0;
  std::atomic<std::uint64_t> given_ = 0;
};

/// Runs of up to `longest` sequences, of tracks below `tracks`. A track's run continues its previous run;
/// occasionally it starts at another sequence.
inline std::vector<SampleRange> random_runs(std::uint64_t seed, std::uint64_t tracks, std::uint64_t longest,
                                            std::uint64_t sequences) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> next(tracks);
  for (auto& first : next) first = random() % 5000;
  std::vector<SampleRange> runs;
  for (std::uint64_t all = 0; all < sequences; all += runs.back().size()) {
    const auto track = random() % tracks;
    if (random() % 8 == 0) next[track] = random() % 5000;
    const auto begin = next[track];
    next[track] += 1 + random() % longest;
    runs.push_back({track, begin, next[track]});
  }
  return runs;
}

/// Row `index` of a batch in host memory: seq_len + 1 ids.
inline std::vector<std::int64_t> row_of(const Batch& batch, std::int64_t index) {
  std::vector<std::int64_t> row;
  const auto* ids = batch.rows[static_cast<std::size_t>(index)];
  for (std::int64_t i = 0; i <= batch.seq_len; ++i) {
    std::uint32_t id = 0;
    std::memcpy(&id, ids + static_cast<std::size_t>(i) * batch.width, batch.width);
    row.push_back(id);
  }
  return row;
}

/// The inputs of all rows of a batch.
inline std::vector<std::int64_t> inputs_of(const Batch& batch) {
  std::vector<std::int64_t> inputs;
  for (std::int64_t b = 0; b < batch.sequences(); ++b) {
    const auto row = row_of(batch, b);
    inputs.insert(inputs.end(), row.begin(), row.end() - 1);
  }
  return inputs;
}

/// Little-endian uint16 ids 0, 1, 2, ..., as in a .bin file.
inline std::string counting_ids(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(i & 255);
    bytes += static_cast<char>(i >> 8);
  }
  return bytes;
}

}  // namespace isthmus::data
