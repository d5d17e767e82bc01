// The secret of a run without certificates: a process that cannot read its file is neither member nor
// operator.

#include <sys/stat.h>

#include "site.h"
#include "socket.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Secret : public ::testing::Test {
 protected:
  void start_coordinator() {
    coordinator.emplace(
        site.start({"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:0"}));
    address = coordinator->coordinator_address();
    ASSERT_FALSE(address.empty()) << site.logs();
  }
  Result ask_for_status(const Words& more) {
    Words words = {"ctl", "status", "--coordinator", address};
    words.insert(words.end(), more.begin(), more.end());
    return site.isthmus(words);
  }
  Words reducer(const Words& settings) {
    return with_settings({"worker", "--reduce-only", "--config", site.config().string(), "--coordinator",
                          address, "--name", "third"},
                         settings);
  }
  [[nodiscard]] fs::path file() const { return site.run() / "run.secret"; }

  Site site;
  std::optional<Command> coordinator;
  std::string address;
};

TEST_F(Secret, IsMadeByTheCoordinatorForThisAccountAlone) {
  start_coordinator();
  EXPECT_EQ(fs::status(file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(site.run()).permissions(), fs::perms::owner_all);
  const auto secret = read_all(file());
  EXPECT_EQ(secret.size(), 65U);
  coordinator->signal(SIGKILL);
  coordinator->wait();
  start_coordinator();
  EXPECT_EQ(read_all(file()), secret) << "a continuing run's members know it";
}

TEST_F(Secret, WhoHasItTakesPart) {
  start_coordinator();
  for (const Words& way : {Words{"--config", site.config().string()}, {"--secret", file().string()}}) {
    const auto result = ask_for_status(way);
    EXPECT_EQ(result.status, 0) << result.report();
    EXPECT_THAT(result.output, HasSubstr("run tiny"));
  }
  auto member = site.start(reducer({}));
  EXPECT_TRUE(coordinator->says("third joined")) << site.logs();
}

TEST_F(Secret, WhoHasNoneIsNoOperator) {
  start_coordinator();
  const auto none = ask_for_status({});
  EXPECT_EQ(none.status, 2) << none.report();
  EXPECT_THAT(none.output, AllOf(HasSubstr("run.secret, the run's secret"), HasSubstr("--secret")));
  site.write("guess", std::string(64, 'a') + "\n");
  fs::permissions(site / "guess", fs::perms::owner_read);
  const auto wrong = ask_for_status({"--secret", (site / "guess").string()});
  EXPECT_EQ(wrong.status, 4) << wrong.report();
  EXPECT_THAT(wrong.output, HasSubstr("its secret is not the one in " + (site / "guess").string()));
  const auto insecure = ask_for_status({"--insecure"});
  EXPECT_EQ(insecure.status, 4) << insecure.report();
  EXPECT_TRUE(coordinator->says("it has not shown the run's secret")) << coordinator->output();
}

TEST_F(Secret, WhoHasNoneIsNoMember) {
  start_coordinator();
  site.write("guess", std::string(64, 'a') + "\n");
  fs::permissions(site / "guess", fs::perms::owner_read);
  const Words hasty = {"network.join_timeout=1s", "network.detect_timeout=1s", "network.heartbeat=200ms"};
  for (const auto& setting :
       {"network.secret=" + (site / "guess").string(), "network.secret=" + (site / "none").string(),
        std::string("network.insecure=true")}) {
    auto settings = hasty;
    settings.push_back(setting);
    const auto result = site.isthmus(reducer(settings));
    EXPECT_EQ(result.status, 4) << setting << result.report();
  }
  EXPECT_THAT(coordinator->output(), Not(HasSubstr("third joined")));
}

TEST_F(Secret, OneThatOthersCanReadIsNone) {
  start_coordinator();
  fs::permissions(file(), fs::perms::group_read, fs::perm_options::add);
  const auto result = ask_for_status({"--secret", file().string()});
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output, HasSubstr("can be read or written by other accounts; chmod 600 it"));
}

TEST_F(Secret, AStrangerIsShownOutAndTheRunGoesOn) {
  start_coordinator();
  const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const Stranger plain(port), almost(port);
  almost.say("ISTHSEC2" + std::string(32, 'n') + std::string(32, 'p'));
  EXPECT_TRUE(almost.is_shown_out());
  EXPECT_TRUE(coordinator->says("its secret is not this run's")) << coordinator->output();
  plain.say(std::string(100, '\0'));
  EXPECT_TRUE(plain.is_shown_out());
  EXPECT_EQ(ask_for_status({"--config", site.config().string()}).status, 0);
}

}  // namespace
}  // namespace isthmus
