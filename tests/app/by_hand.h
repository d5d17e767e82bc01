#pragma once
// A coordinator and workers that a test starts by hand, as at two sites.

#include <optional>
#include <string>

#include "site.h"

namespace isthmus {

/// The number after `words` in the text; 0 if its line is not complete yet.
inline std::uint16_t port_after(const std::string& text, const std::string& words) {
  const auto at = text.find(words);
  if (at == std::string::npos || text.find('\n', at) == std::string::npos) return 0;
  return static_cast<std::uint16_t>(std::stoi(text.substr(at + words.size())));
}

class ByHand : public ::testing::Test {
 protected:
  /// Starts the coordinator first, on a port that the system chooses, as `launch` does.
  void start_coordinator(const Words& settings = {}) {
    coordinator.emplace(site.start(with_settings(
        {"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:0"}, settings)));
    ASSERT_TRUE(wait_for("listens at port ")) << site.logs();
    port = port_after(coordinator->output(), "listens at port ");
  }
  Command worker(const std::string& name, const Words& settings = {}) {
    return site.start(
        with_settings({"worker", "--config", site.config().string(), "--coordinator",
                       "127.0.0.1:" + std::to_string(port), "--name", name, "--listen", "127.0.0.1:0"},
                      settings));
  }
  /// Blocks until the coordinator has printed a whole line with `words`.
  bool wait_for(const std::string& words) {
    return eventually([&] {
      const auto text = coordinator->output();
      const auto at = text.find(words);
      return at != std::string::npos && text.find('\n', at) != std::string::npos;
    });
  }
  void expect_reference(Command& first, Command& second) {
    for (auto* command : {&*coordinator, &first, &second}) {
      const auto result = command->wait();
      ASSERT_EQ(result.status, 0) << result.report() << site.logs();
    }
    EXPECT_EQ(site.hash(), reference().hash);
    EXPECT_EQ(site.summary()["evaluations"], reference().evaluations);
  }

  Site site;
  std::optional<Command> coordinator;
  std::uint16_t port = 0;
};

}  // namespace isthmus
