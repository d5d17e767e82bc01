#include "command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "temporary_folder.h"

namespace isthmus {
namespace {

constexpr auto ask_every = 10ms;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Command line of a process; empty if it has ended. If it ends during the read, a stream buffer throws,
/// while a stream sets its state.
std::string command_line(const std::filesystem::path& process) {
  std::ifstream file(process / "cmdline");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

[[noreturn]] void become(const std::vector<char*>& words, int log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(words[0], words.data());
  _exit(127);
}

std::string last_lines(const std::string& text, int count) {
  auto begin = text.size();
  while (begin > 0 && count >= 0) {
    begin = text.rfind('\n', begin - 1);
    if (begin == std::string::npos) return text;
    --count;
  }
  return text.substr(begin);
}

}  // namespace

std::string Result::report() const {
  return "\ncommand: " + command + "\nexit status: " + std::to_string(status) + "\nthe end of its output:\n" +
         last_lines(output, 30);
}

Command::Command(std::vector<std::string> words, std::filesystem::path log)
    : words_(joined(words)), log_(std::move(log)) {
  const int file = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = vfork();  // `fork` would copy the page tables of libtorch, which takes milliseconds
  if (pid_ == 0) become(arguments, file);
  close(file);
  if (pid_ < 0) throw std::runtime_error("cannot start " + words_);
}

Command::Command(Command&& other) noexcept
    : words_(std::move(other.words_)),
      log_(std::move(other.log_)),
      pid_(std::exchange(other.pid_, -1)),
      status_(other.status_) {}

Command::~Command() {
  if (!running()) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool Command::running() {
  int status = 0;
  if (!status_ && pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return !status_ && pid_ > 0;
}

void Command::signal(int number) const { kill(pid_, number); }

std::string Command::output() const { return read_all(log_); }

bool Command::says(const std::string& words) const {
  return eventually([&] {
    const auto text = output();
    const auto at = text.find(words);
    return at != std::string::npos && text.find('\n', at) != std::string::npos;
  });
}

std::string Command::coordinator_address() const {
  const std::string phrase = "listens at port ";
  if (!says(phrase)) return {};
  const auto text = output();
  return "127.0.0.1:" + std::to_string(std::stoi(text.substr(text.find(phrase) + phrase.size())));
}

Result Command::wait(std::chrono::milliseconds limit) {
  if (!eventually([&] { return !running(); }, limit)) {
    ADD_FAILURE() << "this did not end within " << limit.count() / 1000.0 << " s and was killed: " << words_;
    signal(SIGKILL);
    while (running()) std::this_thread::sleep_for(ask_every);
  }
  return {*status_, output(), words_};
}

Result run_command(std::vector<std::string> words, const std::filesystem::path& log) {
  return Command(std::move(words), log).wait();
}

bool eventually(const std::function<bool()>& ready, std::chrono::milliseconds limit) {
  const auto give_up = std::chrono::steady_clock::now() + limit;
  while (!ready()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(ask_every);
  }
  return true;
}

std::vector<RunningProcess> processes_with(const std::string& text) {
  std::vector<RunningProcess> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    auto command = command_line(entry.path());
    std::replace(command.begin(), command.end(), '\0', ' ');
    if (command.find(text) != std::string::npos) found.push_back({std::stoi(name), command});
  }
  return found;
}

}  // namespace isthmus
