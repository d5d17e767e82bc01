// A coordinator and workers, started by hand as at two sites, and strangers that connect to them.

#include <algorithm>
#include <sstream>

#include "site.h"
#include "socket.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// The number after `words` in the text; 0 if its line is not complete yet.
std::uint16_t port_after(const std::string& text, const std::string& words) {
  const auto at = text.find(words);
  if (at == std::string::npos || text.find('\n', at) == std::string::npos) return 0;
  return static_cast<std::uint16_t>(std::stoi(text.substr(at + words.size())));
}

class ByHand : public ::testing::Test {
 protected:
  /// Starts the coordinator first, on a port that the system chooses, as `launch` does.
  void start_coordinator(const Words& settings = {}) {
    coordinator.emplace(site.start(with_settings(
        {"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:0"}, settings)));
    ASSERT_TRUE(wait_for("listens at port ")) << site.logs();
    port = port_after(coordinator->output(), "listens at port ");
  }
  Command worker(const std::string& name, const Words& settings = {}) {
    return site.start(
        with_settings({"worker", "--config", site.config().string(), "--coordinator",
                       "127.0.0.1:" + std::to_string(port), "--name", name, "--listen", "127.0.0.1:0"},
                      settings));
  }
  /// Blocks until the coordinator has printed a whole line with `words`.
  bool wait_for(const std::string& words) {
    return eventually([&] {
      const auto text = coordinator->output();
      const auto at = text.find(words);
      return at != std::string::npos && text.find('\n', at) != std::string::npos;
    });
  }
  void expect_reference(Command& first, Command& second) {
    for (auto* command : {&*coordinator, &first, &second}) {
      const auto result = command->wait();
      ASSERT_EQ(result.status, 0) << result.report() << site.logs();
    }
    EXPECT_EQ(site.hash(), reference().hash);
    EXPECT_EQ(site.summary()["evaluations"], reference().evaluations);
  }

  Site site;
  std::optional<Command> coordinator;
  std::uint16_t port = 0;
};

TEST_F(ByHand, TwoSitesGiveWhatLaunchGives) {
  start_coordinator();
  auto us = worker("us-1");  // members are ordered by name, not by arrival
  auto eu = worker("eu-1");
  expect_reference(eu, us);
  EXPECT_THAT(us.output(), HasSubstr("us-1: member 2 of 2"));
}

