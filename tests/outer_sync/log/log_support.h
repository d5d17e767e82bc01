#pragma once
// A run without replicas: random results, applied as the outer loop applies them, and logged.

#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/log/replay.h"
#include "isthmus/outer_sync/log/round_log.h"
#include "temporary_folder.h"

namespace isthmus::outer_sync::log {

/// Three fragments of two or three chunks, the last one short, with padding between them.
inline LogHeader header_of(quant::CodecKind kind = quant::CodecKind::lloyd4) {
  auto codec = quant::default_spec(kind);
  codec.block = 16;
  LogHeader header{
      .run = "mock",
      .model = hash_of({}),
      .fragments = {{0, 40}, {48, 33}, {100, 70}},
      .chunk_elements = 32,
      .codec = codec,
      .tensors = {{"first", {4, 10}, {0, 40}}, {"second", {33}, {48, 33}}, {"third", {7, 2, 5}, {100, 70}}}};
  return header;
}

inline std::uint64_t bytes_in(const std::filesystem::path& folder) {
  std::uint64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) sum += entry.file_size();
  return sum;
}

inline std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                                   const std::string& begin) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(begin)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

/// Fails the test unless `work` throws an Error of this kind, with `words` in its message.
template <class Work>
void expect_error(Work work, ErrorKind kind, const std::vector<std::string>& words) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const auto& word : words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
    return;
  }
  ADD_FAILURE() << "nothing was refused; expected an error with \"" << (words.empty() ? "" : words.front())
                << '"';
}

struct MockRun {
  explicit MockRun(LogHeader of, std::uint64_t chance = 1)
      : header(std::move(of)),
        layout(header.fragments, header.chunk_elements),
        random(chance),
        states(header.fragments.size()) {
    for (const auto& fragment : header.fragments) {
      auto& theta = thetas.emplace_back(fragment.size);
      for (auto& value : theta) value = 2 * unit() - 1;
      velocities.emplace_back(fragment.size, 0.0F);
    }
  }

  float unit() { return random_unit(random, 0, ++drawn); }
  std::uint64_t below(std::uint64_t n) { return random_bits(random, 1, ++drawn) % n; }

  /// Makes one round of a fragment, with random results.
  void advance(FragmentId p) {
    results.clear();
    std::vector<std::span<const std::byte>> spans;
    const auto chunks = layout.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto n = layout.chunk(k).size;
      AlignedVector<float> gradient(n), local(n, 0.0F);
      for (auto& value : gradient) value = 2 * unit() - 1;
      auto bytes = std::make_shared<Bytes>(quant::encoded_size(header.codec, n));
      EXPECT_FALSE(quant::encode(header.codec, gradient, {}, {}, *bytes));
      const auto at = layout.place_in_fragment(k);
      EXPECT_TRUE(quant::decode_apply(header.codec, *bytes, rule, std::span(thetas[p]).subspan(at, n),
                                      std::span(velocities[p]).subspan(at, n), local));
      spans.emplace_back(*bytes);
      results.push_back(std::move(bytes));
    }
    const auto round = states[p].round + 1;
    states[p] = {round, next_chain(states[p].chain, p, round, spans)};
  }
  void snapshot(FragmentId p, RoundLog& log) const {
    log.snapshot(p, states[p], std::make_shared<const AlignedVector<float>>(thetas[p]),
                 std::make_shared<const AlignedVector<float>>(velocities[p]));
  }
  /// Supplies all snapshots that the log asks for.
  void answer(RoundLog& log) const {
    for (FragmentId p = 0; p < states.size(); ++p) {
      if (log.wants_snapshot(p)) snapshot(p, log);
    }
  }
  void round(FragmentId p, RoundLog& log) {
    advance(p);
    log.append(p, states[p], {rule}, results);
    answer(log);
  }

  [[nodiscard]] AlignedVector<float> parameters() const {
    AlignedVector<float> flat(header.buffer_size(), 0.0F);
    for (std::size_t p = 0; p < thetas.size(); ++p)
      std::ranges::copy(thetas[p], flat.begin() + static_cast<std::ptrdiff_t>(header.fragments[p].begin));
    return flat;
  }
  /// Fails the test unless replaying the log gives this run's parameters bit for bit.
  void expect_in(const std::filesystem::path& folder) const {
    const auto replayed = replay(folder);
    const auto expected = parameters();
    ASSERT_EQ(replayed.parameters.size(), expected.size());
    EXPECT_EQ(std::memcmp(replayed.parameters.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << "replay gives other parameters than the run";
    EXPECT_EQ(replayed.global_hash.hex(), hash_of(std::as_bytes(std::span(expected))).hex());
    for (std::size_t p = 0; p < states.size(); ++p)
      EXPECT_EQ(replayed.fragments[p].state, states[p]) << "fragment " << p;
  }

  LogHeader header;
  FragmentLayout layout;
  std::uint64_t random, drawn = 0;
  quant::OuterStep rule{.lr = 0.7F, .momentum = 0.9F};
  std::vector<protocol::FragmentState> states;
  std::vector<AlignedVector<float>> thetas, velocities;
  std::vector<protocol::SharedBytes> results;  ///< results of the last round
};

inline constexpr std::uint64_t plenty = std::uint64_t{1} << 30;

}  // namespace isthmus::outer_sync::log
