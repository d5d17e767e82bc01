// Replays of a log: complete, cut short and damaged.

#include <fstream>

#include "isthmus/outer_sync/config/codec_plan.h"
#include "log_support.h"
#include "replicas.h"

namespace isthmus::outer_sync::log {
namespace {

using testing::HasSubstr;

/// Writes rounds of all fragments in turn to disk.
void write_rounds(MockRun& run, const std::filesystem::path& folder, int rounds,
                  std::uint64_t budget = plenty) {
  RoundLog log(folder, run.header, budget, run.states);
  run.answer(log);
  for (int i = 0; i < rounds; ++i) {
    for (FragmentId p = 0; p < run.states.size(); ++p) run.round(p, log);
  }
  log.flush();
}

TEST(LogReplay, GivesTheSameBitsWithEveryCodec) {
  for (std::size_t kind = 0; kind < std::size(quant::codec_names); ++kind) {
    const TemporaryFolder folder;
    MockRun run(header_of(static_cast<quant::CodecKind>(kind)), 7 + kind);
    write_rounds(run, folder.path(), 5);
    SCOPED_TRACE(quant::codec_names[kind]);
    run.expect_in(folder.path());
  }
}

TEST(LogReplay, TakesTheRuleOfEachRound) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  write_rounds(run, folder.path(), 2);
  run.rule = {
      .lr = 0.3F, .momentum = 0.5F, .nesterov = false};  // the learning rate may change during the run
  write_rounds(run, folder.path(), 2);
  run.expect_in(folder.path());
}

TEST(LogReplay, StopsAtTheRoundAskedFor) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  std::vector<AlignedVector<float>> parameters = {run.parameters()};
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 6; ++i) {
      for (FragmentId p = 0; p < 3; ++p) run.round(p, log);
      parameters.push_back(run.parameters());
    }
    log.flush();
  }
  for (protocol::Round until = 0; until <= 8; ++until) {
    const auto replayed = replay(folder.path(), until);
    const auto round = std::min<protocol::Round>(until, 6);
    EXPECT_EQ(replayed.parameters, parameters[round]) << "until round " << until;
    EXPECT_EQ(replayed.rounds(), 3 * round);
    for (const auto& fragment : replayed.fragments) EXPECT_EQ(fragment.state.round, round);
  }
}

TEST(LogReplay, RefusesARoundBeforeTheFirstSnapshot) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  for (int i = 0; i < 4; ++i) run.advance(1);
  write_rounds(run, folder.path(), 2);
  expect_error([&] { static_cast<void>(replay(folder.path(), 3)); }, ErrorKind::data,
               {"has no file of fragment 1 that begins at or before round 3", "begins at round 4"});
}

void expect_the_outer_loops_parameters(OuterConfig config) {
  const auto layout = layout_of(3);
  MemoryNetwork network(layout, codec_plan(config), 1);
  network.begin(std::vector<protocol::FragmentState>(3));
  PlainParameters local(initial_parameters(layout));
  Trace trace;
  OuterLoop loop(config, layout, local, network.exchange(0), trace);

  const TemporaryFolder folder;
  loop.keep_log({.folder = folder.path(),
                 .header = {.run = "loop",
                            .model = {},
                            .fragments = {layout.fragments().begin(), layout.fragments().end()},
                            .chunk_elements = layout.chunk_elements(),
                            .codec = config.codec_spec(),
                            .warmup_rounds = static_cast<protocol::Round>(config.warmup_steps),
                            .tensors = {}},
                 .budget = plenty});
  while (loop.step() < 40) mock_step(loop, local, layout, random_step, 0);
  loop.finish();
  const auto replayed = replay(folder.path());
  EXPECT_EQ(replayed.global_hash.hex(), loop.global_hash().hex());
  for (FragmentId p = 0; p < 3; ++p)
    EXPECT_EQ(replayed.fragments[p].state, loop.fragments()[p]) << "fragment " << p;
  EXPECT_EQ(replayed.rounds(), loop.stats().rounds - loop.stats().warmup_rounds);
}

TEST(LogReplay, GivesTheOuterLoopsParameters) {
  for (const auto method : {Method::streaming_diloco, Method::local_sgd}) {
    for (const std::int64_t warmup_steps : {0, 5}) {
      SCOPED_TRACE(testing::Message()
                   << to_string(method) << " after " << warmup_steps << " steps of warm-up");
      auto config = config_of(3, 6, 2, 0.5);
      config.method = method;
      config.codec = "4bit";
      config.error_feedback = true;
      config.warmup_steps = warmup_steps;
      config.resolve();
      config.take_replicas(1);
      expect_the_outer_loops_parameters(config);
    }
  }
}

