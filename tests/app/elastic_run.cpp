#include "elastic_run.h"

#include <csignal>
#include <sstream>

namespace isthmus {

ElasticRun::ElasticRun(Words settings) : settings_(std::move(settings)) {}

ElasticRun::~ElasticRun() {
  workers_.clear();
  coordinator_.reset();
}

void ElasticRun::resume(const Words& settings) {
  settings_.insert(settings_.end(), settings.begin(), settings.end());
  resume_ = true;
  workers_.clear();
  start({});
}

void ElasticRun::start(const Words& workers) {
  start_coordinator("127.0.0.1:0", {});
  for (const auto& worker : workers) add(worker);
}

void ElasticRun::start_coordinator(const std::string& listen, const Words& flags) {
  Words words = {"coordinator", "--config", site_.config().string(), "--listen", listen};
  if (resume_) words.emplace_back("--resume");
  words.insert(words.end(), flags.begin(), flags.end());
  coordinator_ = std::make_unique<Command>(site_.start(with_settings(std::move(words), settings_)));
  address_ = coordinator_->coordinator_address();
  ASSERT_FALSE(address_.empty()) << logs();
}

void ElasticRun::kill_coordinator() {
  coordinator_->signal(SIGKILL);
  static_cast<void>(coordinator_->wait());
}

void ElasticRun::restart_coordinator(const Words& flags) { start_coordinator(address_, flags); }

bool ElasticRun::coordinator_says(const std::string& words) const { return coordinator_->says(words); }

void ElasticRun::add(const std::string& worker, const Words& flags) {
  Words words = {"worker",        "--quiet", "--config", site_.config().string(),
                 "--coordinator", address_,  "--name",   worker};
  if (resume_) words.emplace_back("--resume");
  words = with_settings(std::move(words), settings_);
  words.insert(words.end(), flags.begin(), flags.end());  // last, so that they take precedence
  workers_[worker] = std::make_unique<Command>(site_.start(std::move(words)));
}

void ElasticRun::add_by(const std::string& worker, Words command) {
  workers_[worker] = std::make_unique<Command>(site_.start(std::move(command)));
}

void ElasticRun::kill(const std::string& worker) {
  workers_.at(worker)->signal(SIGKILL);
  static_cast<void>(workers_.at(worker)->wait());
  workers_.erase(worker);
}

Result ElasticRun::end_of(const std::string& worker, std::chrono::milliseconds limit) {
  auto result = workers_.at(worker)->wait(limit);
  workers_.erase(worker);
  return result;
}

void ElasticRun::stop() {
  coordinator_->signal(SIGINT);
  EXPECT_EQ(coordinator_->wait().status, 130) << logs();
  for (auto& [name, worker] : workers_) EXPECT_EQ(worker->wait().status, 0) << name << logs();
}

void ElasticRun::finish() {
  EXPECT_EQ(coordinator_->wait().status, 0) << logs();
  for (auto& [name, worker] : workers_) EXPECT_EQ(worker->wait().status, 0) << name << logs();
}

bool ElasticRun::reaches(const std::string& worker, std::uint64_t step) const {
  return eventually([&] {
           const auto lines = metrics(worker);
           return !workers_.at(worker)->running() || std::ranges::any_of(lines, [&](const auto& line) {
             return line.contains("loss") && line["step"] >= step;
           });
         }) &&
         workers_.at(worker)->running();
}

std::optional<std::uint64_t> ElasticRun::joined_at(const std::string& worker) const {
  std::optional<std::uint64_t> step;
  const bool made_a_step = eventually([&] {
    const auto lines = metrics(worker);
    for (const auto& line : lines) {
      if (line.value("event", "") == "joined") step = line["step"].template get<std::uint64_t>();
    }
    return !workers_.at(worker)->running() || (step && lines.back().contains("loss"));
  });
  return made_a_step ? step : std::nullopt;
}

double ElasticRun::sent(const std::string& worker) const {
  double bytes = 0;
  for (const auto& line : metrics(worker)) bytes = line.value("bytes_sent", bytes);
  return bytes;
}

std::vector<nlohmann::json> ElasticRun::metrics(const std::string& worker) const {
  std::istringstream text(read_all(site_.run() / worker / "metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) lines.push_back(std::move(json));  // the last line may be half written
  }
  return lines;
}

}  // namespace isthmus
