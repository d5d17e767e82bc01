// The tether and its agent alone: what they write, what outlives a connection, and what ends when the launch
// leaves or is silent for too long.

#include <gmock/gmock.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>

#include "command.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text.h"
#include "launch/agent/agent_messages.h"
#include "run/process/run_folder.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* until_go = "while [ ! -e go ]; do sleep 0.05; done";

/// A tether with these messages on standard input, which stays open while `rest` runs.
class TetherRun {
 public:
  using Messages = std::function<std::vector<app::Message>(const std::string& there)>;
  TetherRun(const Messages& messages, const std::string& rest, const std::string& flags = {}) {
    connect(messages, rest, flags);
  }
  /// Ends remaining agents, also if the test has failed.
  ~TetherRun() {
    for (const auto& process : processes_with("tether --folder " + there().string()))
      kill(process.pid, SIGTERM);
    EXPECT_TRUE(eventually([&] { return processes_with(there().string()).empty(); }));
  }
  TetherRun(const TetherRun&) = delete;
  TetherRun& operator=(const TetherRun&) = delete;

  /// Connects once more to the same folder.
  void connect(const Messages& messages, const std::string& rest, const std::string& flags = {}) {
    std::filesystem::remove(folder_ / "go");
    std::string input;
    for (const auto& message : messages(there().string())) input += app::line_of(message);
    folder_.write("input", input);
    command_ = std::make_unique<Command>(
        std::vector<std::string>{"/bin/sh", "-c",
                                 "cd " + folder_.path().string() + "; { cat input; " + rest + "; } | " +
                                     coordinator_program + " tether --folder " + there().string() +
                                     " --run run --site eu " + flags},
        folder_ / "output.log");
  }
  /// Ends a `rest` of `until_go` once the output contains `text`.
  [[nodiscard]] bool go_after(const std::string& text) {
    const bool said = eventually([&] { return output().find(text) != std::string::npos; });
    folder_.write("go", "");
    return said;
  }
  [[nodiscard]] std::string output() const { return command_->output(); }
  [[nodiscard]] Result wait() { return command_->wait(); }
  [[nodiscard]] std::filesystem::path there() const { return folder_ / "there"; }
  [[nodiscard]] std::filesystem::path file(const std::string& name) const { return folder_ / name; }
  /// Processes of the coordinator that the tether started.
  [[nodiscard]] std::vector<RunningProcess> coordinator_processes() const {
    return processes_with("--config " + there().string());
  }
  [[nodiscard]] std::size_t coordinators() const { return coordinator_processes().size(); }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Command> command_;
};

app::Message config_file(const std::string& there) {
  return {{"do", "write"},
          {"path", "run/eu.yaml"},
          {"text", "run.name: run\nrun.out: " + there + "\nreplicas: 1\ndata.path: none\n"}};
}
app::Message start_coordinator(const std::string& config) {
  return {{"do", "start"},
          {"name", "coordinator"},
          {"folder", "run"},
          {"life", 1},
          {"arguments", {"coordinator", "--config", config}},
          {"coordinator", true}};
}

