#include "cli/live/top_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "cli/live/ask.h"
#include "cli/live/top_screen.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "run/output/json_output.h"
#include "run/output/terminal.h"
#include "run/process/signals.h"

namespace isthmus::app {
namespace {

using Clock = std::chrono::steady_clock;

class Top {
 public:
  explicit Top(const OperatorOptions& options) : run_(options) {}

  /// Asks for the status. Throws Error(network) if the coordinator does not answer.
  nlohmann::json look() {
    outer_sync::protocol::Command command;
    command.verb = "status";
    auto status = run_.ask(command, std::chrono::seconds(5));
    if (status.contains("step") && status["step"].is_number_unsigned())
      pace_.look(status["step"], std::chrono::duration<double>(Clock::now() - begin_).count());
    return status;
  }

  void print(const nlohmann::json& status) const {
    constexpr std::size_t columns = 80, rows = 4096;
    for (const auto& line : top_screen(status, pace_, columns, rows)) fmt::print("{}\n", line);
  }

  /// Shows the status until the user presses q or Ctrl-C. Returns the exit status.
  int watch() {
    std::atomic<int> signalled = 0;
    const SignalThread signals([&](int signal, int) { signalled = signal; });
    auto status = look();  // fails if there is no answer; later failures are shown on the screen
    Terminal terminal;
    std::string problem;
    auto looked = Clock::now();
    answered_ = looked;
    std::optional<Terminal::Size> drawn;
    for (;;) {
      const auto size = Terminal::size();
      if (Clock::now() - looked > std::chrono::seconds(1)) {
        look_again(status, problem);
        looked = Clock::now();
        drawn.reset();
      }
      if (drawn != size) draw(terminal, status, problem, size);
      drawn = size;
      const char key = terminal.key(std::chrono::milliseconds(100));
      if (signalled != 0) return 128 + signalled;
      if (key == 'q' || key == 'Q' || key == 3 || key == 4) return 0;
    }
  }

 private:
  /// Keeps the last status if the coordinator does not answer: it may be away for a while.
  void look_again(nlohmann::json& status, std::string& problem) {
    try {
      status = look();
      problem.clear();
      answered_ = Clock::now();
    } catch (const Error& error) {
      problem = error.what();
    }
  }

  void draw(Terminal& terminal, const nlohmann::json& status, const std::string& problem,
            Terminal::Size size) const {
    const std::size_t above = problem.empty() ? 0 : 1, below = 1;
    const auto rows = size.rows > above + below ? size.rows - above - below : 1;
    auto lines = top_screen(status, pace_, size.columns, rows);
    lines.resize(rows);
    const auto table =
        std::ranges::find_if(lines, [](const auto& line) { return line.starts_with("member"); });
    auto marked = static_cast<std::size_t>(table - lines.begin());
    if (!problem.empty()) {
      const auto silent = std::chrono::duration<double>(Clock::now() - answered_).count();
      lines.insert(lines.begin(),
                   printable_ascii(
                       fmt::format("NO ANSWER for {:.0f} s; below is the last status: {}", silent, problem),
                       size.columns));
      marked = 0;
    }
    lines.push_back(printable_ascii("q quits", size.columns));
    terminal.draw(lines, marked);
  }

  LiveRun run_;
  Pace pace_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point answered_;
};

struct TopFlags {
  OperatorOptions run;
  bool once = false, json = false;
};

int run_top_verb(const TopFlags& flags) {
  Top top(flags.run);
  JsonOutput json(flags.json);
  if (!flags.once && !flags.json && Terminal::there()) return top.watch();
  const auto status = top.look();
  if (flags.json)
    json.print(status);
  else
    top.print(status);
  return 0;
}

}  // namespace

void add_top(CommandLine& commands) {
  const auto flags = std::make_shared<TopFlags>();
  auto* verb =
      commands.app().add_subcommand("top", "show the live status of a run: members, rates, problems");
  add_config_file(*verb, flags->run.config, operators_config);
  add_operator(*verb, flags->run);
  verb->add_flag("--once", flags->once,
                 "print one snapshot as text; the default when standard output is not a terminal");
  add_json(*verb, flags->json);
  add_security(*verb, flags->run);
  verb->footer("Example: isthmus top two_sites.yaml");
  commands.on(*verb, [flags] { return run_top_verb(*flags); });
}

}  // namespace isthmus::app
