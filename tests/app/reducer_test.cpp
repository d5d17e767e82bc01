// Reduce-only workers, and the binary without libtorch.

#include <csignal>

#include "site.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST(Topology, AHubOfOneThatOnlyReducesEndsWithTheHashOfAMesh) {
  Site site;
  const auto result = site.launch({"outer.topology=hub", "reducers=1"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash) << result.report() << site.logs();
  EXPECT_THAT(site.summary()["wan_bytes_sent"], SizeIs(2)) << "only trainers are listed";
  EXPECT_GT(site.summary()["reducer_bytes_sent"]["reducer-0"].get<std::uint64_t>(), 0U);
  EXPECT_THAT(result.output, AllOf(HasSubstr("2 replicas and 1 reducer"), HasSubstr("reducer-0 owns all"),
                                   HasSubstr("by the reducers (1)")));
  EXPECT_THAT(read_all(site.run() / "reducer-0/worker.log"), HasSubstr("done: "));
}

TEST(Topology, ByTheUplinksItEndsWithTheHashOfAMesh) {
  Site site;
  const auto result = site.launch({"outer.topology=weighted", "network.rate=50Mbps"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
  EXPECT_THAT(result.output, HasSubstr("chunks: weighted"));
}

TEST(Topology, AKilledReducerCostsTheRunNothingButAViewChange) {
  Site site;
  auto launch = site.start_launch({"outer.topology=hub", "reducers=1", "network.emulate.rtt=100ms",
                                   "run.stop_grace=60s", "run.restarts=0"});
  for (const auto* replica : {"replica-0", "replica-1"}) {
    ASSERT_TRUE(eventually([&] { return site.metric_lines(replica) > 14 || !launch.running(); }))
        << site.logs();
  }
  ASSERT_TRUE(launch.running()) << launch.wait().report() << site.logs();
  kill(site.process("--reduce-only"), SIGKILL);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash().size(), 64U) << "the hash must be equal on both";
  EXPECT_EQ(site.summary()["steps"], 40);
  EXPECT_THAT(result.output, AllOf(HasSubstr("reducer-0 is lost"), HasSubstr("hub, replica-0 owns all")));
}

TEST(Topology, AReducerRelaysBetweenTwoThatOpenNoPort) {
  Site site;
  const auto config = site.write(
      "closed.yaml", "extends: tiny.yaml\nsites: {eu: {network.listen: none}, us: {network.listen: none}}\n");
  const auto result = site.isthmus(with_settings({"launch", config.string()}, {"reducers=1"}));
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash) << result.report() << site.logs();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("eu and us cannot reach each other; their chunks are relayed by reducer-0"),
                    HasSubstr("1 relayed")));
  EXPECT_THAT(read_all(site.run() / "metrics.jsonl"),
              HasSubstr(R"("relays":[{"between":["eu","us"],"by":"reducer-0"}])"));
}

TEST(Topology, ADataParallelRunHasNoReducers) {
  Site site;
  const auto result = site.launch({"outer.method=data_parallel", "reducers=1"});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, HasSubstr("reducers is 1 and outer.method is data_parallel"));
}

TEST(Topology, ADataParallelRunNeedsPorts) {
  Site site;
  const auto result = site.launch({"outer.method=data_parallel", "network.listen=none"});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, HasSubstr("network.listen is none and outer.method is data_parallel"));
}

// ---- the small binary ----

TEST(SmallBinary, LinksNoLibtorch) {
  Site site;
  const auto needs = run_command({"/usr/bin/readelf", "-d", coordinator_program}, site / "readelf.log");
  ASSERT_EQ(needs.status, 0) << needs.report();
  EXPECT_THAT(needs.output, AllOf(HasSubstr("NEEDED"), Not(HasSubstr("torch")), Not(HasSubstr("c10"))));
}

TEST(SmallBinary, CoordinatesAndReduces) {
  Site site;
  auto coordinator = Command(
      {coordinator_program, "coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:0"},
      site / "coordinator.log");
  const std::string words = "listens at port ";
  ASSERT_TRUE(eventually([&] {
    const auto text = coordinator.output();
    const auto at = text.find(words);
    return at != std::string::npos && text.find(',', at) != std::string::npos;
  })) << site.logs();
  const auto text = coordinator.output();
  const auto port = std::to_string(std::stoi(text.substr(text.find(words) + words.size())));
  const auto worker = [&](const std::string& name) {
    return Words{"worker", "--config", site.config().string(), "--coordinator", "127.0.0.1:" + port,
                 "--name", name};
  };
  Words reducing = {coordinator_program};
  for (const auto& word : worker("third")) reducing.push_back(word);
  reducing.emplace_back("--reduce-only");
  auto reducer = Command(reducing, site / "reducer.log");
  ASSERT_TRUE(eventually([&] { return coordinator.output().find("third joined") != std::string::npos; }))
      << site.logs();
  auto eu = site.start(worker("eu-1"));
  auto us = site.start(worker("us-1"));
  for (auto* command : {&coordinator, &reducer, &eu, &us}) {
    const auto result = command->wait();
    ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  }
  EXPECT_EQ(site.hash(), reference().hash);
  EXPECT_THAT(coordinator.output(), HasSubstr("hub, third owns all"));
}

TEST(SmallBinary, TrainsNothing) {
  Site site;
  const auto result = run_command({coordinator_program, "worker", "--config", site.config().string(),
                                   "--coordinator", "127.0.0.1:1", "--name", "eu-1"},
                                  site / "worker.log");
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("--reduce-only"), HasSubstr("isthmus worker")));
}

}  // namespace
}  // namespace isthmus