TEST(Tether, SaysWhereItIsAndWritesWhatItIsGivenForNobodyElse) {
  const app::Message key_file = {
      {"do", "write"}, {"path", "run/certs/eu/cert.pem"}, {"text", "key"}, {"secret", true}};
  TetherRun run(
      [&](const std::string& there) {
        return std::vector<app::Message>{config_file(there), key_file, {{"do", "ready"}}};
      },
      "sleep 0.2");
  EXPECT_EQ(run.wait().status, 0) << run.output();
  const auto hello = app::message_of(run.output().substr(0, run.output().find('\n')));
  ASSERT_TRUE(hello) << run.output();
  EXPECT_EQ(app::text_in(*hello, "folder"), std::filesystem::canonical(run.there()));
  EXPECT_GE(app::number_in(*hello, "cores", 0), 1);
  EXPECT_THAT(run.output(), HasSubstr("{\"ready\":true}"));
  const auto key = run.there() / "run/certs/eu/cert.pem";
  EXPECT_EQ(read_all(key), "key");
  EXPECT_EQ(std::filesystem::status(key).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(Tether, WritesNowhereElse) {
  for (const auto* path : {"../outside", "/tmp/isthmus-outside", "run/../../outside", ""}) {
    const app::Message message = {{"do", "write"}, {"path", path}, {"text", "x"}};
    TetherRun run([&](const std::string&) { return std::vector<app::Message>{message}; }, "sleep 1");
    EXPECT_EQ(run.wait().status, 0) << path << run.output();
    EXPECT_THAT(run.output(), HasSubstr("is not in the folder of runs"));
    EXPECT_FALSE(std::filesystem::exists(run.file("outside")));
  }
}

/// A coordinator that waits for a replica that never connects.
std::vector<app::Message> waiting_coordinator(const std::string& there) {
  return {config_file(there), start_coordinator(there + "/run/eu.yaml")};
}

TEST(Tether, PassesOnThePortAndWhatIsSaidAndTheEnd) {
  TetherRun run(
      [](const std::string& there) {
        return std::vector<app::Message>{config_file(there), start_coordinator(there + "/run/none.yaml")};
      },
      until_go);
  EXPECT_TRUE(run.go_after("\"ended\"")) << run.output();
  EXPECT_EQ(run.wait().status, 0);
  EXPECT_THAT(run.output(), HasSubstr("cannot read"));
  EXPECT_THAT(run.output(), HasSubstr(R"("ended":"coordinator","life":1,"run_goes_on":false,"status":2})"));
}

std::vector<app::Message> nothing(const std::string& /*there*/) { return {}; }
std::vector<app::Message> leave(const std::string& /*there*/) { return {{{"do", "leave"}}}; }

TEST(Tether, ItsProcessesOutliveAConnectionAndEndWhenTheLaunchLeaves) {
  TetherRun run(waiting_coordinator, until_go);
  ASSERT_TRUE(run.go_after("{\"port\":")) << run.output();
  EXPECT_EQ(run.wait().status, 0);
  const auto before = run.coordinator_processes();
  ASSERT_EQ(before.size(), 1U);
  run.connect(leave, "sleep 0.1");
  EXPECT_EQ(run.wait().status, 0);
  const auto hello = app::message_of(run.output().substr(0, run.output().find('\n')));
  ASSERT_TRUE(hello) << run.output();
  ASSERT_EQ(hello->at("processes").size(), 1U) << run.output();
  EXPECT_EQ(hello->at("processes")[0].at("name"), "coordinator");
  EXPECT_EQ(hello->at("processes")[0].at("life"), 1);
  EXPECT_GT(app::number_in(*hello, "port", 0), 0);
  EXPECT_EQ(run.coordinators(), 0U)
      << "the tether must end after the agent, and the agent after its processes";
}

TEST(Tether, WhatEndedMeanwhileIsLearntByTheNextConnection) {
  TetherRun run(waiting_coordinator, "sleep 0.1");
  EXPECT_EQ(run.wait().status, 0);
  ASSERT_TRUE(eventually([&] { return run.coordinators() == 1; }));
  kill(run.coordinator_processes().front().pid, SIGINT);  // stops the run
  ASSERT_TRUE(eventually([&] { return run.coordinators() == 0; }));
  run.connect(nothing, until_go);
  ASSERT_TRUE(run.go_after("\"ended\":\"coordinator\"")) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("\"status\":130}"));
  static_cast<void>(run.wait());
  run.connect(leave, "sleep 0.1");
  EXPECT_EQ(run.wait().status, 0);
}

/// After the agent was killed, a worker can take seconds to free its memory and then its folder.
TEST(Tether, AWorkerIsStartedOnceItsFolderIsFree) {
  std::optional<app::FolderLock> former;
  TetherRun run(
      [&](const std::string& there) {
        const auto folder = std::filesystem::path(there) / "run/eu-1";
        std::filesystem::create_directories(folder);
        former.emplace(folder);
        return std::vector<app::Message>{config_file(there),
                                         start_coordinator(there + "/run/eu.yaml"),
                                         {{"do", "start"},
                                          {"name", "eu-1"},
                                          {"folder", "run/eu-1"},
                                          {"life", 1},
                                          {"arguments", {"--version"}}}};
      },
      until_go);
  ASSERT_TRUE(eventually([&] { return run.output().find("{\"port\":") != std::string::npos; }))
      << run.output();
  EXPECT_EQ(run.coordinators(), 1U) << "the agent and its other processes must be running";
  EXPECT_THAT(run.output(), Not(HasSubstr("\"ended\"")));
  former.reset();
  EXPECT_TRUE(run.go_after(R"("ended":"eu-1","life":1,"status":0})")) << run.output();
  static_cast<void>(run.wait());
  run.connect(leave, "sleep 0.1");
  EXPECT_EQ(run.wait().status, 0);
}

/// The former coordinator was killed with its agent or its machine.
TEST(Tether, ANewAgentSaysThatTheRunGoesOn) {
  const auto says = [](bool stored) {
    TetherRun run(
        [&](const std::string& there) {
          std::filesystem::create_directories(there + "/run");
          if (stored) replace_file(there + "/run/coordinator.state", "a view");
          return std::vector<app::Message>{{{"do", "ready"}}, {{"do", "leave"}}};
        },
        "sleep 0.2");
    EXPECT_EQ(run.wait().status, 0) << run.output();
    const auto hello = app::message_of(run.output().substr(0, run.output().find('\n')));
    return hello && app::flag_in(*hello, "run_goes_on");
  };
  EXPECT_TRUE(says(true));
  EXPECT_FALSE(says(false));
}

TEST(Tether, TheNewestLaunchCounts) {
  TetherRun first(waiting_coordinator, "exec sleep 100");
  ASSERT_TRUE(eventually([&] { return first.output().find("{\"port\":") != std::string::npos; }))
      << first.output();
  auto second = Command(
      {coordinator_program, "tether", "--folder", first.there().string(), "--run", "run", "--site", "eu"},
      first.file("second.log"));
  EXPECT_TRUE(eventually([&] { return first.output().find("{\"replaced\":true}") != std::string::npos; }));
  EXPECT_EQ(first.coordinators(), 1U);
}

TEST(Tether, ItsProcessesEndWhenNobodySpeaks) {
  TetherRun run(waiting_coordinator, "exec sleep 100", "--silence 5");
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 1; })) << run.output();
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 0; })) << run.output();
}

