#include "launch/sites/site_models.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "launch/agent/model_messages.h"
#include "launch/processes/pipe.h"
#include "launch/sites/ssh_command.h"
#include "run/process/names.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

/// Set-up lines of a site may take long, and a site with many checkpoints reads the head of each.
constexpr auto connect_limit = 180s;
/// ssh itself notices a dead connection earlier.
constexpr auto piece_limit = 60s;
constexpr int unknown_status = 255;
constexpr std::size_t max_greeting_lines = 1000;

std::vector<std::string> give_command(const Site& site, const std::string& run) {
  return ssh_to_run(site.launch,
                    program_script(site.launch, {"give-model", "--folder", path_word(site.launch.folder),
                                                 "--run", shell_word(run), "--site", shell_word(site.name)}));
}

bool is_hex(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Entries that cannot be right are left out.
std::vector<SiteCheckpoint> offered_checkpoints(const Message& offer) {
  std::vector<SiteCheckpoint> all;
  const auto list = offer.find("checkpoints");
  if (list == offer.end() || !list->is_array()) return all;
  for (const auto& one : *list) {
    if (!one.is_object()) continue;
    SiteCheckpoint checkpoint{.worker = text_in(one, "worker"), .agreed = text_in(one, "agreed")};
    const auto step = number_in(one, "step", -1);
    if (step < 0 || !is_hex(checkpoint.agreed) || !is_plain_name(checkpoint.worker)) continue;
    checkpoint.step = static_cast<std::uint64_t>(step);
    all.push_back(std::move(checkpoint));
  }
  return all;
}

}  // namespace

SiteModels::SiteModels(const Site& site, const std::string& run) : site_(site) {
  Pipe in, out, err;
  ssh_ = std::make_unique<Process>(Process::Options{.name = "ssh",
                                                    .command = give_command(site, run),
                                                    .log = {},
                                                    .input = in.reader(),
                                                    .output = out.writer(),
                                                    .errors = err.writer()});
  input_ = in.take_writer();
  output_ = out.take_reader();
  errors_ = err.take_reader();
}

/// Leaves no process at the site: that process ends when its input does, and ssh after it.
SiteModels::~SiteModels() {
  for (const int end : {input_, output_, errors_}) {
    if (end >= 0) close(end);
  }
  const auto until = Clock::now() + 5s;
  while (ssh_->running() && Clock::now() < until) poll(nullptr, 0, 20);
}

void SiteModels::connect() {
  Message offer;
  for (std::size_t lines = 0; !offer.contains("gives"); ++lines) {
    if (lines > max_greeting_lines) fail("it does not answer as isthmus does", false);
    offer = answer(connect_limit);
  }
  if (number_in(offer, "gives", 0) != model_protocol)
    fail(fmt::format("its isthmus is another version ({}); use the same build at all sites",
                     printable(text_in(offer, "build"))),
         false);
  checkpoints_ = offered_checkpoints(offer);
  tokenizer_ = text_in(offer, "tokenizer");
  if (!is_plain_name(tokenizer_)) tokenizer_.clear();
}

void SiteModels::fetch(const SiteCheckpoint& checkpoint, std::uint64_t most, const Take& take) {
  say({{"give", "checkpoint"}, {"worker", checkpoint.worker}, {"step", checkpoint.step}});
  receive_file(most, take);
}

std::string SiteModels::fetch_tokenizer() {
  std::string text;
  say({{"give", "tokenizer"}});
  receive_file(max_tokenizer_bytes, [&](std::span<const std::byte> piece, auto, auto) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return text;
}

void SiteModels::receive_file(std::uint64_t most, const Take& take) {
  Message announced;
  while (!announced.contains("bytes")) announced = answer(connect_limit);
  const auto number = number_in(announced, "bytes", -1);
  const auto all = static_cast<std::uint64_t>(std::max<std::int64_t>(0, number));
  if (number < 0 || all > most)
    fail(fmt::format("it announces a file of {} bytes; expected at most {}", number, most), false);
  for (std::uint64_t done = 0; done < all;) {
    if (received_.empty()) receive(piece_limit);
    const auto n = std::min<std::uint64_t>(received_.size(), all - done);
    done += n;
    take(std::as_bytes(std::span(received_)).first(n), done, all);
    received_.erase(0, n);
  }
}

/// Orders are short, so the pipe takes them at once.
void SiteModels::say(const Message& message) {
  sigset_t pipe;  // the result of write shows when ssh has ended
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  const auto line = line_of(message);
  if (write(input_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) fail_at_end();
}

/// The next message. Other lines, like a login greeting, count as empty messages.
Message SiteModels::answer(std::chrono::seconds limit) {
  std::size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    if (received_.size() > max_message_bytes) fail("it sent a line of more than 4 MiB", false);
    receive(limit);
  }
  const auto message = message_of(std::string_view(received_).substr(0, end));
  received_.erase(0, end + 1);
  if (!message) return Message::object();
  if (const auto why = text_in(*message, "failed"); !why.empty()) fail(printable(why), false);
  return *message;
}

/// Blocks until there are more bytes.
void SiteModels::receive(std::chrono::seconds limit) {
  const auto until = Clock::now() + limit;
  char bytes[1 << 16];
  while (Clock::now() < until) {
    pollfd waiting[] = {{output_, POLLIN, 0}, {errors_, POLLIN, 0}};
    poll(waiting, 2, 200);
    take_errors();
    const auto n = read(output_, bytes, sizeof bytes);
    if (n > 0) return static_cast<void>(received_.append(bytes, static_cast<std::size_t>(n)));
    if (n == 0) fail_at_end();
    if (errno != EAGAIN && errno != EINTR) fail_at_end();
  }
  fail(fmt::format("nothing arrived for {} s", limit.count()), true);
}

void SiteModels::take_errors() {
  char bytes[4096];
  while (errors_ >= 0) {
    const auto n = read(errors_, bytes, sizeof bytes);
    if (n == 0) close(std::exchange(errors_, -1));
    if (n <= 0) break;
    error_lines_.add({bytes, static_cast<std::size_t>(n)});
  }
  while (const auto line = error_lines_.next()) {
    if (!line->empty()) last_error_ = printable(*line);
  }
  if (error_lines_.pending() > sizeof bytes) static_cast<void>(error_lines_.rest());
}

void SiteModels::fail_at_end() {
  const auto until = Clock::now() + 5s;  // the reason comes on standard error, and ssh's status after it
  while (ssh_->running() && Clock::now() < until) {
    pollfd waiting{errors_, POLLIN, 0};
    poll(&waiting, 1, 50);
    take_errors();
  }
  take_errors();
  const int status = ssh_->poll().value_or(unknown_status);
  if (status == exit_status(ErrorKind::config))
    fail("its isthmus does not know `give-model`; use the same build at all sites", false);
  fail(last_error_.empty() ? std::string("the connection ended") : last_error_, status >= 128);
}

void SiteModels::fail(const std::string& why, bool network) const {
  throw Error(network ? ErrorKind::network : ErrorKind::data,
              fmt::format("{} ({}): {}", site_.name, site_.launch.ssh, why));
}

}  // namespace isthmus::app