TEST(LogReplay, LeavesOutARecordThatACrashCutShort) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  write_rounds(run, folder.path(), 2);
  const auto before = run.states[1];
  const auto file = files_in(folder.path(), "fragment_0001").front();
  const auto whole = std::filesystem::file_size(file);
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.round(1, log);
  }
  for (auto size = std::filesystem::file_size(file) - 1; size > whole; --size) {
    std::filesystem::resize_file(file, size);
    const auto replayed = replay(folder.path());
    ASSERT_EQ(replayed.fragments[1].state, before) << "at " << size << " bytes";
    ASSERT_TRUE(replayed.fragments[1].torn);
    ASSERT_FALSE(replayed.fragments[0].torn);
  }
}

void flip(const std::filesystem::path& file, std::uint64_t at) {
  std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
  bytes.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(bytes.get() ^ 0x10);
  bytes.seekp(static_cast<std::streamoff>(at));
  bytes.put(byte);
}

TEST(LogReplay, RefusesEveryFlippedBitByFileAndOffset) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  write_rounds(run, folder.path(), 2);
  const auto file = files_in(folder.path(), "fragment_0001").front();
  const auto size = std::filesystem::file_size(file);
  const auto snapshot = 56 + 33 * 8 + 32, round = static_cast<int>(size - snapshot) / 2;
  for (std::uint64_t at = 0; at < size; ++at) {
    flip(file, at);
    const auto record =
        at < static_cast<std::uint64_t>(snapshot) ? 0 : snapshot + (at - snapshot) / round * round;
    expect_error([&] { static_cast<void>(replay(folder.path())); }, ErrorKind::data,
                 {file.string(), "at byte " + std::to_string(record) + ":"});
    flip(file, at);
  }
  run.expect_in(folder.path());
}

TEST(LogReplay, RefusesEveryFlippedBitAndEveryCutOfTheHeader) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  write_rounds(run, folder.path(), 1);
  const auto file = folder / header_name;
  const auto text = read_all(file);
  const auto expect_refused = [&] {
    expect_error([&] { static_cast<void>(replay(folder.path())); }, ErrorKind::data, {file.string()});
  };
  for (std::uint64_t at = 0; at < text.size(); ++at) {
    flip(file, at);
    expect_refused();
    flip(file, at);
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    folder.write(header_name, text.substr(0, size));
    expect_refused();
  }
  std::filesystem::remove(file);
  expect_refused();
}

TEST(LogReplay, NamesTheFragmentAndRoundOfAWrongChain) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  write_rounds(run, folder.path(), 2);
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.advance(2);
    run.states[2].chain.bytes[31] ^= 1;
    log.append(2, run.states[2], {run.rule}, run.results);
    log.flush();
  }
  expect_error([&] { static_cast<void>(replay(folder.path())); }, ErrorKind::divergence,
               {"fragment 2", "round 3", "chain hash"});
  EXPECT_EQ(replay(folder.path(), 2).rounds(), 6U) << "rounds before the damage must be readable";
}

TEST(LogReplay, NamesTheRoundWhoseResultDoesNotDecode) {
  const TemporaryFolder folder;
  MockRun run(header_of(quant::CodecKind::fp32));
  write_rounds(run, folder.path(), 1);
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.advance(0);
    auto bad = std::make_shared<Bytes>(*run.results[1]);
    std::memset(bad->data(), 0xff, 4);  // not a number
    const auto chain = next_chain(replay(folder.path()).fragments[0].state.chain, 0, 2,
                                  std::vector<std::span<const std::byte>>{*run.results[0], *bad});
    run.results[1] = bad;
    log.append(0, {2, chain}, {run.rule}, run.results);
    log.flush();
  }
  expect_error([&] { static_cast<void>(replay(folder.path())); }, ErrorKind::divergence,
               {"fragment 0", "round 2", "chunk 1 does not decode"});
}