TEST(Tether, ItsProcessesEndWhenTheAgentIsKilled) {
  TetherRun run(waiting_coordinator, "exec sleep 100");
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 1; })) << run.output();
  for (const auto& process : processes_with("tether --folder " + run.there().string())) {
    if (process.command.find("--started-fd") != std::string::npos) kill(process.pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 0; })) << run.output();
}

TEST(Tether, NobodyElseReachesTheAgent) {
  TetherRun run(waiting_coordinator, "exec sleep 100");
  ASSERT_TRUE(eventually([&] { return run.coordinators() == 1; })) << run.output();
  using std::filesystem::perms;
  const auto agents = run.there() / "run/agents";
  EXPECT_EQ(std::filesystem::status(agents).permissions(), perms::owner_all);
  EXPECT_EQ(std::filesystem::status(agents / "eu.sock").permissions(),
            perms::owner_read | perms::owner_write);
}

TEST(Tether, AMessageThatIsTooLongEndsTheConnectionAndNothingElse) {
  TetherRun run(waiting_coordinator, "head -c 5000000 /dev/zero; exec sleep 100");
  EXPECT_TRUE(eventually([&] {
    return run.output().find("a message of more than 4 MiB") != std::string::npos;
  })) << run.output();
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 1; }));
}

TEST(Tether, GarbageIsPassedOver) {
  TetherRun run(
      [](const std::string&) {
        return std::vector<app::Message>{{{"do", 7}}, {{"do", "start"}}};
      },
      "printf '}{\\n\\n[1]\\n{\"do\":\"signal\",\"name\":\"x\",\"number\":9}\\n'; sleep 0.3");
  EXPECT_EQ(run.wait().status, 0) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("'' is not in the folder of runs"))
      << "a process without a name must not be started";
}

TEST(TetherMessages, LinesComeWholeAndFieldsAreWhatTheyMustBe) {
  app::LineBuffer lines;
  lines.add("{\"a\": 1}\r\n{\"b");
  EXPECT_EQ(lines.next(), "{\"a\": 1}");
  EXPECT_EQ(lines.next(), std::nullopt);
  EXPECT_EQ(lines.pending(), 3U);
  lines.add("\": []}\n");
  const auto message = app::message_of(*lines.next());
  ASSERT_TRUE(message);
  EXPECT_EQ(app::text_in(*message, "b"), "");
  EXPECT_EQ(app::number_in(*message, "b", 7), 7);
  EXPECT_FALSE(app::flag_in(*message, "none"));
  EXPECT_FALSE(app::message_of("[1]"));
  EXPECT_FALSE(app::message_of("{\"a\""));
  EXPECT_EQ(app::line_of({{"a", "\xff"}}), "{\"a\":\"\xef\xbf\xbd\"}\n");
  EXPECT_EQ(printable("a\x1b[2J\tb"), "a?[2J\tb");
}

}  // namespace
}  // namespace isthmus
