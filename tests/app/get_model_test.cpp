// The model of a run on the machine that launched it, with its workers at two sites behind a real sshd: from
// the live run, and from a site's checkpoints.

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "../fuzz/tokenizer_support.h"
#include "isthmus/base/error.h"
#include "model/model_folder.h"
#include "model/site_choice.h"
#include "site.h"
#include "sshd.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class GetModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    sshd_ = shared_sshd(why);
    if (sshd_ == nullptr) GTEST_SKIP() << why;
    config_ = write_config(launcher("eu"), launcher("us"));
  }
  [[nodiscard]] std::string launcher(const std::string& name, const std::string& more = {}) const {
    return sshd_->launcher(isthmus_program, site_ / name) + more;
  }
  [[nodiscard]] fs::path write_config(const std::string& eu, const std::string& us) const {
    return site_.write("ssh.yaml", "extends: tiny.yaml\nsites:\n  eu: {" + eu + "}\n  us: {" + us + "}\n");
  }
  void train() {
    const auto result = site_.isthmus({"launch", config_.string()});
    ASSERT_EQ(result.status, 0) << result.report() << site_.logs();
  }
  [[nodiscard]] std::string run() const { return site_.run().string(); }
  [[nodiscard]] fs::path checkpoint_at(const std::string& name) const {
    return site_ / name / "tiny" / name / "checkpoints/step_000000000040_replica_0.ckpt";
  }
  Result export_to(const std::string& folder, Words more = {}) {
    Words words = {"export", run(), "--out", (site_ / folder).string()};
    words.insert(words.end(), more.begin(), more.end());
    return site_.isthmus(words);
  }
  /// Loss of a model on the run's held-out text.
  double loss_of(const std::string& model) {
    const auto result = site_.isthmus({"eval", model, "--out", (site_ / "eval.json").string()});
    EXPECT_EQ(result.status, 0) << result.report();
    const auto json = nlohmann::json::parse(read_all(site_ / "eval.json"), nullptr, false);
    return json.is_object() ? json["loss"].get<double>() : 0;
  }
  [[nodiscard]] std::size_t steps(const std::string& name) const {
    const auto text = read_all(site_ / name / "tiny" / name / "metrics.jsonl");
    return static_cast<std::size_t>(std::ranges::count(text, '\n'));
  }
  /// A folder of a launched run with a site that runs this script instead of isthmus.
  void pretend(const std::string& script) {
    const auto program = site_.write("pretend.sh", "#!/bin/sh\n" + script);
    fs::permissions(program, fs::perms::owner_all);
    const auto at = sshd_->launcher(program.string(), site_ / "eu");
    site_.write("runs/tiny/config.yaml",
                "extends: ../../tiny.yaml\nsites:\n  eu: {replicas: 2, " + at + "}\n");
  }

  Site site_;
  const Sshd* sshd_ = nullptr;
  fs::path config_;
};

TEST_F(GetModel, OfARunThatHasEndedComesFromASiteAndIsKept) {
  ASSERT_NO_FATAL_FAILURE(train());
  const auto first = export_to("model");
  ASSERT_EQ(first.status, 0) << first.report();
  EXPECT_THAT(first.output, AllOf(HasSubstr("step 40 of tiny, from site eu ("),
                                  HasSubstr("2 of 2 workers have it"), HasSubstr("Qwen3ForCausalLM")));
  const auto copy = site_.run() / "fetched/eu/step_000000000040_replica_0.ckpt";
  ASSERT_TRUE(fs::exists(copy));
  EXPECT_LT(fs::file_size(copy), fs::file_size(checkpoint_at("eu")) * 3 / 4)
      << "what only a worker needs must stay at the site";
  // Nothing is left at the sites, so this is from the copy.
  fs::rename(site_ / "eu", site_ / "eu-away");
  fs::rename(site_ / "us", site_ / "us-away");
  const auto again = site_.isthmus({"sample", run(), "--tokens", "4"});
  EXPECT_EQ(again.status, 0) << again.report();
  EXPECT_THAT(again.output,
              AllOf(HasSubstr("step 40 of tiny, from site eu (fetched earlier"), Not(HasSubstr("asking"))));
  EXPECT_NEAR(loss_of(run()), site_.summary()["final_eval_loss"].get<double>(), 1e-6);
  fs::remove_all(site_.run() / "fetched");
  const auto none = export_to("other");
  EXPECT_EQ(none.status, 3) << none.report();
  EXPECT_THAT(none.output,
              AllOf(HasSubstr("holds no model, and none could be fetched:"),
                    HasSubstr("the run is not live: "), HasSubstr("has no checkpoint of tiny in"),
                    HasSubstr("next: copy WORKER/checkpoints from where a worker ran to " + run())));
}

