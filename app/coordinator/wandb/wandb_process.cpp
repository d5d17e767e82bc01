#include "coordinator/wandb/wandb_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "isthmus/base/error.h"
#include "run/process/machine.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* program_name = "isthmus-wandb";
constexpr auto poll_every = std::chrono::milliseconds(100);
constexpr std::size_t max_lines = 50, max_line = 1000;

void close_if_open(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

/// The program's lines that may be shown, from its standard output.
class Lines {
 public:
  explicit Lines(const WandbProcess::Say& say) : say_(say) {}
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\n') {
        if (!line_.empty() && shown_++ < max_lines) say_("wandb: " + line_);
        line_.clear();
      } else if (line_.size() < max_line) {
        line_ += c;
      }
    }
  }

 private:
  const WandbProcess::Say& say_;
  std::string line_;
  std::size_t shown_ = 0;
};

/// Waits for output. False at its end.
bool read_some(int descriptor, Lines& lines) {
  pollfd readable{.fd = descriptor, .events = POLLIN, .revents = 0};
  if (poll(&readable, 1, static_cast<int>(poll_every.count())) <= 0) return true;
  std::array<char, 4096> bytes{};
  const auto count = read(descriptor, bytes.data(), bytes.size());
  if (count <= 0) return count < 0 && (errno == EINTR || errno == EAGAIN);
  lines.add({bytes.data(), static_cast<std::size_t>(count)});
  return true;
}

}  // namespace

fs::path wandb_program() {
  std::error_code none;
  const auto here = own_program().parent_path() / program_name;
  return fs::exists(here, none) ? here : fs::path(program_name);
}

WandbProcess::WandbProcess(Options options, Say say) : options_(std::move(options)), say_(std::move(say)) {
  std::array<int, 2> input{-1, -1}, output{-1, -1};
  try {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input.data()) != 0 ||
        pipe2(output.data(), O_CLOEXEC) != 0)
      throw Error(ErrorKind::data, std::strerror(errno));
    process_.emplace(Process::Options{.name = program_name,
                                      .command = {options_.program.string(), options_.folder.string()},
                                      .log = options_.folder / "wandb.log",
                                      .input = input[1],
                                      .output = output[1]});
    input_ = std::exchange(input[0], -1);
    output_ = std::exchange(output[0], -1);
  } catch (const Error& error) {
    say_(fmt::format("run.wandb: cannot start {}: {}; training continues without W&B", program_name,
                     error.what()));
  }
  for (auto* descriptor : {&input[0], &input[1], &output[0], &output[1]}) close_if_open(*descriptor);
  if (!process_) return;
  watcher_ = std::thread([this] { watch(); });
  send(options_.run);
}

WandbProcess::~WandbProcess() {
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    if (!process_->poll()) kill(-process_->pid(), SIGKILL);  // with its own children
  }
  watcher_.join();
  close_input();
  close_if_open(output_);
}

void WandbProcess::follow(const std::string& replica) {
  constexpr std::size_t max_followed = 1024;  // the program keeps a file open for each
  if (input_ < 0 || followed_.size() >= max_followed) return;
  if (followed_.insert(replica).second) send({{"follow", replica}});
}

void WandbProcess::finish(bool failed) {
  if (!watcher_.joinable()) return;
  send({{"finish", failed ? "failed" : "finished"}});
  close_input();
  const auto until = std::chrono::steady_clock::now() + options_.end;
  std::unique_lock lock(mutex_);
  ending_ = true;
  const auto is_over = [this] { return ended_; };
  constexpr auto unnoticed = std::chrono::seconds(5);
  if (changed_.wait_for(lock, std::min<std::chrono::milliseconds>(unnoticed, options_.end), is_over)) return;
  const auto limit = static_cast<double>(options_.end.count()) / 1000;
  if (options_.end > unnoticed) {
    lock.unlock();
    say_(fmt::format("waiting up to {:.0f} s for {} to send the rest to W&B", limit, program_name));
    lock.lock();
  }
  if (changed_.wait_until(lock, until, is_over)) return;
  if (!process_->poll()) kill(-process_->pid(), SIGKILL);
  lock.unlock();
  say_(
      fmt::format("{} had not sent all to W&B after {:.0f} s and was ended; the folder wandb in {} has the "
                  "rest, for `wandb sync`",
                  program_name, limit, options_.folder.string()));
}

/// A program that does not read loses messages rather than stopping the run.
void WandbProcess::send(const Json& message) {
  if (input_ < 0) return;
  const auto line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const auto sent = ::send(input_, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(line.size())) close_input();
}

void WandbProcess::close_input() { close_if_open(input_); }

void WandbProcess::watch() {
  Lines lines(say_);
  bool open = true;
  std::optional<int> status;
  while (!status) {
    if (open) {
      open = read_some(output_, lines);
    } else {
      std::this_thread::sleep_for(poll_every);
    }
    const std::lock_guard lock(mutex_);
    status = process_->poll();
  }
  // The rest of its output. Its own children may hold the pipe open.
  fcntl(output_, F_SETFL, O_NONBLOCK);
  std::array<char, 4096> bytes{};
  for (ssize_t count = 0; (count = read(output_, bytes.data(), bytes.size())) > 0;)
    lines.add({bytes.data(), static_cast<std::size_t>(count)});
  say_how_it_ended(*status);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

/// Status 0: the program has said itself why it cannot log.
void WandbProcess::say_how_it_ended(int status) {
  constexpr int not_found = 127;
  {
    const std::lock_guard lock(mutex_);
    if (status == 0 || (ending_ && status == 128 + SIGKILL)) return;
  }
  if (status == not_found)
    return say_(fmt::format(
        "run.wandb: {} was not found: it comes with the Python package isthmus; install that in the "
        "environment from which the coordinator is started. Training continues without W&B",
        program_name));
  say_(fmt::format("run.wandb: {} ended with status {}; {} has its output. Training continues without W&B",
                   program_name, status, (options_.folder / "wandb.log").string()));
}

}  // namespace isthmus::app
