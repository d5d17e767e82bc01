#include "cli/top_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "cli/top_screen.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/net/coordinator/control_client.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"
#include "run/output/terminal.h"
#include "run/process/signals.h"

namespace isthmus::app {
namespace {

using Clock = std::chrono::steady_clock;

class Top {
 public:
  Top(Experiment experiment, bool knows_run, std::string name)
      : experiment_(std::move(experiment)), knows_run_(knows_run), name_(std::move(name)) {
    take_identity(name_, experiment_);
  }

  /// Asks for the status. Throws Error(network) if the coordinator does not answer.
  nlohmann::json look() {
    outer_sync::protocol::Command command;
    if (knows_run_) command.run = experiment_.run.name;
    command.by = name_;
    command.verb = "status";
    constexpr auto limit = std::chrono::seconds(5);
    const auto answer = outer_sync::ask(experiment_.network, command, limit);
    if (!answer.problem.empty()) throw Error(ErrorKind::config, answer.problem);
    auto status = nlohmann::json::parse(answer.text, nullptr, false);
    if (!status.is_object())
      throw Error(ErrorKind::data, "unexpected answer from the coordinator: not a JSON object");
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

  Experiment experiment_;
  bool knows_run_;
  std::string name_;
  Pace pace_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point answered_;
};

int run_top(Top top, bool once, bool as_json) {
  JsonOutput json(as_json);
  if (!once && !as_json && Terminal::there()) return top.watch();
  const auto status = top.look();
  if (as_json)
    json.print(status);
  else
    top.print(status);
  return 0;
}

}  // namespace

void add_top(CommandLine& commands, TopRequest& request) {
  auto& flags = commands.flags();
  auto* verb =
      commands.app().add_subcommand("top", "show the live status of a run: members, rates, problems");
  verb->add_option("--coordinator", flags.coordinator,
                   "HOST:PORT of the coordinator; overrides network.coordinator");
  verb->add_option("--config", flags.config,
                   "the run's experiment in YAML, for its address and certificates");
  verb->add_option("--name", request.name, "name of your certificate: operator, or operator-NAME")
      ->capture_default_str();
  verb->add_flag("--once", request.once,
                 "print one snapshot as text; the default when standard output is not a terminal");
  commands.add_json(*verb);
  commands.add_security(*verb);
  verb->footer("Example: isthmus top --coordinator eu.example:7000 --certs certs/my");
  commands.on(*verb, [&commands, &request, &flags] {
    if (flags.config.empty() && flags.coordinator.empty())
      throw Error(ErrorKind::config,
                  "the coordinator's address is not known; pass --coordinator or --config");
    return run_top(Top(commands.load(std::nullopt, Purpose::benchmark), !flags.config.empty(), request.name),
                   request.once, flags.json);
  });
}

}  // namespace isthmus::app
