// Invalid input is refused before any training, with a message that says what to do.

#include "site.h"
#include "socket.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Fails the test unless a launch is refused with this status and these words, and leaves no process behind.
void expect_refused(Site& site, const Result& result, int status, const Words& words) {
  EXPECT_EQ(result.status, status) << result.report() << site.logs();
  for (const auto& word : words) EXPECT_THAT(result.output, HasSubstr(word)) << result.report();
  EXPECT_THAT(result.output, ::testing::Not(HasSubstr("eval loss")));
  EXPECT_THAT(site.processes(), SizeIs(0)) << "processes left after " << result.command;
}

struct BadSetting {
  const char* name;
  Words settings;
  int status;
  Words words;
};

class Refused : public ::testing::TestWithParam<BadSetting> {};

TEST_P(Refused, WithTheKeyAndWhatIsExpected) {
  Site site;
  site.write("empty.txt", "");
  auto settings = GetParam().settings;
  for (auto& setting : settings) {
    if (setting.starts_with("data.path=") && setting.back() != '"') setting.insert(10, (site / "").string());
  }
  expect_refused(site, site.launch(settings), GetParam().status, GetParam().words);
}

const std::vector<BadSetting> bad_settings = {
    {"MissingCorpus",
     {"data.path=nothing.txt"},
     3,
     {"nothing.txt does not exist: name a text or JSONL file"}},
    {"EmptyCorpus", {"data.path=empty.txt"}, 3, {"empty.txt holds no text"}},
    {"NoCorpus", {"data.path=\"\""}, 2, {"data.path is empty; expected a text file"}},
    {"UnknownKey",
     {"outer.sync_evry=30"},
     2,
     {"unknown key outer.sync_evry (--set, value 30)", "did you mean outer.sync_every?"}},
    {"OneCheckpointKept",
     {"run.keep_checkpoints=1"},
     2,
     {"run.keep_checkpoints is 1; expected 2 or more, or 0 to keep all"}},
    {"SyncEveryZero",
     {"outer.sync_every=0"},
     2,
     {"outer.sync_every is 0 (--set); expected an integer from 1"}},
    {"SyncDelayTooLong",
     {"outer.sync_delay=10"},
     2,
     {"outer.sync_delay is 10 and outer.sync_every is 10; expected sync_delay < sync_every"}},
    {"HeartbeatsTooFarApart",
     {"network.detect_timeout=5s", "network.heartbeat=2s"},
     2,
     {"network.detect_timeout is 5s and network.heartbeat is 2s; expected a detect_timeout of at least "
      "four"}},
    {"BlockThatIsNoPowerOfTwo",
     {"outer.codec_block=48"},
     2,
     {"outer.codec_block is 48", "expected a power of two from 16 to 4096"}},
    {"ChunkThatCutsABlock",
     {"outer.chunk_elements=65600", "outer.codec_block=128"},
     2,
     {"outer.chunk_elements is 65600; expected a multiple of 128, so that no block of int4 is cut"}},
    {"MoreFragmentsThanParameters",
     {"outer.num_fragments=50000"},
     2,
     {"outer.num_fragments is 50000 and the model has 49376 parameters; expected at most one fragment per"}},
    {"HeadsThatDoNotDivide",
     {"model.heads=3"},
     2,
     {"model.dim is 32 and model.heads is 3; expected a multiple of heads"}},
    {"FewerPositionsThanTokens",
     {"model.architecture=gpt2", "model.positions=8"},
     2,
     {"data.seq_len is 32 and model.positions is 8; expected at most one token for each position"}},
    {"MuonInAWarmUp",
     {"inner.optimizer=muon"},
     2,
     {"inner.optimizer is muon and outer.warmup_steps is 10; expected 0"}},
    {"MuonOnSeveralReplicasInStep",
     {"inner.optimizer=muon", "outer.method=data_parallel"},
     2,
     {"inner.optimizer is muon, outer.method is data_parallel and replicas is 2; expected replicas 1 with 2 "
      "times"}},
    {"MuonInShares",
     {"inner.optimizer=muon", "outer.warmup_steps=0", "replica.ranks=2", "replica.zero=true"},
     2,
     {"inner.optimizer is muon and replica.zero is true; expected false"}},
    {"ABatchThatRanksCannotShareOut",
     {"replica.ranks=3"},
     2,
     {"inner.batch is 4 and replica.ranks is 3; expected a multiple of ranks"}},
    {"RanksOfABaseline",
     {"replica.ranks=2", "outer.method=data_parallel"},
     2,
     {"replica.ranks is 2 and outer.method is data_parallel; expected 1"}},
    {"NameWithASlash", {"run.name=a/b"}, 2, {"run.name is 'a/b'; expected up to 64 letters, digits"}},
    {"NameThatHides", {"run.name=.."}, 2, {"run.name is '..'; expected"}},
    {"NoAddress", {"network.coordinator=here"}, 2, {"network.coordinator is 'here'; expected HOST:PORT"}},
};
INSTANTIATE_TEST_SUITE_P(BadInput, Refused, ::testing::ValuesIn(bad_settings),
                         [](const auto& setting) { return setting.param.name; });