TEST_F(GetModel, OfALiveRunComesFromItsMembers) {
  auto launch = site_.start({"launch", config_.string(), "--set", "run.steps=1000000", "--set",
                             "inner.schedule=constant", "--set", "run.eval_every=0"});
  ASSERT_TRUE(eventually([&] { return steps("eu") > 15 && steps("us") > 15; })) << site_.logs();
  const auto live = export_to("live");
  ASSERT_EQ(live.status, 0) << live.report() << site_.logs();
  EXPECT_THAT(live.output, AllOf(HasSubstr("tiny is live; copying its global parameters"),
                                 HasSubstr(" of tiny, which is live"), Not(HasSubstr("asking"))));
  EXPECT_TRUE(fs::exists(site_ / "live/model.safetensors"));
  EXPECT_FALSE(fs::exists(site_.run() / "fetched")) << "tomorrow it would be old";
  EXPECT_GT(loss_of(run()), 0);
  const auto eu = steps("eu");
  EXPECT_TRUE(eventually([&] { return steps("eu") > eu + 5; })) << "the run must continue" << site_.logs();
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait().status, 130) << site_.logs();
  const auto stopped = export_to("stopped");
  EXPECT_EQ(stopped.status, 0) << stopped.report();
  EXPECT_THAT(stopped.output,
              HasSubstr(fmt::format("step {} of tiny, from site ", site_.summary()["steps"].get<int>())));
}

TEST(GetModelOverTls, OfALiveRunNeedsAnObserversCertificate) {
  Site site;
  const auto certs = (site / "certs").string();
  ASSERT_EQ(site.isthmus({"certs", "init", "tiny", "--dir", certs}).status, 0);
  for (const auto* name : {"coordinator", "eu", "us", "operator"})
    ASSERT_EQ(site.isthmus({"certs", "issue", "tiny", name, "--dir", certs}).status, 0);
  const auto config = site.write("tls.yaml",
                                 "extends: tiny.yaml\nsites: {eu: {replicas: 1}, us: {replicas: "
                                 "1}}\nnetwork.certs: " +
                                     certs + "/tiny\n");
  auto launch = site.start(with_settings(
      {"launch", config.string()}, {"run.steps=1000000", "inner.schedule=constant", "run.eval_every=0"}));
  ASSERT_TRUE(eventually([&] { return site.metric_lines("eu") > 15 && site.metric_lines("us") > 15; }))
      << site.logs();
  const Words words = {"export", site.run().string(), "--out", (site / "model").string()};
  const auto refused = site.isthmus(words);
  EXPECT_EQ(refused.status, 3) << refused.report();
  const auto command = "certs issue tiny watch --role observer --dir " + certs;
  EXPECT_THAT(refused.output, HasSubstr("next: run `isthmus " + command + "`"));
  ASSERT_EQ(site.isthmus({"certs", "issue", "tiny", "watch", "--role", "observer", "--dir", certs}).status,
            0);
  const auto live = site.isthmus(words);
  EXPECT_EQ(live.status, 0) << live.report();
  EXPECT_THAT(live.output, HasSubstr(" of tiny, which is live"));
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait().status, 130) << site.logs();
}

