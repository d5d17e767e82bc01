#include "launch/agent/model_giver.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/text_file.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "launch/agent/agent_messages.h"
#include "launch/agent/model_messages.h"
#include "run/experiment/experiment.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

void write_out(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(ErrorKind::network, "the connection has ended");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void send_message(const Message& message) {
  const auto line = line_of(message);
  write_out(std::as_bytes(std::span(line)));
}

/// Files with a damaged header are left out.
void add_checkpoints(Message& list, const fs::path& replica_folder) {
  const auto folder = replica_folder / "checkpoints";
  auto steps = trainer::checkpoint_steps(folder, 0);
  std::ranges::reverse(steps);
  steps.resize(std::min(steps.size(), max_offered));
  for (const auto step : steps) {
    try {
      const auto agreed =
          trainer::section_digest(trainer::checkpoint_file(folder, step, 0), trainer::agreed_section);
      if (!agreed) continue;
      list.push_back(
          {{"worker", replica_folder.filename().string()}, {"step", step}, {"agreed", agreed->hex()}});
    } catch (const Error&) {
      continue;
    }
  }
}

class Giver {
 public:
  explicit Giver(const GiveRequest& request)
      : run_(request.folder / request.run), build_(request.build), tokenizer_(tokenizer_of(request.site)) {}

  void run() {
    send_message(offer());
    LineBuffer input;
    char bytes[4096];
    for (;;) {
      const auto n = read(STDIN_FILENO, bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      input.add({bytes, static_cast<std::size_t>(n)});
      while (const auto line = input.next()) {
        if (const auto message = message_of(*line)) give(*message);
      }
      if (input.pending() > max_message_bytes) return;
    }
  }

 private:
  /// The file that the site's workers use; empty if they use none.
  [[nodiscard]] fs::path tokenizer_of(const std::string& site) const {
    try {
      const auto config = run_ / (site + ".yaml");
      const auto& tokenizer = load_experiment(config, {}, std::nullopt, Purpose::inference).data.tokenizer;
      return fs::is_regular_file(tokenizer) ? fs::path(tokenizer) : fs::path();
    } catch (const std::exception&) {  // without it the checkpoints can still be fetched
      return {};
    }
  }

  [[nodiscard]] Message offer() const {
    Message list = Message::array();
    std::error_code no_folder;
    for (const auto& entry : fs::directory_iterator(run_, no_folder)) add_checkpoints(list, entry.path());
    return {{"gives", model_protocol},
            {"build", build_},
            {"checkpoints", list},
            {"tokenizer", tokenizer_.filename().string()}};
  }

  void give(const Message& order) {
    const auto what = text_in(order, "give");
    try {
      if (what == "checkpoint") give_checkpoint(order);
      if (what == "tokenizer") give_tokenizer();
    } catch (const Error& error) {
      if (announced_) throw;  // the fetcher expects bytes of the file, and notices the end of the stream
      send_message({{"failed", error.what()}});
    }
    announced_ = false;
  }

  void announce(std::uint64_t bytes) {
    send_message({{"bytes", bytes}});
    announced_ = true;
  }

  void give_checkpoint(const Message& order) {
    const auto worker = text_in(order, "worker");
    check_name("worker", worker);
    const auto step = static_cast<std::uint64_t>(std::max<std::int64_t>(0, number_in(order, "step", 0)));
    const std::vector<std::string> needed = {trainer::agreed_section, "config"};
    trainer::copy_sections(trainer::checkpoint_file(run_ / worker / "checkpoints", step, 0), needed,
                           {.length = [this](std::uint64_t bytes) { announce(bytes); }, .bytes = write_out});
  }

  void give_tokenizer() {
    if (tokenizer_.empty()) data_error("the site has no tokenizer file");
    const auto text = read_text(tokenizer_, max_tokenizer_bytes);
    announce(text.size());
    write_out(std::as_bytes(std::span(text)));
  }

  fs::path run_;
  std::string build_;
  fs::path tokenizer_;
  bool announced_ = false;  ///< the fetcher expects bytes of a file
};

}  // namespace

int run_give_model(const GiveRequest& request) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    check_name("--run", request.run);
    check_name("--site", request.site);
    Giver(request).run();
    return 0;
  } catch (const std::exception& error) {
    const auto line = line_of({{"failed", error.what()}});
    static_cast<void>(!write(STDOUT_FILENO, line.data(), line.size()));
    return exit_status(ErrorKind::data);
  }
}

}  // namespace isthmus::app