TEST_F(ByHand, WithCertificatesItIsTheSameRunAndStrangersStayOut) {
  const auto certs = (site / "certs").string();
  for (const Words& words : {Words{"init", "tiny"},
                             {"issue", "tiny", "coordinator"},
                             {"issue", "tiny", "eu-1"},
                             {"issue", "tiny", "us-1"}}) {
    auto command = Words{"certs"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--dir", certs});
    const auto result = site.isthmus(command);
    ASSERT_EQ(result.status, 0) << result.report();
  }
  const Words with = {"network.certs=" + certs + "/tiny"};
  start_coordinator(with);
  const auto plain =
      worker("eu-1", {"network.join_timeout=2s", "network.detect_timeout=1s", "network.heartbeat=200ms"})
          .wait();
  EXPECT_EQ(plain.status, 4) << plain.report();
  auto us = worker("us-1", with);
  auto eu = worker("eu-1", with);
  expect_reference(eu, us);
  EXPECT_THAT(coordinator->output(), HasSubstr("no TLS: "));
}

TEST_F(ByHand, AddressesThatOthersCanReachNeedCertificates) {
  const Words words = {"worker",    "--config",      site.config().string(), "--name",
                       "eu-1",      "--coordinator", "127.0.0.1:1",          "--listen",
                       "0.0.0.0:0", "--advertise",   "127.0.0.1:0"};
  const auto refused = site.isthmus(words);
  EXPECT_EQ(refused.status, 2) << refused.report();
  EXPECT_THAT(refused.output, HasSubstr("network.listen is '0.0.0.0:0', which other machines can reach"));
  EXPECT_THAT(refused.output, HasSubstr("isthmus certs init"));
  auto insecure = words;
  insecure.insert(insecure.end(), {"--insecure", "--set", "network.join_timeout=500ms"});
  EXPECT_EQ(site.isthmus(insecure).status, 4)
      << "--insecure must be accepted; only the coordinator is missing";
}

TEST_F(ByHand, WorkersThatComeFirstWait) {
  start_coordinator();
  coordinator->signal(SIGKILL);  // frees its port
  coordinator->wait();
  auto eu = worker("eu-1");
  auto us = worker("us-1");
  ASSERT_TRUE(eventually([&] { return us.output().find("parameters in 3 fragments") != std::string::npos; }));
  coordinator.emplace(site.start(
      {"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:" + std::to_string(port)}));
  expect_reference(eu, us);
}

TEST_F(ByHand, AWorkerWithAnotherConfigIsRefusedByKey) {
  start_coordinator();
  auto eu = worker("eu-1");
  ASSERT_TRUE(wait_for("eu-1 joined")) << site.logs();
  const auto wrong = worker("us-1", {"inner.lr=0.5"}).wait();
  EXPECT_EQ(wrong.status, 2) << wrong.report();
  EXPECT_THAT(wrong.output,
              HasSubstr("the coordinator refused this worker: inner.lr is 0.01 at the coordinator and "
                        "0.5 at us-1; all replicas must share it"));
  const auto twin =
      worker("eu-2", {"run.name=other", "network.secret=" + (site.run() / "run.secret").string()}).wait();
  EXPECT_EQ(twin.status, 2) << twin.report();
  EXPECT_THAT(twin.output, HasSubstr("this is run 'tiny', not 'other'"));
  auto us = worker("us-1");
  expect_reference(eu, us);
  EXPECT_THAT(coordinator->output(), HasSubstr("refused a worker: inner.lr is 0.01"));
}

TEST_F(ByHand, AWorkerWithAnotherModelIsRefused) {
  start_coordinator();
  auto eu = worker("eu-1");
  ASSERT_TRUE(wait_for("eu-1 joined")) << site.logs();
  // The vocabulary is not a key that all must share, but it makes a different model.
  const auto ids = site.write("ids.bin", std::string(20'000, '\0'));
  const auto wrong = worker("us-1", {"data.path=" + ids.string(), "data.tokenizer=vocab:300"}).wait();
  EXPECT_EQ(wrong.status, 2) << wrong.report();
  EXPECT_THAT(wrong.output, HasSubstr("the tokenizer of us-1 is not the tokenizer of eu-1"));
  auto us = worker("us-1");
  expect_reference(eu, us);
}

TEST_F(ByHand, OneMoreThanTheRunBeginsWithComesInLater) {
  const Words slowly = {"run.steps=120", "network.emulate.rtt=100ms", "network.heartbeat=50ms"};
  start_coordinator(slowly);
  auto eu = worker("eu-1", slowly);
  ASSERT_TRUE(wait_for("eu-1 joined")) << site.logs();
  eu.signal(SIGSTOP);  // the run cannot begin without its answer
  auto zz = worker("zz-1", slowly);
  ASSERT_TRUE(wait_for("zz-1 joined")) << site.logs();
  auto us = worker("us-1", slowly);
  ASSERT_TRUE(wait_for("us-1 waits until the run has begun")) << site.logs();
  eu.signal(SIGCONT);
  for (auto* command : {&*coordinator, &eu, &us, &zz})
    EXPECT_EQ(command->wait().status, 0) << command->output() << site.logs();
  EXPECT_EQ(site.summary()["global_hash"].size(), 3U);
}

TEST_F(ByHand, AnEarlyLeaverFreesItsPlace) {
  start_coordinator();
  auto eu = worker("eu-1");
  ASSERT_TRUE(wait_for("eu-1 joined")) << site.logs();
  eu.signal(SIGINT);
  EXPECT_EQ(eu.wait(5s).status, 130);
  ASSERT_TRUE(wait_for("its place is free again")) << site.logs();
  auto back = worker("eu-1");
  auto us = worker("us-1");
  expect_reference(back, us);
}

TEST_F(ByHand, ANewRunKeepsTheOldOnesFiles) {
  for (const auto* seed : {"run.seed=1", "run.seed=2"}) {
    const Words settings = {"run.steps=2", "outer.warmup_steps=1", seed};
    start_coordinator(settings);
    auto eu = worker("eu-1", settings);
    auto us = worker("us-1", settings);
    for (auto* command : {&*coordinator, &eu, &us}) EXPECT_EQ(command->wait().status, 0) << site.logs();
  }
  for (const auto* kept : {"eu-1.1/checkpoints", "us-1.1/checkpoints", "summary.json.1", "metrics.jsonl.1"}) {
    EXPECT_TRUE(std::filesystem::exists(site.run() / kept)) << kept;
  }
}

TEST_F(ByHand, CtrlCAtTheCoordinatorStopsTheWholeRunAndAllResume) {
  const Words slowly = {"network.emulate.rtt=150ms"};
  start_coordinator(slowly);
  auto eu = worker("eu-1", slowly);
  auto us = worker("us-1", slowly);
  ASSERT_TRUE(eventually([&] { return site.metric_lines("us-1") > 3; })) << site.logs();
  coordinator->signal(SIGINT);
  EXPECT_EQ(us.wait().status, 0) << site.logs();
  EXPECT_EQ(eu.wait().status, 0) << site.logs();
  EXPECT_EQ(coordinator->wait().status, 130) << site.logs();
  EXPECT_EQ(site.summary()["stopped"], true);

  coordinator.emplace(site.start({"coordinator", "--config", site.config().string(), "--listen",
                                  "127.0.0.1:" + std::to_string(port), "--resume"}));
  const auto resumed = [&](const std::string& name) {
    return site.start({"worker", "--config", site.config().string(), "--coordinator",
                       "127.0.0.1:" + std::to_string(port), "--name", name, "--resume"});
  };
  auto eu_again = resumed("eu-1");
  auto us_again = resumed("us-1");
  for (auto* command : {&*coordinator, &eu_again, &us_again})
    EXPECT_EQ(command->wait().status, 0) << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
}

/// Both were in the last view, so us-1 may have rounds that eu-1 lacks; but us-1 never comes back.
TEST_F(ByHand, OneOfTwoThatWereKilledGoesBackToItsCheckpointWithoutTheOther) {
  const std::string longer = "run.steps=200", often = "run.checkpoint_every=5";
  start_coordinator({longer, often, "run.checkpoint_interval=1s", "network.join_timeout=20s"});
  const Words slowly = {longer, often, "network.emulate.rtt=150ms", "network.heartbeat=50ms"};
  auto eu = worker("eu-1", slowly);
  auto us = worker("us-1", slowly);
  ASSERT_TRUE(eventually([&] {
    const auto text = site.isthmus({"ctl", "status", "--json", "--config", site.config().string(),
                                    "--coordinator", "127.0.0.1:" + std::to_string(port)});
    const auto status = nlohmann::json::parse(text.output, nullptr, false);
    return status.is_object() && status.value("checkpoint", 0) > 0;
  })) << site.logs();
  eu.signal(SIGKILL);
  us.signal(SIGKILL);
  eu.wait();
  us.wait();
  auto again = site.start(with_settings({"worker", "--config", site.config().string(), "--coordinator",
                                         "127.0.0.1:" + std::to_string(port), "--name", "eu-1", "--resume"},
                                        {longer, often}));
  EXPECT_EQ(again.wait().status, 0) << site.logs();
  EXPECT_EQ(coordinator->wait().status, 0) << site.logs();
  EXPECT_THAT(coordinator->output(),
              AllOf(HasSubstr("waiting for a member of view"), HasSubstr("goes back to its checkpoints"),
                    HasSubstr("resuming from the checkpoint of step ")));
  EXPECT_EQ(site.summary()["steps"], 200);
  EXPECT_EQ(site.summary()["global_hash"].size(), 1U);
}

// ---- gathering: lines of remote workers in the coordinator's run folder ----

/// The file's lines; empty if there is no file.
std::vector<std::string> text_lines(const std::filesystem::path& file) {
  std::vector<std::string> out;
  if (!std::filesystem::exists(file)) return out;
  std::istringstream in(read_all(file));
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// Workers with a run folder of their own.
class Gathered : public ByHand {
 protected:
  Words elsewhere(Words settings = {}) const {
    settings.push_back("run.out=" + (site / "far").string());
    settings.push_back("network.secret=" + (site.run() / "run.secret").string());
    return settings;
  }
  std::vector<std::string> own(const std::string& name, const std::string& file) const {
    return text_lines(site / "far/tiny" / name / file);
  }
  std::vector<std::string> here(const std::string& name, const std::string& file) const {
    return text_lines(site.run() / name / file);
  }
};

TEST_F(Gathered, MetricsAndLogLinesOfWorkersElsewhereLineByLine) {
  std::filesystem::create_directories(site.run() / "eu-1");
  site.write("runs/tiny/eu-1/metrics.jsonl", "{\"of\": \"an older run\"}\n");
  start_coordinator();
  auto eu = worker("eu-1", elsewhere());
  auto us = worker("us-1", elsewhere({"run.gather_limit=0"}));
  expect_reference(eu, us);
  EXPECT_THAT(own("eu-1", "metrics.jsonl"), ::testing::Not(::testing::IsEmpty()));
  EXPECT_EQ(here("eu-1", "metrics.jsonl"), own("eu-1", "metrics.jsonl"));
  EXPECT_THAT(here("eu-1", "gathered.log"), ::testing::Contains(HasSubstr("member 1 of 2")));
  EXPECT_THAT(here("eu-1", "metrics.jsonl.1"), SizeIs(1)) << "the older run's line";
  EXPECT_FALSE(std::filesystem::exists(site.run() / "us-1")) << "us-1 has run.gather_limit=0";
}

TEST_F(Gathered, WhoWorksInThatFolderItselfIsLeftAlone) {
  start_coordinator();
  auto eu = worker("eu-1");
  auto us = worker("us-1");
  expect_reference(eu, us);
  EXPECT_FALSE(std::filesystem::exists(site.run() / "eu-1/gathered.log"));
  auto lines = here("eu-1", "metrics.jsonl");
  ASSERT_FALSE(lines.empty());
  std::ranges::sort(lines);
  EXPECT_EQ(std::ranges::adjacent_find(lines), lines.end()) << "a line is in the file twice";
}

TEST_F(Gathered, NothingIsLostWhileTheCoordinatorIsAway) {
  const Words slowly = {"network.emulate.rtt=150ms", "network.heartbeat=100ms"};
  start_coordinator(slowly);
  auto eu = worker("eu-1", elsewhere(slowly));
  auto us = worker("us-1", elsewhere(slowly));
  ASSERT_TRUE(eventually([&] { return !here("us-1", "metrics.jsonl").empty(); })) << site.logs();
  coordinator->signal(SIGKILL);
  coordinator->wait();
  const auto before = own("us-1", "metrics.jsonl").size();
  ASSERT_TRUE(eventually([&] { return own("us-1", "metrics.jsonl").size() > before; })) << site.logs();
  coordinator.emplace(site.start(with_settings(
      {"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:" + std::to_string(port)},
      slowly)));
  for (auto* command : {&*coordinator, &eu, &us}) ASSERT_EQ(command->wait().status, 0) << site.logs();
  // Lines that were on their way when the coordinator was killed may be there twice.
  const auto lines = here("us-1", "metrics.jsonl");
  auto at = lines.begin();
  for (const auto& line : own("us-1", "metrics.jsonl")) {
    at = std::find(at, lines.end(), line);
    ASSERT_NE(at, lines.end()) << "not gathered, or out of order: " << line << site.logs();
  }
}

/// The JSON lines of a metrics.jsonl.
std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> out;
  std::istringstream in(read_all(file));
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) out.push_back(std::move(json));
  }
  return out;
}

class Observe : public ByHand {
 protected:
  Observe() { settings = {"network.emulate.rtt=100ms", "network.heartbeat=50ms", "run.steps=240"}; }
  Command observe(const std::string& name, Words flags = {}) {
    Words words = {
        "observe", "--config", site.config().string(), "--coordinator", "127.0.0.1:" + std::to_string(port),
        "--name",  name};
    words.insert(words.end(), flags.begin(), flags.end());
    auto own = settings;
    own.push_back("network.emulate.rtt=0s");  // the workers are slow enough
    return site.start(with_settings(std::move(words), own));
  }
  void expect_good_end(Command& first, Command& second) {
    for (auto* command : {&*coordinator, &first, &second})
      ASSERT_EQ(command->wait().status, 0) << site.logs();
  }
  std::size_t views() const {
    const auto text = coordinator->output();
    std::size_t count = 0;
    for (auto at = text.find("begins with"); at != std::string::npos; at = text.find("begins with", at + 1))
      ++count;
    return count;
  }
  Words settings;
};

TEST_F(Observe, ItFollowsTheRunToItsEndAndEvaluatesWhatTheRunDoes) {
  start_coordinator(settings);
  auto eu = worker("eu-1", settings);
  auto watch = observe("watch", {"--out", (site / "model.safetensors").string()});
  ASSERT_TRUE(wait_for("watch observes the run")) << site.logs();
  auto us = worker("us-1", settings);
  expect_good_end(eu, us);
  const auto end = watch.wait();
  ASSERT_EQ(end.status, 0) << end.report() << site.logs();
  EXPECT_THAT(end.output, HasSubstr("the run has ended: global hash " + site.hash()));
  EXPECT_EQ(views(), 1U) << "an observer must not cause a view";
  EXPECT_TRUE(std::filesystem::exists(site / "model.safetensors"));
  // Both evaluate a step to the same loss, except for the order in which batches are summed.
  std::size_t compared = 0;
  const auto evaluations = site.summary()["evaluations"];
  for (const auto& line : lines_of(site.run() / "watch/metrics.jsonl")) {
    if (!line.contains("step")) continue;
    for (const auto& evaluation : evaluations) {
      if (evaluation["step"] != line["step"]) continue;
      EXPECT_NEAR(evaluation["loss"].get<double>(), line["eval_loss"].get<double>(), 1e-5) << line;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0U) << "no step was evaluated by both" << site.logs();
}

TEST_F(Observe, OnceTakesTheStateAndLeaves) {
  settings.push_back("run.steps=100000");
  start_coordinator(settings);
  auto eu = worker("eu-1", settings);
  auto us = worker("us-1", settings);
  const auto once = observe("look", {"--once", "--out", (site / "now.safetensors").string()}).wait();
  ASSERT_EQ(once.status, 0) << once.report() << site.logs();
  EXPECT_THAT(once.output,
              AllOf(HasSubstr("look: rounds "), HasSubstr("bits per byte"), HasSubstr("wrote ")));
  EXPECT_TRUE(std::filesystem::exists(site / "now.safetensors"));

  auto killed = observe("watch");
  ASSERT_TRUE(eventually([&] { return killed.output().find("bits per byte") != std::string::npos; }))
      << site.logs();
  killed.signal(SIGKILL);
  ASSERT_TRUE(wait_for("watch has stopped observing")) << site.logs();
  auto interrupted = observe("watch");
  ASSERT_TRUE(eventually([&] { return interrupted.output().find("bits per byte") != std::string::npos; }))
      << site.logs();
  interrupted.signal(SIGINT);
  EXPECT_EQ(interrupted.wait(5s).status, 130) << "the observer must leave at once";
  EXPECT_TRUE(eu.running() && us.running()) << "the workers must continue";
  EXPECT_EQ(views(), 1U);
  EXPECT_EQ(coordinator->output().find("stopping"), std::string::npos);
  coordinator->signal(SIGINT);
  EXPECT_EQ(eu.wait().status, 0) << site.logs();
  EXPECT_EQ(us.wait().status, 0) << site.logs();
  EXPECT_EQ(coordinator->wait().status, 130) << site.logs();
}

TEST_F(Observe, WithAnotherConfigItIsRefused) {
  start_coordinator(settings);
  settings.push_back("inner.lr=0.5");
  const auto wrong = observe("watch").wait();
  EXPECT_EQ(wrong.status, 2) << wrong.report();
  EXPECT_THAT(wrong.output, HasSubstr("inner.lr is 0.01 at the coordinator and 0.5 at watch"));
  coordinator->signal(SIGINT);
  EXPECT_EQ(coordinator->wait(5s).status, 130);
}

std::string frame(std::uint16_t type, std::uint32_t length, const std::string& body) {
  std::string bytes = "ISTH";
  for (const auto part : {type, std::uint16_t{0}})
    bytes.append(reinterpret_cast<const char*>(&part), sizeof part);
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + body;
}

TEST_F(ByHand, StrangersDisturbNobody) {
  // Insecure, because otherwise strangers would fail at the run's secret and the garbage would not be read.
  const Words slowly = {"network.emulate.rtt=150ms", "network.insecure=true"};
  start_coordinator(slowly);
  auto eu = worker("eu-1", slowly);
  auto us = worker("us-1", slowly);
  ASSERT_TRUE(eventually([&] { return site.metric_lines("us-1") > 1; })) << site.logs();
  const auto text = coordinator->output();
  std::vector<std::uint16_t> ports = {port};
  for (const auto* name : {"eu-1", "us-1"}) {
    ports.push_back(port_after(text, std::string(name) + " joined from 127.0.0.1:"));
    ASSERT_NE(ports.back(), 0) << text;
  }
  const Words garbage = {
      "GET / HTTP/1.1\r\nHost: isthmus\r\n\r\n",
      std::string(4096, '\0'),
      frame(1, 0xffffffff, "a control message of four gigabytes"),
      frame(1, 1, "\xff"),                    // a control message of an unknown type
      frame(1, 1, std::string(1, '\0')),      // a truncated hello
      frame(2, 3, "who"),                     // a peer hello of three bytes
      frame(3, 24, std::string(24, '\x01')),  // a chunk without a hello
      frame(4, 2, "ok"),                      // an acknowledgement without its header
  };
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (const auto place : ports) {
    strangers.push_back(std::make_unique<Stranger>(place));  // stays silent
    for (const auto& bytes : garbage) {
      strangers.push_back(std::make_unique<Stranger>(place));
      strangers.back()->say(bytes);
      EXPECT_TRUE(strangers.back()->is_shown_out()) << "port " << place << ": " << bytes.substr(0, 40);
    }
  }
  EXPECT_TRUE(us.running()) << "the run ended before the last stranger came";
  expect_reference(eu, us);
}

}  // namespace
}  // namespace isthmus