TEST_F(GetModel, ADamagedCheckpointIsFetchedFromAnotherSite) {
  ASSERT_NO_FATAL_FAILURE(train());
  auto text = read_all(checkpoint_at("eu"));
  // The sections follow each other by name or position, so damage one byte in every thousand.
  for (std::size_t i = text.size() / 4; i < text.size(); i += 1000) text[i] = static_cast<char>(text[i] ^ 1);
  site_.write("eu/tiny/eu/checkpoints/step_000000000040_replica_0.ckpt", text);
  const auto result = export_to("model");
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("the checksum of section agreed is wrong"), HasSubstr("from site us (")));
  EXPECT_FALSE(fs::exists(site_.run() / "fetched/eu/step_000000000040_replica_0.ckpt"));
  EXPECT_FALSE(fs::exists(site_.run() / "fetched/eu/step_000000000040_replica_0.ckpt.partial"));
}

TEST_F(GetModel, ASiteThatCannotBeReachedIsNamedAndTheOtherIsAsked) {
  ASSERT_NO_FATAL_FAILURE(train());
  auto config = read_all(site_.run() / "config.yaml");
  const auto port = "port: " + std::to_string(sshd_->port());
  config.replace(config.find(port), port.size(), "port: 1");
  site_.write("runs/tiny/config.yaml", config);
  const auto result = export_to("model");
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("eu (" + sshd_->user_at_host() + "): ssh: "), HasSubstr("from site us (")));
}

TEST_F(GetModel, TheTokenizerComesFromTheSiteToo) {
  const auto tokenizer = site_.write("there/tokenizer.json", data::small_tokenizer().dump()).string();
  config_ = write_config(launcher("eu", ", data.tokenizer: " + tokenizer),
                         launcher("us", ", data.tokenizer: " + tokenizer));
  ASSERT_NO_FATAL_FAILURE(train());
  const auto result = export_to("model");
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_EQ(read_all(site_ / "model/tokenizer.json"), read_all(tokenizer));
  EXPECT_EQ(read_all(site_.run() / "fetched/tokenizer.json"), read_all(tokenizer));
}

TEST_F(GetModel, WhatASiteSendsIsChecked) {
  const std::string offer = R"(echo '{"gives": 1, "checkpoints": [{"worker": "eu", "step": 40, "agreed": ")" +
                            std::string(64, 'a') + R"("}], "tokenizer": ""}'; read order; )";
  const auto refuses = [&](const std::string& script, const std::string& why) {
    pretend(script);
    const auto result = export_to("model");
    EXPECT_EQ(result.status, 3) << result.report();
    EXPECT_THAT(result.output, HasSubstr(why)) << script;
    EXPECT_FALSE(fs::exists(site_ / "model"));
  };
  refuses(offer + R"(echo '{"bytes": 4000000000000}'; cat)", "it announces a file of 4000000000000 bytes");
  refuses(offer + R"(echo '{"bytes": -1}'; cat)", "it announces a file of -1 bytes");
  refuses(offer + R"(echo '{"bytes": 16}'; printf 'ISTHMUS!ISTHMUS!'; cat >/dev/null)",
          "does not begin as a checkpoint");
  refuses(offer + R"(echo '{"bytes": 16}'; printf 'ISTHMUS!')", "eu (");
  refuses(offer + R"(echo '{"failed": "cannot read it"}'; cat >/dev/null)", "cannot read it");
  refuses(R"(echo '{"gives": 2, "build": "new"}'; cat >/dev/null)", "another version (new)");
  refuses("echo no such verb >&2; exit 2", "use the same build at all sites");
}

// ---- parts ----

using app::SiteCheckpoint;

std::vector<SiteCheckpoint> of(const std::string& worker, const std::vector<std::uint64_t>& steps,
                               const std::string& history = "a") {
  std::vector<SiteCheckpoint> all;
  for (const auto step : steps) all.push_back({worker, step, history});
  return all;
}

TEST(CommonCheckpoints, TheNewestThatHalfOfTheWorkersHaveIsTriedFirst) {
  const std::vector<std::vector<SiteCheckpoint>> three = {of("a", {10, 20, 30}), of("b", {10, 20}),
                                                          of("c", {20})};
  const auto order = app::common_checkpoints(three);
  ASSERT_EQ(order.size(), 3U);
  EXPECT_EQ(order[0].step, 20U) << "only one of three has 30";
  EXPECT_EQ(order[0].places.size(), 3U);
  EXPECT_EQ(order[0].workers, 3U);
  EXPECT_EQ(order[1].step, 10U);
  EXPECT_EQ(order[2].step, 30U);
}

