// `isthmus replay` as users run it, on logs of a run without replicas.

#include <nlohmann/json.hpp>

#include "../outer_sync/log/log_support.h"
#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
namespace log = outer_sync::log;

/// Writes a log of `rounds` rounds of each fragment; returns the run with its parameters.
log::MockRun write_log(const std::filesystem::path& folder, int rounds) {
  log::MockRun run(log::header_of());
  log::RoundLog out(folder, run.header, log::plenty, run.states);
  run.answer(out);
  for (int i = 0; i < rounds; ++i) {
    for (outer_sync::FragmentId p = 0; p < 3; ++p) run.round(p, out);
  }
  out.flush();
  return run;
}

TEST(Replay, WritesTheModelOfTheRoundAskedFor) {
  Site site;
  const auto run = write_log(site / "at_4", 4);
  static_cast<void>(write_log(site / "log", 6));
  const auto file = site / "model.safetensors";
  const auto result =
      site.isthmus({"replay", (site / "log").string(), "--until", "4", "--out", file.string()});
  ASSERT_EQ(result.status, 0) << result.report();
  const auto parameters = run.parameters();
  const auto hash = hash_of(std::as_bytes(std::span(parameters))).hex();
  EXPECT_THAT(result.output, HasSubstr("run mock, 3 fragments, 3 tensors\n"));
  EXPECT_THAT(result.output, HasSubstr("fragment 1: snapshot of round 0, applied up to round 4, chain " +
                                       run.states[1].chain.hex().substr(0, 16) + "\n"));
  EXPECT_THAT(result.output,
              HasSubstr("chains: 12 rounds recomputed, all as recorded\nglobal hash " + hash + "\n"));

  const auto bytes = read_all(file);
  std::uint64_t length = 0;
  ASSERT_GT(bytes.size(), sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  ASSERT_LT(length, bytes.size());
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["global_hash"], hash);
  EXPECT_EQ(header["__metadata__"]["rounds"], "[4,4,4]");
  for (const auto& tensor : run.header.tensors) {
    const auto& there = header[tensor.name];
    EXPECT_EQ(there["shape"].get<std::vector<std::int64_t>>(), tensor.shape);
    const auto begin = there["data_offsets"][0].get<std::size_t>();
    ASSERT_LE(8 + length + begin + tensor.range.size * 4, bytes.size());
    EXPECT_EQ(std::memcmp(bytes.data() + 8 + length + begin, parameters.data() + tensor.range.begin,
                          tensor.range.size * 4),
              0)
        << tensor.name;
  }
}

TEST(Replay, SaysWhatIsWrongByItsExitStatus) {
  Site site;
  const auto expect = [&](Words words, int status, const std::string& text) {
    words.insert(words.begin(), "replay");
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, status) << result.report();
    EXPECT_THAT(result.output, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(site / "model.safetensors"));
  };
  const auto folder = (site / "log").string(), out = (site / "model.safetensors").string();
  expect({}, 2, "log is required");
  expect({folder, "--until", "soon"}, 2, "--until");
  expect({folder, "--out", out}, 3, "log/log.header: No such file");

  auto run = write_log(folder, 2);
  expect({folder}, 0, "global hash");
  {
    log::RoundLog more(folder, run.header, log::plenty, run.states);
    run.advance(2);
    run.states[2].chain.bytes[0] ^= 1;
    more.append(2, run.states[2], {run.rule}, run.results);
  }
  expect({folder, "--out", out}, 5, "the log of fragment 2 is wrong in round 3");
  const auto file = log::files_in(folder, "fragment_0001").front();
  auto text = read_all(file);
  text[100] = static_cast<char>(text[100] ^ 4);
  site.write("log/" + file.filename().string(), text);
  expect({folder, "--out", out}, 3, file.string() + " cannot be used at byte 0: its checksum is wrong");
}

}  // namespace
}  // namespace isthmus
