#include "wan_lab.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "paths.h"

extern char** environ;

namespace isthmus::wan_lab {
namespace {

struct Pipe {
  int read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) < 0) throw std::system_error(errno, std::generic_category(), "pipe");
  return {ends[0], ends[1]};
}

pid_t spawn(const std::vector<std::string>& command, int input, int output) {
  std::vector<char*> words;
  for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  pid_t pid;
  const int error = posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error) throw std::system_error(error, std::generic_category(), command[0]);
  return pid;
}

std::vector<std::string> lab_command(std::vector<std::string> words) {
  words.insert(words.begin(), std::string(source_folder) + "/tests/wan_lab/lab");
  return words;
}

// The command of `lab with` reads until its standard input is closed, and the lab ends with it.
std::vector<std::string> keeper(const std::string& name, const std::vector<std::string>& options) {
  auto words = lab_command(
      {"with", "--name", name, "--forwarder", std::string(build_folder) + "/tests/wan_lab/wan_forwarder"});
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", "echo up; exec cat"});
  return words;
}

int number_of(const std::string& status) {
  constexpr std::string_view key = "\"number\": ";
  return std::stoi(status.substr(status.find(key) + key.size()));
}

}  // namespace

Process::Process(const std::vector<std::string>& command) : command_(command) {
  const auto input = make_pipe(), output = make_pipe();
  input_.reset(fdopen(input.write, "w"));
  output_.reset(fdopen(output.read, "r"));
  pid_ = spawn(command, input.read, output.write);
  close(input.read);
  close(output.write);
}

Process::~Process() {
  if (!input_) return;  // already waited for, or moved from
  kill(pid_, SIGTERM);
  wait();
}

std::string Process::line() {
  std::string text;
  for (int c; (c = std::fgetc(output_.get())) != EOF && c != '\n';) text += static_cast<char>(c);
  return text;
}

std::string Process::finish() {
  std::string text;
  for (int c; (c = std::fgetc(output_.get())) != EOF;) text += static_cast<char>(c);
  if (const int code = wait()) {
    std::string words;
    for (const auto& word : command_) words += word + ' ';
    throw std::runtime_error(fmt::format("{}: exit status {}", words, code));
  }
  return text;
}

int Process::wait() {
  input_.reset();
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

WanLab::WanLab(const std::vector<std::string>& options)
    : name_(fmt::format("program-{}", getpid())), keeper_(keeper(name_, options)) {
  if (keeper_.line() != "up") {
    const int code = keeper_.wait();
    if (code == no_lab_here) throw NoLab("no lab on this machine; the reason is above");
    throw std::runtime_error(fmt::format("the lab did not come up: exit status {}", code));
  }
  number_ = number_of(lab({"status", "--json"}));
}

std::string WanLab::address(int site) const { return fmt::format("10.77.{}.{}", number_, site); }

Process WanLab::start(int site, const std::vector<std::string>& command) const {
  auto words = lab_command({"run", "--name", name_, fmt::format("site-{}", site)});
  words.insert(words.end(), command.begin(), command.end());
  return Process(words);
}

std::string WanLab::lab(const std::vector<std::string>& words) const {
  auto command = words;
  command.insert(command.begin() + 1, {"--name", name_});
  return Process(lab_command(command)).finish();
}

int run_program(const char* name, const std::function<int()>& run) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run();
  } catch (const NoLab& why) {
    fmt::print(stderr, "{}: {}\n", name, why.what());
    return no_lab_here;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace isthmus::wan_lab
