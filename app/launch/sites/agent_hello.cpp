#include "launch/sites/agent_hello.h"

#include <algorithm>

namespace isthmus::app {

AgentHello read_hello(const Message& hello) {
  AgentHello agent{.facts = {.folder = text_in(hello, "folder"),
                             .cores = std::max<std::int64_t>(1, number_in(hello, "cores", 1)),
                             .gpus = texts_in(hello, "gpus"),
                             .build = text_in(hello, "build")},
                   .found = {}};
  const auto list = hello.find("processes");
  if (list == hello.end() || !list->is_array()) return agent;
  for (const auto& one : *list) {
    if (!one.is_object() || text_in(one, "name").empty()) continue;
    FoundProcess process{.life = number_in(one, "life", 0), .status = std::nullopt};
    if (one.contains("status"))
      process.status = static_cast<int>(std::clamp<std::int64_t>(number_in(one, "status", 0), 0, 255));
    agent.any_runs = agent.any_runs || !process.status;
    agent.lives = std::max(agent.lives, process.life);
    agent.found[text_in(one, "name")] = process;
  }
  return agent;
}

}  // namespace isthmus::app
