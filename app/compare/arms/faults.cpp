#include "compare/arms/faults.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "isthmus/base/error.h"
#include "isthmus/base/text_file.h"

namespace isthmus::app {

namespace {

constexpr const char* forms =
    "'kill NAME at step N', 'leave NAME at step N' or 'suspend NAME at step N for 5s'";

[[noreturn]] void refuse(const std::string& text, const std::string& place) {
  config_error(fmt::format("{}: the fault is '{:.80}'; expected {}", place, text, std::string(forms)));
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// -1 if the process has ended meanwhile.
pid_t parent_of(const std::filesystem::path& process) {
  const auto stat =
      text_if_there(process / "stat");  // "PID (NAME) STATE PARENT ...": NAME may contain anything
  const auto end = stat.rfind(')');
  if (end == std::string::npos) return -1;
  std::istringstream rest(stat.substr(end + 1));
  std::string state;
  pid_t parent = -1;
  rest >> state >> parent;
  return parent;
}

std::vector<std::string> arguments_of(const std::filesystem::path& process) {
  std::vector<std::string> arguments;
  std::istringstream in(text_if_there(process / "cmdline"));
  for (std::string word; std::getline(in, word, '\0');) arguments.push_back(word);
  return arguments;
}

bool is_called(const std::vector<std::string>& arguments, const std::string& name) {
  if (arguments.size() > 1 && arguments[1] == "coordinator") return name == "coordinator";
  for (std::size_t i = 1; i + 1 < arguments.size(); ++i)
    if (arguments[i] == "--name") return arguments[i + 1] == name;
  return false;
}

struct FaultTime {
  config::Duration time;
  void serialize(config::Archive& ar) {
    ar({"for", &time, config::Scope::agreed, "time that a worker is suspended", 0.001, 86400});
  }
};

config::Duration time_of(const std::string& text, const std::string& place) {
  auto source = config::Source::from_text("", place);
  source.put({"for", {text}, false, false, place, {}});
  return config::read<FaultTime>(source).time;
}

int signal_of(Fault::What what) {
  switch (what) {
    case Fault::What::kill:
      return SIGKILL;
    case Fault::What::suspend:
      return SIGSTOP;
    case Fault::What::leave:
      return SIGTERM;
  }
  return 0;
}

}  // namespace

Fault parse_fault(const std::string& text, const std::string& place) {
  const auto words = words_of(text);
  const bool lasts = words.size() == 7 && words[0] == "suspend" && words[5] == "for";
  const bool is_fault = (words.size() == 5 && (words[0] == "kill" || words[0] == "leave")) || lasts;
  if (!is_fault || words[2] != "at" || words[3] != "step") refuse(text, place);
  const auto& step = words[4];
  if (step.empty() || step.size() > 12 || step.find_first_not_of("0123456789") != std::string::npos)
    refuse(text, place);
  Fault fault;
  fault.what = lasts ? Fault::What::suspend : words[0] == "kill" ? Fault::What::kill : Fault::What::leave;
  fault.worker = words[1];
  fault.step = std::stoull(step);
  fault.text = text;
  if (lasts) fault.time = time_of(words[6], place);
  return fault;
}

std::optional<pid_t> process_of(const std::string& name, pid_t launch) {
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const auto number = entry.path().filename().string();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    if (parent_of(entry.path()) == launch && is_called(arguments_of(entry.path()), name))
      return static_cast<pid_t>(std::stol(number));
  }
  return {};
}

std::vector<std::string> Saboteur::strike(std::uint64_t step, pid_t launch) {
  wake(launch);
  std::vector<std::string> said;
  std::erase_if(left_, [&](const Fault& fault) {
    if (fault.step > step) return false;
    // A worker that is just being restarted gets the signal at a later call.
    const auto pid = process_of(fault.worker, launch);
    if (!pid || ::kill(*pid, signal_of(fault.what)) != 0) return false;
    if (fault.what == Fault::What::suspend) {
      const std::chrono::duration<double> time(fault.time.seconds);
      suspended_.push_back({fault.worker, Clock::now() + std::chrono::duration_cast<Clock::duration>(time)});
    }
    said.push_back(fmt::format("{} (done at step {})", fault.text, step));
    return true;
  });
  return said;
}

void Saboteur::wake(pid_t launch) {
  std::erase_if(suspended_, [&](const Suspended& one) {
    if (Clock::now() < one.until) return false;
    if (const auto pid = process_of(one.worker, launch)) ::kill(*pid, SIGCONT);
    return true;
  });
}

}  // namespace isthmus::app