TEST(LogReplay, RefusesARecordOfAnotherLog) {
  const TemporaryFolder one, other;
  auto header = header_of();
  MockRun a(header), b(header);
  write_rounds(a, one.path(), 2);
  b.header.run = "another";
  write_rounds(b, other.path(), 2);
  const auto file = files_in(one.path(), "fragment_0000").front();
  std::filesystem::copy_file(other / file.filename().string(), file,
                             std::filesystem::copy_options::overwrite_existing);
  expect_error([&] { static_cast<void>(replay(one.path())); }, ErrorKind::data,
               {file.string(), "damaged, or of another log"});
}

TEST(LogReplay, RefusesWhatIsMissing) {
  const TemporaryFolder folder;
  expect_error([&] { static_cast<void>(replay(folder / "nothing")); }, ErrorKind::data,
               {"nothing/log.header"});
  MockRun run(header_of());
  write_rounds(run, folder.path(), 1);
  std::filesystem::remove(files_in(folder.path(), "fragment_0001").front());
  expect_error([&] { static_cast<void>(replay(folder.path())); }, ErrorKind::data, {"no file of fragment 1"});
}

TEST(LogReplay, AllocatesNothingForElementsThatNoFileHas) {
  const TemporaryFolder folder;
  auto header = header_of();
  header.fragments = {{0, std::uint64_t{1} << 47}};
  header.chunk_elements = 1;
  header.tensors.clear();
  const auto bytes = to_file(header);
  folder.write(header_name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  folder.write("fragment_0000_round_000000000000.log", std::string(1000, 'x'));
  expect_error([&] { static_cast<void>(replay(folder.path())); }, ErrorKind::data,
               {"has 1000 bytes; its snapshot alone takes 1125899906842"});
}

TEST(LogHeader, ComesBackAsItWas) {
  auto header = header_of(quant::CodecKind::topk);
  header.warmup_rounds = 100;
  header.codec.rounding = quant::Rounding::stochastic;
  header.codec.scale = quant::ScaleFormat::e5m3;
  header.codec.clip = 0.5F;
  header.codec.top_k = 17;
  EXPECT_TRUE(header_from(to_file(header), "log.header") == header);
}

TEST(LogHeader, RefusesWhatNoLogHas) {
  const auto expect_problem = [](const std::string& problem, auto change) {
    auto header = header_of();
    change(header);
    EXPECT_THAT(problem_of(header), HasSubstr(problem));
    expect_error([&] { static_cast<void>(header_from(to_file(header), "log.header")); }, ErrorKind::data,
                 {"log.header", problem});
  };
  expect_problem("numerics version 1", [](auto& h) { h.numerics = 1; });
  expect_problem("a codec that", [](auto& h) { h.codec.kind = static_cast<quant::CodecKind>(10); });
  expect_problem("a scale format", [](auto& h) { h.codec.scale = static_cast<quant::ScaleFormat>(3); });
  expect_problem("a rounding", [](auto& h) { h.codec.rounding = static_cast<quant::Rounding>(2); });
  expect_problem("a block of 3 elements", [](auto& h) { h.codec.block = 3; });
  expect_problem("chunks of 0 elements", [](auto& h) { h.chunk_elements = 0; });
  expect_problem("no fragments", [](auto& h) { h.fragments.clear(); });
  expect_problem("a fragment 1", [](auto& h) { h.fragments[1].size = 0; });
  expect_problem("a fragment 1", [](auto& h) { h.fragments[1].begin = 39; });
  expect_problem("a fragment 2", [](auto& h) { h.fragments[2].begin += 5000; });
  expect_problem("a fragment 2", [](auto& h) { h.fragments[2].size = ~std::uint64_t{0}; });
  expect_problem("two tensors named first", [](auto& h) { h.tensors[1].name = "first"; });
  expect_problem("printable ASCII", [](auto& h) { h.tensors[1].name = "a\nb"; });
  expect_problem("printable ASCII", [](auto& h) { h.tensors[1].name = ""; });
  expect_problem("a tensor third", [](auto& h) { h.tensors[2].range.begin = 101; });
  expect_problem("a tensor third", [](auto& h) { h.tensors[2].shape = {7, 11}; });
  expect_problem("a tensor third", [](auto& h) { h.tensors[2].shape = {-7, -10}; });
  const auto large = std::int64_t{1} << 40;
  expect_problem("a tensor third", [&](auto& h) { h.tensors[2].shape = {large, large, 70}; });
}

}  // namespace
}  // namespace isthmus::outer_sync::log
