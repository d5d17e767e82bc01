// `sites.NAME.launch`: reading, printing, refused values, and the resulting ssh options.

#include "run/experiment/launcher_config.h"

#include <gmock/gmock.h>

#include "isthmus/base/error.h"
#include "launch/sites/launch_sites.h"
#include "launch/sites/ssh_command.h"
#include "run/experiment/experiment.h"
#include "temporary_folder.h"

namespace isthmus::app {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;
using Kind = LauncherConfig::Kind;

const std::string three_sites = R"(
data.path: /data
sites:
  eu:
    launch: {ssh: me@eu.example, port: 2222, program: ~/isthmus, folder: /runs, setup: [module load cuda, "a: b"],
             options: [ProxyJump=gate], environment: {NCCL_DEBUG: warn, EMPTY: ""}}
    inner.batch: 4
    data.path: corpus
  us: {launch: {slurm: [--partition=gpu]}, replicas: 2}
  ap: {inner.batch: 8}
)";

Experiment read(const std::string& text, const std::vector<std::string>& assignments = {}) {
  return load_experiment(config::Source::from_text(text, "test.yaml"), assignments, {}, Purpose::training);
}

TEST(LauncherConfig, StandsBesideASitesSettings) {
  const auto experiment = read(three_sites, {"sites.ap.launch.image=registry/isthmus:1"});
  ASSERT_EQ(experiment.sites.size(), 3U);
  const auto& eu = experiment.sites[0].launch;
  EXPECT_EQ(eu.kind(), Kind::ssh);
  EXPECT_EQ(eu.port, 2222);
  EXPECT_THAT(eu.setup, ElementsAre("module load cuda", "a: b"));
  EXPECT_THAT(eu.options, ElementsAre("ProxyJump=gate"));
  EXPECT_THAT(eu.environment, ElementsAre(Pair("NCCL_DEBUG", "warn"), Pair("EMPTY", "")));
  EXPECT_EQ(experiment.sites[1].launch.kind(), Kind::slurm);
  EXPECT_EQ(experiment.sites[2].launch.kind(), Kind::kubernetes);
  EXPECT_EQ(read(three_sites).sites[2].launch.kind(), Kind::local);
  EXPECT_EQ(experiment.replicas, 4);
}

TEST(LauncherConfig, PrintsAsWhatReadsBack) {
  auto experiment = read(three_sites);
  const auto printed = to_yaml(experiment);
  EXPECT_THAT(printed, HasSubstr("path: corpus\n")) << "a path of another machine must not be changed";
  auto again = read(printed);
  EXPECT_EQ(to_yaml(again), printed);
}

TEST(LauncherConfig, PathsThatASiteSetsStartFromItsFolderAndOthersStay) {
  TemporaryFolder folder;
  const auto file = folder.write("run.yaml", three_sites + "trainer: {init_from: here}\n");
  const auto here = load_experiment(file, {});
  const auto there = experiment_there({file, {}}, here.sites[0], "/home/me/runs", "my-run");
  EXPECT_EQ(there.data.path, "/home/me/runs/corpus");
  EXPECT_EQ(there.trainer.init_from, folder / "here");
  EXPECT_EQ(there.folder(), "/home/me/runs/my-run");
  EXPECT_EQ(there.inner.batch, 4);
  EXPECT_TRUE(there.sites.empty()) << "a site must not receive the other sites' settings";
}

struct Bad {
  const char* name;
  std::string site, words;
};
class RefusedLauncher : public ::testing::TestWithParam<Bad> {};

TEST_P(RefusedLauncher, ByPlaceAndWhatWasExpected) {
  try {
    static_cast<void>(read("data.path: /data\nsites:\n  eu: {" + GetParam().site + "}\n"));
    FAIL() << "expected an Error for " << GetParam().site;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(), HasSubstr(GetParam().words));
  }
}

