#include "site.h"

#include <algorithm>
#include <random>

namespace isthmus {
namespace {

/// Sentences of a few words, regular enough that the loss falls within a few steps.
std::string corpus_text() {
  constexpr std::size_t bytes = 200'000;
  const Words words = {"stone", "river", "light", "small", "bridge", "carries", "the", "north",
                       "water", "over",  "under", "wind",  "of",     "and",     "a"};
  std::minstd_rand random(1);  // its numbers are fixed by the standard
  std::string text;
  while (text.size() < bytes) text += words[random() % words.size()] + (random() % 8 == 0 ? ".\n" : " ");
  return text;
}

constexpr std::string_view config_text = R"(
run: {name: tiny, out: OUT, steps: 40, eval_every: 10, eval_sequences: 16, sample_tokens: 20}
replicas: 2
device: cpu
model: {layers: 2, dim: 32, heads: 2}
data: {path: corpus.txt, seq_len: 32}
inner: {batch: 4, lr: 1e-2, warmup_steps: 5, precision: fp32}
trainer: {threads: 1}
outer: {num_fragments: 3, sync_every: 10, sync_delay: 2, codec: int4, warmup_steps: 10,
  optimizer: {momentum: 0.8, average_first: 0.1}}
network: {detect_timeout: 60s} # machines that test are busy
)";

}  // namespace

Site::Site() {
  write("corpus.txt", corpus_text());
  auto text = std::string(config_text);
  text.replace(text.find("OUT"), 3, (folder_ / "runs").string());
  write("tiny.yaml", text);
}

Site::~Site() {
  const auto left = processes();
  for (const auto& process : left) {
    ADD_FAILURE() << "still running at the end of the test: " << process.command;
    kill(process.pid, SIGKILL);
  }
}

Command Site::start(Words words) {
  words.insert(words.begin(), PROGRAM_UNDER_TEST);
  return {std::move(words), folder_ / ("command-" + std::to_string(++commands_) + ".log")};
}

Result Site::isthmus(Words words) { return start(std::move(words)).wait(); }

Words with_settings(Words words, const Words& settings) {
  for (const auto& setting : settings) {
    words.emplace_back("--set");
    words.push_back(setting);
  }
  return words;
}

Command Site::start_launch(const Words& settings) {
  return start(with_settings({"launch", config().string()}, settings));
}
Result Site::launch(const Words& settings) { return start_launch(settings).wait(); }
Result Site::resume(const Words& settings) {
  return isthmus(with_settings({"launch", "--resume", run().string()}, settings));
}

nlohmann::json Site::summary() const {
  const auto text = read_all(run() / "summary.json");
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    ADD_FAILURE() << (run() / "summary.json") << " is not a summary: '" << text << "'" << logs();
  return json;
}

std::string Site::hash() const {
  const auto json = summary();
  std::string hash;
  if (!json.contains("global_hash")) return hash;
  for (const auto& [name, value] : json["global_hash"].items()) {
    if (hash.empty()) hash = value.get<std::string>();
    EXPECT_EQ(hash, value.get<std::string>()) << "the hash of " << name;
  }
  EXPECT_EQ(hash.size(), 64U);
  return hash;
}

std::size_t Site::metric_lines(const std::string& replica) const {
  const auto text = read_all(run() / replica / "metrics.jsonl");
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

bool Site::has_checkpoint(const std::string& replica) const {
  std::error_code none;
  const std::filesystem::directory_iterator files(run() / replica / "checkpoints", none);
  return std::any_of(begin(files), end(files),
                     [](const auto& file) { return file.path().extension() == ".ckpt"; });
}

pid_t Site::process(const std::string& text) const {
  std::vector<RunningProcess> found;
  for (const auto& process : processes()) {
    if (process.command.find(text) != std::string::npos) found.push_back(process);
  }
  EXPECT_EQ(found.size(), 1U) << "processes with '" << text << "processes with '";
  return found.empty() ? nobody : found.front().pid;
}

std::string Site::logs() const {
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (entry.path().extension() != ".log") continue;
    const auto log = read_all(entry.path());
    text += "\n--- " + entry.path().filename().string() + "\n" +
            log.substr(log.size() > 2000 ? log.size() - 2000 : 0);
  }
  return text;
}

const Outcome& reference() {
  static const Outcome outcome = [] {
    Site site;
    const auto result = site.launch();
    EXPECT_EQ(result.status, 0) << result.report() << site.logs();
    return Outcome{site.hash(), site.summary()["evaluations"]};
  }();
  return outcome;
}

}  // namespace isthmus
