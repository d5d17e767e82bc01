// The tether by itself: what it writes, and that nothing outlives whoever has started it.

#include <gmock/gmock.h>

#include <csignal>
#include <functional>
#include <memory>

#include "command.h"
#include "isthmus/base/text.h"
#include "launch/tether_messages.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

/// A tether whose standard input are these messages, and then stays open for as long as `rest` runs.
class TetherRun {
 public:
  using Messages = std::function<std::vector<app::Message>(const std::string& there)>;
  TetherRun(const Messages& messages, const std::string& rest, const std::string& flags = {}) {
    const auto there = (folder_ / "there").string();
    std::string input;
    for (const auto& message : messages(there)) input += app::line_of(message);
    folder_.write("input", input);
    command_ = std::make_unique<Command>(
        std::vector<std::string>{"/bin/sh", "-c",
                                 "{ cat " + (folder_ / "input").string() + "; " + rest + "; } | " +
                                     ISTHMUS_COORDINATOR_BINARY + " tether --folder " + there + " " + flags},
        folder_ / "output.log");
  }
  [[nodiscard]] std::string output() const { return command_->output(); }
  [[nodiscard]] Result wait() { return command_->wait(); }
  [[nodiscard]] std::filesystem::path there() const { return folder_ / "there"; }
  [[nodiscard]] std::filesystem::path file(const std::string& name) const { return folder_ / name; }
  /// Of the process that it has started.
  [[nodiscard]] std::size_t coordinators() const {
    return processes_with("--config " + there().string()).size();
  }

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
    EXPECT_EQ(run.wait().status, 3) << path << run.output();
    EXPECT_THAT(run.output(), HasSubstr("is not in the folder of runs"));
    EXPECT_FALSE(std::filesystem::exists(run.file("outside")));
  }
}

/// A coordinator that waits for a replica which never comes.
std::vector<app::Message> waiting_coordinator(const std::string& there) {
  return {config_file(there), start_coordinator(there + "/run/eu.yaml")};
}

TEST(Tether, PassesOnThePortAndWhatIsSaidAndTheEnd) {
  TetherRun run(
      [](const std::string& there) {
        return std::vector<app::Message>{config_file(there), start_coordinator(there + "/run/none.yaml")};
      },
      "sleep 2");
  EXPECT_EQ(run.wait().status, 0);
  EXPECT_THAT(run.output(), HasSubstr("cannot read"));
  EXPECT_THAT(run.output(), HasSubstr("{\"ended\":\"coordinator\",\"status\":2}"));
}

TEST(Tether, ItsProcessesEndWithItsInput) {
  TetherRun run(waiting_coordinator, "sleep 1");
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 1; })) << run.output();
  EXPECT_EQ(run.wait().status, 0);
  EXPECT_THAT(run.output(), HasSubstr("{\"port\":"));
  EXPECT_EQ(run.coordinators(), 0U);
}

TEST(Tether, ItsProcessesEndWhenNobodySpeaks) {
  TetherRun run(waiting_coordinator, "exec sleep 100", "--silence 1");
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 1; })) << run.output();
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 0; })) << run.output();
}

TEST(Tether, ItsProcessesEndWhenItIsKilled) {
  TetherRun run(waiting_coordinator, "exec sleep 100");
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 1; })) << run.output();
  const auto tether = processes_with("tether --folder " + run.there().string());
  for (const auto& process : tether) kill(process.pid, SIGKILL);
  EXPECT_TRUE(eventually([&] { return run.coordinators() == 0; })) << run.output();
}

TEST(Tether, GarbageIsPassedOver) {
  TetherRun run(
      [](const std::string&) {
        return std::vector<app::Message>{{{"do", 7}}, {{"do", "start"}}};
      },
      "printf '}{\\n\\n[1]\\n{\"do\":\"signal\",\"name\":\"x\",\"number\":9}\\n'; sleep 0.3");
  EXPECT_EQ(run.wait().status, 3) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("'' is not in the folder of runs"))
      << "what has no name is not started";
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