const std::vector<Bad> bad = {
    {"TwoLaunchers", "launch: {ssh: a, slurm: [--x]}",
     "sites.eu.launch has more than one of ssh, slurm, image and by_hand"},
    {"AnOptionAsAHost", "launch: {ssh: -oProxyCommand=x}", "does not begin with '-'"},
    {"TwoLines", "launch: {ssh: a, setup: [\"a\\nb\"]}", "expected lists of single lines"},
    {"NoList", "launch: {ssh: a, setup: true}",
     "sites.eu.launch.setup is 'true'; expected a list like [true]"},
    {"NoVariable", "launch: {ssh: a, environment: {\"A B\": c}}", "expected variables like environment"},
    {"AnUnknownKey", "launch: {shh: a}", "of site eu; did you mean launch.ssh?"},
    {"APort", "launch: {ssh: a, port: 70000}", "sites.eu.launch.port is 70000"},
    {"NoProgram", "launch: {ssh: a, program: \"\"}", "sites.eu.launch.program is empty"},
    {"NoOptionOfSbatch", "launch: {slurm: [gpu]}", "expected options of sbatch like --partition=gpu"},
};
INSTANTIATE_TEST_SUITE_P(Launch, RefusedLauncher, ::testing::ValuesIn(bad),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(LauncherConfig, OneCoordinator) {
  EXPECT_THROW(
      static_cast<void>(read("data.path: /d\nsites: {a: {launch: {ssh: x, coordinator: true}}, b: {launch: "
                             "{ssh: y, coordinator: true}}}\n")),
      Error);
}

TEST(LauncherConfig, NobodysOptionMakesSshAskOrTrust) {
  LauncherConfig launcher;
  launcher.ssh = "me@eu";
  launcher.options = {"StrictHostKeyChecking=no", "BatchMode=no"};
  const auto command = ssh_command(launcher, {"run", "eu"});
  // For repeated options ssh uses the first.
  const auto place = [&](const std::string& word) {
    return std::ranges::find(command, word) - command.begin();
  };
  EXPECT_LT(place("StrictHostKeyChecking=yes"), place("StrictHostKeyChecking=no"));
  EXPECT_LT(place("BatchMode=yes"), place("BatchMode=no"));
  EXPECT_THAT(command, Contains("ServerAliveInterval=5"));
  EXPECT_EQ(command[command.size() - 3], "--");
}

TEST(LauncherConfig, NothingOfTheScriptIsTakenForShell) {
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  LauncherConfig launcher;
  launcher.program = "~/my isthmus";
  launcher.folder = "$(reboot)";
  launcher.environment = {{"A", "x; y"}};
  const auto script = tether_script(launcher, {"run", "eu", 30});
  EXPECT_THAT(script, HasSubstr("export A='x; y'\n"));
  EXPECT_THAT(script, HasSubstr("program=\"$HOME\"/'my isthmus'\n"));
  EXPECT_THAT(script, EndsWith("--folder '$(reboot)' --run 'run' --site 'eu' --silence 30 --grace 60"));
}

TEST(LaunchSites, WorkersOfASiteListenAtPortsOfTheirOwn) {
  EXPECT_EQ(nth_address("0.0.0.0:7001", 2), "0.0.0.0:7003");
  EXPECT_EQ(nth_address("[::1]:7001", 1), "[::1]:7002");
  EXPECT_EQ(nth_address("0.0.0.0:0", 3), "0.0.0.0:0");
  EXPECT_EQ(nth_address("none", 3), "none");
  EXPECT_THROW(static_cast<void>(nth_address("0.0.0.0:65535", 1)), Error);
}

TEST(LaunchSites, ACoordinatorThatOthersDialListensEverywhere) {
  EXPECT_EQ(coordinator_listen("eu.example:7000"), "0.0.0.0:7000");
  EXPECT_EQ(coordinator_listen("[2001:db8::1]:7000,b:7000"), "[::]:7000");
  EXPECT_EQ(coordinator_listen("127.0.0.1:0"), "127.0.0.1:0");
  EXPECT_EQ(coordinator_address("127.0.0.1:0", 7123), "127.0.0.1:7123");
  EXPECT_EQ(coordinator_address("a:7000,b:7000", 7000), "a:7000,b:7000");
}

}  // namespace
}  // namespace isthmus::app