TEST(CommonCheckpoints, AWorkerThatLeftLongAgoDoesNotMakeItsOldOneTheModel) {
  const std::vector<std::vector<SiteCheckpoint>> two = {of("left", {10}), of("stayed", {1000, 2000})};
  EXPECT_EQ(app::common_checkpoints(two).front().step, 2000U);
}

TEST(CommonCheckpoints, AnotherHistoryDoesNotCount) {
  const std::vector<std::vector<SiteCheckpoint>> three = {of("a", {30}), of("b", {30}),
                                                          of("c", {30, 40}, "b")};
  const auto order = app::common_checkpoints(three);
  EXPECT_EQ(order.front().step, 30U);
  EXPECT_EQ(order.front().places.size(), 2U);
  EXPECT_TRUE(app::common_checkpoints({}).empty());
}

TEST(ModelFolder, IsReplacedAsAWholeAndOnlyIfNothingElseIsInIt) {
  TemporaryFolder folder;
  app::ModelFolder model(folder / "model", true);
  const auto put = [&](const std::string& text) {
    model.replace([&](const fs::path& to) { std::ofstream(to / "config.json") << text; }, {{"step", 1}});
  };
  put("one");
  EXPECT_EQ(read_all(folder / "model/config.json"), "one");
  put("two");
  EXPECT_EQ(read_all(folder / "model/config.json"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "the old one must be gone";
  EXPECT_THROW(model.replace([](const fs::path&) { data_error("disk full"); }, {}), Error);
  EXPECT_EQ(read_all(folder / "model/config.json"), "two");
  (void)folder.write("model/mine.gguf", "");
  EXPECT_THROW(put("three"), Error);
  EXPECT_THROW(app::ModelFolder(folder / "model", true), Error);
  EXPECT_EQ(read_all(folder / "model/config.json"), "two");
  (void)folder.write("other/notes.txt", "");
  EXPECT_THROW(app::ModelFolder(folder / "other", true), Error);
  EXPECT_THROW(app::ModelFolder(folder / "other/notes.txt", true), Error);
}

TEST(ModelFolder, HasOneWriter) {
  TemporaryFolder folder;
  app::ModelFolder one(folder / "model", true), other(folder / "model", true);
  const auto write = [](const fs::path& to) { std::ofstream(to / "config.json") << "one"; };
  one.replace(
      [&](const fs::path& to) {
        EXPECT_THROW(other.replace(write, {}), Error) << "it would remove what is being written";
        write(to);
      },
      {});
  other.replace(write, {});
  EXPECT_EQ(read_all(folder / "model/config.json"), "one");
}

TEST(ModelFolder, IsWrittenInPlaceWhereItCannotBeExchanged) {
  TemporaryFolder folder;
  const auto to = folder / "parent/model";
  fs::create_directories(to);
  if (geteuid() == 0) {  // root may write everywhere, but not rename a mount point
    if (mount("none", to.c_str(), "tmpfs", 0, nullptr) != 0) GTEST_SKIP() << "no mount: " << strerror(errno);
  } else {
    fs::permissions(folder / "parent", fs::perms::owner_read | fs::perms::owner_exec);
  }
  app::ModelFolder model(to, true);
  const auto put = [&](const char* name) {
    model.replace([&](const fs::path& fresh) { std::ofstream(fresh / name) << name; }, {});
  };
  put("tokenizer.json");
  put("tokenizer.model");
  EXPECT_FALSE(fs::exists(to / "tokenizer.json")) << "of the model before";
  EXPECT_EQ(read_all(to / "tokenizer.model"), "tokenizer.model");
  EXPECT_EQ(std::distance(fs::directory_iterator(to), {}), 2) << "the file and its note";
  if (geteuid() == 0) umount2(to.c_str(), MNT_DETACH);
  fs::permissions(folder / "parent", fs::perms::owner_all);
}

}  // namespace
}  // namespace isthmus
