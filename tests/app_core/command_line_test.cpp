// The command line: mistakes name the verb or option that was probably meant, and spellings of earlier
// releases work.

#include <regex>

#include "isthmus/base/near_word.h"
#include "site.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CommandLineTest : public ::testing::Test {
 protected:
  void expect_refused(const Words& words, const std::string& message) {
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(message)) << result.report();
  }
  Site site;
};

TEST_F(CommandLineTest, AnUnknownVerbNamesTheNearest) {
  expect_refused({"lanch", "a.yaml"}, "unknown verb 'lanch'; did you mean 'launch'? `isthmus");
  expect_refused({"status"}, "unknown verb 'status'; did you mean 'ctl status'?");
  expect_refused({"ctl", "puase"}, "unknown verb 'puase'; did you mean 'pause'?");
  expect_refused({"help", "tokenize"}, "unknown verb 'tokenize'; did you mean 'data tokenize'?");
  expect_refused({"xylophone"}, "unknown verb 'xylophone'; `isthmus");
  expect_refused({std::string(5000, 'x') + "\x1b[2J"}, "--help` lists all");
}

TEST_F(CommandLineTest, AnUnknownOptionNamesTheNearest) {
  expect_refused({"launch", "a.yaml", "--detatch"},
                 "unknown option '--detatch'; did you mean '--detach'? `isthmus");
  expect_refused({"worker", "--nmae=eu", "a.yaml"}, "unknown option '--nmae'; did you mean '--name'?");
  expect_refused({"launch", "a.yaml", "b.yaml"}, "unexpected argument 'b.yaml'");
}

TEST_F(CommandLineTest, WhatIsMissingIsNamed) {
  expect_refused({"worker"}, "config and --name are required");
  expect_refused({"worker", site.config().string()}, "--name is required");
  expect_refused({"ctl", "set", site.config().string()}, "nothing to set; expected KEY=VALUE");
  expect_refused({"ctl", "drain", "--config", site.config().string()}, "nothing to drain; expected a worker");
}

TEST_F(CommandLineTest, WithoutAVerbTheHelpIsPrinted) {
  for (const auto& [words, verb] : {std::pair(Words{}, "launch"), {Words{"ctl"}, "drain"}}) {
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, AllOf(HasSubstr("Usage: isthmus"), HasSubstr(verb)));
  }
}

TEST_F(CommandLineTest, HelpHasTheVerbsInFourGroups) {
  const auto result = site.isthmus({"--help"});
  EXPECT_EQ(result.status, 0);
  std::size_t after = 0;
  for (const auto* group : {"\nTrain:\n", "\nLook at a run and its model:\n", "\nSettings and data:\n",
                            "\nOperate and check:\n"}) {
    const auto at = result.output.find(group);
    ASSERT_NE(at, std::string::npos) << group << result.output;
    EXPECT_GT(at, after);
    after = at;
  }
}

TEST_F(CommandLineTest, HelpDoesNotShowEarlierSpellings) {
  const auto join = site.isthmus({"join", "--help"});
  EXPECT_THAT(join.output, AllOf(HasSubstr("--out"), Not(HasSubstr("--dir"))));
  const auto worker = site.isthmus({"worker", "--help"});
  EXPECT_THAT(worker.output, AllOf(HasSubstr("[OPTIONS] config"), Not(HasSubstr("--config"))));
}

// The coordinator of the config is at a port where nothing listens, so each command gets as far as asking it.
TEST_F(CommandLineTest, ALiveRunsConfigIsAnArgumentOrFollowsAnOption) {
  const auto config = site.config().string();
  const Words unreachable = {"--coordinator", "127.0.0.1:1", "--insecure"};
  const std::vector<Words> calls = {
      {"top", "--once", config},
      {"top", "--once", "--config", config},
      {"ctl", "status", config},
      {"ctl", "status", "--config", config},
      {"ctl", "set", config, "outer.sync_every=60"},
      {"ctl", "set", "outer.sync_every=60", "--config", config},
      {"ctl", "set", "--config", config, "outer.sync_every=60", "run.eval_every=5"},
      {"ctl", "drain", config, "eu", "us"},
      {"ctl", "drain", "eu", "--config", config},
      {"ctl", "drain", "eu", "us"}};
  for (auto words : calls) {
    words.insert(words.end(), unreachable.begin(), unreachable.end());
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 4) << result.report();
    EXPECT_THAT(result.output, HasSubstr("127.0.0.1:1"));
  }
  expect_refused({"ctl", "drain", (site / "none.yaml").string(), "eu"},
                 "none.yaml: No such file or directory");
}

TEST_F(CommandLineTest, AReducerStartsWithEitherSpellingOfTheConfig) {
  const auto config = site.config().string();
  auto coordinator = site.start({"coordinator", config, "--listen", "127.0.0.1:0"});
  const auto address = coordinator.coordinator_address();
  ASSERT_FALSE(address.empty()) << site.logs();
  auto one = site.start({"worker", config, "--reduce-only", "--coordinator", address, "--name", "one"});
  auto two =
      site.start({"worker", "--reduce-only", "--config", config, "--coordinator", address, "--name", "two"});
  EXPECT_TRUE(coordinator.says("one joined from 127.0.0.1:")) << site.logs();
  EXPECT_TRUE(coordinator.says("two joined from 127.0.0.1:")) << site.logs();
}

}  // namespace
}  // namespace isthmus
