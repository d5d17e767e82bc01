// The log as a run writes it: its budget, restarts, and failures.

#include "log_support.h"

namespace isthmus::outer_sync::log {
namespace {

using testing::SizeIs;

TEST(RoundLog, NeverExceedsItsBudgetAndKeepsEnough) {
  const auto header = header_of();
  const auto least = RoundLog::min_budget(header);
  for (std::uint64_t chance = 0; chance < 12; ++chance) {
    const TemporaryFolder folder;
    MockRun run(header, chance);
    // Some of these budgets are the smallest possible, others hold dozens of rounds.
    const auto budget = least + (chance % 4) * 3000 + run.below(300);
    SCOPED_TRACE("seed " + std::to_string(chance) + ", a budget of " + std::to_string(budget) + " bytes");
    RoundLog log(folder.path(), header, budget, run.states);
    for (int i = 0; i < 150; ++i) {
      log.flush();
      for (FragmentId p = 0; p < 3; ++p) {
        if (!log.wants_snapshot(p)) continue;
        const auto size = header.fragments[p].size * 8 + 56 + 32;
        ASSERT_LE(bytes_in(folder.path()) + size, budget) << "while both the old and the new file exist";
        run.snapshot(p, log);
        log.flush();
      }
      // One fragment may be far ahead of the others.
      const auto p =
          static_cast<FragmentId>(chance % 3 == 0 ? run.below(3) : std::min<std::uint64_t>(run.below(9), 2));
      run.advance(p);
      log.append(p, run.states[p], {run.rule}, run.results);
      log.flush();
      ASSERT_LE(bytes_in(folder.path()), budget);
      if (i > 20 && i % 10 == 0) run.expect_in(folder.path());
    }
    for (FragmentId p = 0; p < 3; ++p)
      EXPECT_THAT(files_in(folder.path(), "fragment_000" + std::to_string(p)), SizeIs(1));
  }
}

TEST(RoundLog, UsesItsBudgetToTheLastRound) {
  auto header = header_of();
  header.fragments.resize(1);
  header.tensors.resize(1);
  const auto round_size = 56 + 12 + header.result_size(0) + 32;
  for (std::uint64_t more = 0; more < 4; ++more) {
    const TemporaryFolder folder;
    MockRun run(header);
    const auto budget = RoundLog::min_budget(header) + more * round_size;
    RoundLog log(folder.path(), header, budget, run.states);
    for (int snapshots = 0; snapshots < 3; ++snapshots) {
      ASSERT_TRUE(log.wants_snapshot(0));
      run.snapshot(0, log);
      for (std::uint64_t i = 0; i <= more; ++i) {
        ASSERT_FALSE(log.wants_snapshot(0)) << "after " << i << " rounds there is room for " << more + 1;
        run.advance(0);
        log.append(0, run.states[0], {run.rule}, run.results);
      }
    }
    log.flush();
    run.expect_in(folder.path());
  }
}

TEST(RoundLog, RefusesABudgetThatCannotHoldASnapshotBesideTheLast) {
  const auto header = header_of();
  const TemporaryFolder folder;
  MockRun run(header);
  const auto least = RoundLog::min_budget(header);
  expect_error([&] { const RoundLog log(folder.path(), header, least - 1, run.states); }, ErrorKind::config,
               {"outer.log_budget is " + std::to_string(least - 1) + " bytes; expected at least " +
                std::to_string(least)});
  EXPECT_THAT(files_in(folder.path(), ""), SizeIs(0))
      << "nothing may be written before the budget is refused";
  const RoundLog log(folder.path(), header, least, run.states);
}

TEST(RoundLog, GoesOnWhereTheRunIs) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  for (int start = 0; start < 4; ++start) {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    for (FragmentId p = 0; p < 3; ++p) EXPECT_EQ(log.wants_snapshot(p), start == 0) << "start " << start;
    run.answer(log);
    for (int i = 0; i < 3; ++i) run.round(static_cast<FragmentId>(run.below(3)), log);
  }
  run.expect_in(folder.path());
  const auto replayed = replay(folder.path());
  EXPECT_EQ(replayed.rounds(), 12U);
  for (const auto& fragment : replayed.fragments)
    EXPECT_EQ(fragment.first, 0U) << "one snapshot must be enough";
}

TEST(RoundLog, FollowsARunThatGoesBackToItsCheckpoint) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 9; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  }
  auto resumed = run;  // continues with other results, as after losing a member
  resumed.random = 99;
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    for (int i = 0; i < 6; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  }
  RoundLog log(folder.path(), resumed.header, plenty, resumed.states);
  resumed.expect_in(folder.path());
  for (int i = 0; i < 4; ++i) resumed.round(static_cast<FragmentId>(i % 3), log);
  log.flush();
  resumed.expect_in(folder.path());
}

TEST(RoundLog, BeginsAnewWhereItDoesNotHoldTheRunsState) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 9; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  }
  run.advance(0);                        // a round that is not in the log
  run.states[1].chain.bytes[0] ^= 0xff;  // a different history
  RoundLog log(folder.path(), run.header, plenty, run.states);
  EXPECT_TRUE(log.wants_snapshot(0));
  EXPECT_TRUE(log.wants_snapshot(1));
  EXPECT_FALSE(log.wants_snapshot(2));
  run.answer(log);
  for (int i = 0; i < 6; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  log.flush();
  run.expect_in(folder.path());
}