TEST(BadInput, NoConfigFile) {
  Site site;
  expect_refused(site, site.isthmus({"launch", (site / "none.yaml").string()}), 2,
                 {"cannot read " + (site / "none.yaml").string() + ": No such file or directory"});
  expect_refused(site, site.isthmus({"launch"}), 2, {"launch needs a config file, or --resume FOLDER"});
  expect_refused(site, site.isthmus({"launch", "--resume", (site / "none").string()}), 2, {"cannot read "});
}

TEST(BadInput, ACommandLineThatIsNone) {
  Site site;
  expect_refused(site, site.isthmus({"lunch"}), 2, {"unknown verb 'lunch'; did you mean 'launch'?"});
  expect_refused(site, site.isthmus({"worker", site.config().string()}), 2, {"--name is required"});
  expect_refused(site, site.isthmus({"worker", "--config", site.config().string(), "--name", "../up"}), 2,
                 {"--name is '../up'; expected up to 64 letters, digits"});
}

TEST(BadInput, TheCoordinatorsName) {
  Site site;
  const auto config = site.config().string();
  for (const Words& verb : {Words{"worker"}, Words{"worker", "--reduce-only"}, Words{"observe"}}) {
    auto command = verb;
    command.insert(command.end(), {"--config", config, "--name", "coordinator"});
    expect_refused(site, site.isthmus(command), 2,
                   {"--name is 'coordinator', which is reserved for the run's own files"});
  }
}

TEST(BadInput, ANameOfAFileOfTheRuns) {
  Site site;
  for (const auto* name : {"summary.json", "coordinator.state", "metrics.jsonl.1"}) {
    const auto result = site.isthmus({"worker", "--config", site.config().string(), "--name", name});
    expect_refused(site, result, 2,
                   {std::string("--name is '") + name + "', which is reserved for the run's own files"});
  }
}

TEST(BadInput, AFolderThatCannotBeMade) {
  Site site;
  site.write("file", "no folder");
  expect_refused(site, site.launch({"run.out=" + (site / "file").string()}), 3,
                 {"cannot make the folder " + (site / "file/tiny").string() + ": Not a directory"});
}

TEST(BadInput, CudaWhereThereIsNone) {
  Site site;
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  expect_refused(site, site.launch({"device=cuda"}), 2, {"device is cuda, but "});
}

TEST(BadInput, PortsInUse) {
  Site site;
  const BusyPort busy;
  for (const std::string key : {"network.coordinator", "network.listen"}) {
    const auto words =
        "cannot listen at " + busy.address() + " (" + key + "): Address already in use; choose";
    expect_refused(site, site.launch({key + "=" + busy.address()}), 2, {words});
  }
}

TEST(BadInput, CheckpointsThatDoNotFit) {
  Site site;
  ASSERT_EQ(site.launch({"run.stop_after=3"}).status, 0) << site.logs();
  const auto file = site.run() / "replica-1/checkpoints/step_000000000003_replica_0.ckpt";
  expect_refused(site, site.resume({"model.ffn_dim=64"}), 3,
                 {"step_000000000003_replica_0.ckpt cannot be used: it belongs to another model"});

  // The refused resume has left the checkpoint in place.
  auto bytes = read_all(file);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  expect_refused(site, site.resume(), 3, {file.string() + " cannot be used: the checksum of"});

  for (const auto* replica : {"replica-0", "replica-1"})
    std::filesystem::remove_all(site.run() / replica / "checkpoints");
  expect_refused(site, site.resume(), 3,
                 {"no replica in " + site.run().string() + " has a checkpoint; start without --resume"});
}

}  // namespace
}  // namespace isthmus
