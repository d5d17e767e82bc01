// `run.on_event`: the command gets events one after the other, and cannot harm the run.

#include "coordinator/events/event_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "temporary_folder.h"

namespace isthmus::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Hook : public ::testing::Test {
 protected:
  /// Fires an event and waits for the end of the command.
  void fire(const std::string& command, const std::string& kind, const nlohmann::ordered_json& event,
            std::chrono::milliseconds limit = EventHook::usual_limit) {
    EventHook hook(
        command, [this](const std::string& line) { said.push_back(line); }, limit);
    hook.fire(kind, event);
  }
  [[nodiscard]] std::string text(const std::string& name) const {
    std::ifstream in(folder / name);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }

  TemporaryFolder folder;
  std::vector<std::string> said;
};

TEST_F(Hook, TellsTheCommandOnItsInputAndByItsArguments) {
  const auto out = (folder / "out").string();
  fire("cat > " + out + "; echo \"$1\" >> " + out + "; echo \"$2\" >> " + out, "member_lost",
       {{"name", "us-1"}, {"step", 7}});
  const std::string json = R"({"event":"member_lost","name":"us-1","step":7})";
  EXPECT_EQ(text("out"), json + "\nmember_lost\n" + json + "\n");
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(Hook, OneThatIsTooLongForAnArgumentIsWholeOnTheInput) {
  const auto out = (folder / "out").string(), argument = (folder / "argument").string();
  const std::string reason(300'000, 'x');
  fire("cat > " + out + "; printf %s \"$2\" > " + argument, "suspended", {{"reason", reason}});
  EXPECT_EQ(text("out"), R"({"event":"suspended","reason":")" + reason + "\"}\n");
  EXPECT_EQ(text("argument"), R"({"event":"suspended","too_long":true})");
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(Hook, NothingInAnEventIsEverRun) {
  const auto out = (folder / "out").string(), made = (folder / "made").string();
  fire("printf %s \"$2\" > " + out, "suspended",
       {{"reason", "$(touch " + made + ")'; touch " + made + "; `touch " + made + "` \""}});
  EXPECT_THAT(text("out"), HasSubstr("$(touch"));
  EXPECT_FALSE(std::filesystem::exists(made));
}

TEST_F(Hook, ACommandThatFailsIsSaid) {
  fire("exit 3", "finished", {});
  EXPECT_THAT(said, ElementsAre("run.on_event: the command for finished ended with status 3"));
}

TEST_F(Hook, OneThatHangsIsKilledWithWhatItHasStarted) {
  fire("sleep 1000 & sleep 1000", "finished", {}, std::chrono::milliseconds(200));
  EXPECT_THAT(said, ElementsAre(HasSubstr("took longer than 0.2 s and was killed")));
}

TEST_F(Hook, EventsComeInOrderAndNoMoreThanFit) {
  const auto out = (folder / "out").string();
  {
    EventHook hook("echo \"$1\" >> " + out, [this](const std::string& line) { said.push_back(line); });
    for (int i = 0; i < 3; ++i) hook.fire("event" + std::to_string(i), {});
  }
  EXPECT_EQ(text("out"), "event0\nevent1\nevent2\n");
}

}  // namespace
}  // namespace isthmus::app