TEST(RoundLog, CutsOffWhatACrashLeft) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 6; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  }
  const auto before = run;
  const auto file = files_in(folder.path(), "fragment_0002").front();
  const auto whole = std::filesystem::file_size(file);
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.round(2, log);
  }
  std::filesystem::resize_file(file, whole + 70);
  folder.write("fragment_0002_round_000000000003.log.partial", "half a snapshot");

  auto resumed = before;
  RoundLog log(folder.path(), resumed.header, plenty, resumed.states);
  EXPECT_EQ(std::filesystem::file_size(file), whole);
  EXPECT_THAT(files_in(folder.path(), ""), SizeIs(4)) << "the header and a file of each fragment";
  EXPECT_FALSE(log.wants_snapshot(2));
  for (int i = 0; i < 6; ++i) resumed.round(static_cast<FragmentId>(i % 3), log);
  log.flush();
  resumed.expect_in(folder.path());
}

TEST(RoundLog, ManagesWithTheFilesFromBothSidesOfASnapshot) {
  const TemporaryFolder folder, aside;
  MockRun run(header_of());
  const auto old_file = folder / "fragment_0001_round_000000000000.log";
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 9; ++i) run.round(static_cast<FragmentId>(i % 3), log);
    log.flush();
    std::filesystem::copy_file(old_file, aside / "old");
    run.snapshot(1, log);
    run.round(1, log);
  }
  EXPECT_FALSE(std::filesystem::exists(old_file));
  std::filesystem::copy_file(aside / "old", old_file);  // as if it crashed before removing the file
  run.expect_in(folder.path());
  EXPECT_EQ(replay(folder.path(), 2).fragments[1].state.round, 2U) << "from the old file";
  const RoundLog log(folder.path(), run.header, plenty, run.states);
  EXPECT_FALSE(std::filesystem::exists(old_file));
  run.expect_in(folder.path());
}

TEST(RoundLog, BeginsAnewWhenABudgetHasBecomeTooSmallForWhatIsThere) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 90; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  }
  const auto budget = RoundLog::min_budget(run.header);
  ASSERT_GT(bytes_in(folder.path()), budget) << "this case must begin above the budget";
  RoundLog log(folder.path(), run.header, budget, run.states);
  run.answer(log);
  log.flush();
  EXPECT_LE(bytes_in(folder.path()), budget);
  run.expect_in(folder.path());
}

TEST(RoundLog, RefusesTheFolderOfAnotherRun) {
  const TemporaryFolder folder;
  const MockRun run(header_of());
  { const RoundLog log(folder.path(), run.header, plenty, run.states); }
  const auto expect_refused = [&](const std::string& what, auto change) {
    auto header = run.header;
    change(header);
    expect_error([&] { const RoundLog log(folder.path(), header, plenty, run.states); }, ErrorKind::config,
                 {folder.path().string(), what, "move it away"});
  };
  expect_refused("the run mock", [](auto& h) { h.run = "second"; });
  expect_refused("another model", [](auto& h) { h.model.bytes[0] ^= 1; });
  expect_refused("another outer.num_fragments", [](auto& h) { h.fragments[2].size = 71; });
  expect_refused("other settings of outer.*", [](auto& h) { h.codec.block = 32; });
}

TEST(RoundLog, RefusesADamagedFileAtTheStart) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  {
    RoundLog log(folder.path(), run.header, plenty, run.states);
    run.answer(log);
    for (int i = 0; i < 6; ++i) run.round(static_cast<FragmentId>(i % 3), log);
  }
  const auto file = files_in(folder.path(), "fragment_0000").front();
  const auto text = read_all(file);
  const auto name = file.filename().string();
  const auto expect_refused = [&](std::size_t at, const std::string& where) {
    auto damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    folder.write(name, damaged);
    expect_error([&] { const RoundLog log(folder.path(), run.header, plenty, run.states); }, ErrorKind::data,
                 {file.string(), where});
  };
  expect_refused(0, "at byte 0: expected a snapshot of fragment 0");
  const auto snapshot = 56 + 40 * 8 + 32;
  expect_refused(snapshot + 8, "at byte " + std::to_string(snapshot) + ": it has round 0; expected 1");
  expect_refused(text.size() - 1, "its checksum is wrong");
  folder.write(name, text.substr(0, 100));
  expect_error([&] { const RoundLog log(folder.path(), run.header, plenty, run.states); }, ErrorKind::data,
               {file.string(), "has 100 bytes; its snapshot alone takes " + std::to_string(snapshot)});
}

TEST(RoundLog, TellsTheNextCallWhatWentWrong) {
  const TemporaryFolder folder;
  MockRun run(header_of());
  RoundLog log(folder / "log", run.header, plenty, run.states);
  run.answer(log);
  log.flush();
  const auto file = files_in(folder / "log", "fragment_0001").front();
  std::filesystem::remove(file);
  const auto words = {"cannot open " + file.string()};
  expect_error(
      [&] {
        run.round(1, log);
        log.flush();
      },
      ErrorKind::data, words);
  expect_error([&] { run.round(0, log); }, ErrorKind::data, words);
}

}  // namespace
}  // namespace isthmus::outer_sync::log
