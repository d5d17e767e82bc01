#include "coordinator/events/event_hook.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace isthmus::app {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto look_every = std::chrono::milliseconds(20);

/// A file in memory with this text, to be read from its beginning; -1 if there is no memory.
int file_in_memory(const std::string& text) {
  const int file = memfd_create("event", MFD_CLOEXEC);
  if (file < 0) return -1;
  const bool whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (whole && lseek(file, 0, SEEK_SET) == 0) return file;
  close(file);
  return -1;
}

/// Starts a command in its own process group, with only the first three descriptors. On failure returns
/// nullopt and sets errno.
std::optional<pid_t> start(const std::vector<std::string>& words, int input) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t ignored;  // SignalThread ignores it
  sigemptyset(&ignored);
  sigaddset(&ignored, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &ignored);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = -1;
  errno = posix_spawn(&child, "/bin/sh", &files, &attributes, arguments.data(), environ);
  const int error = errno;
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  errno = error;
  return error == 0 ? std::optional(child) : std::nullopt;
}

}  // namespace

EventHook::EventHook(std::string command, Say say, std::chrono::milliseconds limit)
    : command_(std::move(command)), say_(std::move(say)), limit_(limit) {
  if (command_.empty()) return;
  // A signal goes to any thread that does not block it, and this thread may start before the SignalThread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

EventHook::~EventHook() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    end_by_ = Clock::now() + limit_;
  }
  changed_.notify_all();
  thread_.join();
}

void EventHook::fire(const std::string& kind, nlohmann::ordered_json event) {
  if (command_.empty()) return;
  nlohmann::ordered_json whole{{"event", kind}};
  if (event.is_object()) whole.update(event);
  auto json = whole.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() < max_waiting) {
      waiting_.push_back({kind, std::move(json)});
      changed_.notify_all();
      return;
    }
  }
  say_(fmt::format("run.on_event: {} events are waiting; dropped the event {}", max_waiting, kind));
}

void EventHook::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty() || Clock::now() >= end_by_) return;
    const auto event = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    run(event, Clock::now() + limit_);
    lock.lock();
  }
}

void EventHook::run(const Event& event, Clock::time_point until) const {
  const auto complain = [&](const std::string& what) {
    say_(fmt::format("run.on_event: the command for {} {}", event.kind, what));
  };
  const int input = file_in_memory(event.json + "\n");
  if (input < 0) return complain(std::string("cannot get the event: ") + std::strerror(errno));
  constexpr std::size_t max_argument = 1 << 16;  // the system accepts arguments of up to 128 KiB
  const auto argument = event.json.size() <= max_argument
                            ? event.json
                            : nlohmann::json{{"event", event.kind}, {"too_long", true}}.dump();
  const auto child = start({"sh", "-c", command_, "on_event", event.kind, argument}, input);
  const int error = errno;
  close(input);
  if (!child) return complain(std::string("cannot be started: ") + std::strerror(error));
  int status = 0;
  bool late = false;
  while (waitpid(*child, &status, WNOHANG) == 0) {
    if (!late && Clock::now() >= until) {
      late = true;
      kill(-*child, SIGKILL);
    }
    std::this_thread::sleep_for(look_every);
  }
  if (late)
    return complain(
        fmt::format("took longer than {} s and was killed", static_cast<double>(limit_.count()) / 1000));
  if (WIFSIGNALED(status)) return complain(fmt::format("was killed by signal {}", WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) complain(fmt::format("ended with status {}", WEXITSTATUS(status)));
}

}  // namespace isthmus::app
