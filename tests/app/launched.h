#pragma once
// A launch that runs until the test stops it, and commands to it by `isthmus ctl`.

#include <gmock/gmock.h>

#include <csignal>
#include <optional>
#include <string>

#include "site.h"

namespace isthmus {

class Launched : public ::testing::Test {
 protected:
  /// Starts the launch, and waits until two replicas are past the synchronous steps.
  void start(const Words& settings) {
    launch.emplace(site.start_launch(settings));
    // Until then, the folders of a previous run may exist.
    ASSERT_TRUE(eventually([&] {
      return launch->output().find("view 1 begins") != std::string::npos || !launch->running();
    })) << site.logs();
    for (const auto* replica : {"replica-0", "replica-1"}) {
      ASSERT_TRUE(eventually([&] { return site.metric_lines(replica) > 11 || !launch->running(); }))
          << site.logs();
    }
    ASSERT_TRUE(launch->running()) << launch->wait().report() << site.logs();
  }
  [[nodiscard]] Result ctl(Words words) {
    words.insert(words.begin(), "ctl");
    words.insert(words.end(), {"--coordinator", launch->coordinator_address(), "--secret",
                               (site.run() / "run.secret").string()});
    return site.isthmus(words);
  }
  void set(const std::string& assignment, const Words& more = {}) {
    Words words = {"set", assignment};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = ctl(words);
    ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  }
  [[nodiscard]] nlohmann::json status() {
    const auto result = ctl({"status", "--json"});
    EXPECT_EQ(result.status, 0) << result.report();
    return nlohmann::json::parse(result.output, nullptr, false);
  }
  void expect_stops_with_equal_hashes() {
    launch->signal(SIGINT);
    const auto end = launch->wait();
    EXPECT_EQ(end.status, 130) << end.report() << site.logs();
    EXPECT_EQ(site.hash().size(), 64U) << "the hash must be equal on all";
    EXPECT_THAT(site.processes(), ::testing::SizeIs(0));
  }

  Site site;
  std::optional<Command> launch;
};

}  // namespace isthmus
