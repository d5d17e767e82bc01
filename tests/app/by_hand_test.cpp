// A coordinator and workers, started by hand as at two sites, and strangers that connect to them.

#include <algorithm>

#include "by_hand.h"
#include "socket.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

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
  EXPECT_THAT(coordinator->output(), HasSubstr("TLS failed: "));
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
              AllOf(HasSubstr("waiting for a trainer of view"), HasSubstr("goes back to its checkpoints"),
                    HasSubstr("resuming from the checkpoint of step ")));
  EXPECT_EQ(site.summary()["steps"], 200);
  EXPECT_EQ(site.summary()["global_hash"].size(), 1U);
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
