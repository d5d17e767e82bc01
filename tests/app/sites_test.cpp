// Sites with unequal batches: each worker's settings, the weights of contributions, and invalid site
// settings.

#include <cstring>
#include <map>

#include "log/records.h"
#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace log = outer_sync::log;

std::filesystem::path with_sites(const Site& site, const std::string& sites,
                                 const std::string& name = "sites.yaml") {
  return site.write(name, "extends: tiny.yaml\n" + sites);
}

TEST(Sites, AWorkerHasItsSitesSettingsAndAssignmentsGoOverThem) {
  Site site;
  const auto config = with_sites(site,
                                 "replicas: 3\nsites:\n  eu: {replicas: 2, inner.batch: 12}\n  us: {inner: "
                                 "{batch: 6}, data.path: here.txt}\n")
                          .string();
  const auto as = [&](const Words& words) {
    Words command = {"config", config};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = site.isthmus(command);
    EXPECT_EQ(result.status, 0) << result.report();
    // The effective settings; the sites follow below.
    return result.output.substr(0, result.output.find("\nsites:"));
  };
  EXPECT_THAT(as({}), HasSubstr("replicas: 3\n"));
  EXPECT_THAT(as({}), HasSubstr("batch: 4\n"));
  for (const auto* worker : {"eu-1", "eu-2", "eu-7"})
    EXPECT_THAT(as({"--name", worker}), HasSubstr("batch: 12\n"));
  EXPECT_THAT(as({"--name", "us"}), HasSubstr("batch: 6\n"));
  EXPECT_THAT(as({"--name", "us"}), HasSubstr("path: " + (site / "here.txt").string()));
  EXPECT_THAT(as({"--name", "anyone", "--site", "us"}), HasSubstr("batch: 6\n"));
  EXPECT_THAT(as({"--name", "us", "--set", "inner.batch=3"}), HasSubstr("batch: 3\n"));
  EXPECT_THAT(as({"--name", "us", "--set", "sites.us.inner.batch=5"}), HasSubstr("batch: 5\n"));
  EXPECT_THAT(as({"--name", "us", "--set", "inner.batch=3", "--set", "sites.us.inner.batch=5"}),
              HasSubstr("batch: 5\n"));
}

TEST(Sites, WhatIsPrintedReadsBackAsTheSame) {
  Site site;
  const auto config = with_sites(
      site, "replicas: 3\nsites: {eu: {replicas: 2, inner.batch: 12}, us: {data.path: here.txt}}\n");
  const auto printed = site.isthmus({"config", config.string(), "--set", "data.prefetch=3"}).output;
  EXPECT_THAT(
      printed,
      HasSubstr("sites:\n  eu:\n    replicas: 2\n    inner:\n      batch: 12\n  us:\n    replicas: 1\n"));
  const auto again = site.write("again.yaml", printed);
  EXPECT_EQ(site.isthmus({"config", again.string()}).output, printed);
}

struct BadSites {
  const char* name;
  std::string text;
  std::string words;
};

class RefusedSites : public ::testing::TestWithParam<BadSites> {};

TEST_P(RefusedSites, ByFileLineAndKey) {
  Site site;
  const auto result = site.isthmus({"config", with_sites(site, GetParam().text).string()});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, HasSubstr(GetParam().words));
}

const std::vector<BadSites> bad_sites = {
    {"AnAgreedKey", "sites:\n  a:\n    inner.lr: 0.1\n", "inner.lr is set at site a ("},
    {"ItsLine", "sites:\n  a:\n    inner.lr: 0.1\n", "sites.yaml:4), and its class is agreed"},
    {"ALiveKey", "sites:\n  a: {outer.sync_every: 5}\n", "its class is live: all replicas must share it"},
    {"AnUnknownKey", "sites:\n  a: {inner.bach: 5}\n", "unknown key inner.bach"},
    {"ItsNearest", "sites:\n  a: {inner.bach: 5}\n", "of site a; did you mean inner.batch?"},
    {"AValueOutOfRange", "replicas: 1\nsites:\n  a: {inner.batch: 0}\n", "inner.batch is 0 ("},
    {"NoReplicas", "sites:\n  a: {replicas: 0}\n", "sites.a.replicas is 0 ("},
    {"OtherReplicas", "sites: {a: {replicas: 2}, b: {replicas: 1}}\nreplicas: 4\n",
     "and the sites have 3 (a: 2, b: 1)"},
    {"ANameWithASlash", "sites:\n  a/b: {replicas: 1}\n", "a site is named 'a/b'; expected up to 48 letters"},
    {"ANumber", "sites:\n  7up: {replicas: 1}\n", "a site is named '7up'"},
    {"TheCoordinatorsName", "sites: {coordinator: {replicas: 1}}\n",
     "a worker of site coordinator is 'coordinator', which is reserved for the run's own files"},
    {"TwoOfOneName", "sites: {a: {replicas: 2}, a-1: {replicas: 1}}\n", "both have a worker a-1"},
    {"AValue", "sites: 3\n", "sites is a plain value ("},
    {"APlainSite", "sites: {a: 3}\n", "sites.a is a plain value; expected a map like {inner.batch: 8}"},
    {"UnequalBatchesInTheBaseline",
     "sites: {a: {inner.batch: 8}, b: {inner.batch: 9}}\nouter: {method: data_parallel}\n",
     "inner.batch is 8 at site a and 9 at site b; expected equal batches"},
};
INSTANTIATE_TEST_SUITE_P(Sites, RefusedSites, ::testing::ValuesIn(bad_sites),
                         [](const auto& bad) { return bad.param.name; });

TEST(Sites, AWorkerOfNoneIsRefused) {
  Site site;
  const auto config = with_sites(site, "sites: {a: {inner.batch: 8}, b: {inner.batch: 9}}\n").string();
  const auto stranger = site.isthmus({"worker", "--config", config, "--name", "c"});
  EXPECT_EQ(stranger.status, 2) << stranger.report();
  EXPECT_THAT(stranger.output,
              HasSubstr("--name is 'c', which belongs to none of the sites a, b; expected a name like a"));
  const auto nowhere = site.isthmus({"worker", "--config", config, "--name", "c", "--site", "d"});
  EXPECT_THAT(nowhere.output, HasSubstr("--site is 'd'; the config has the sites a, b"));
  const auto none =
      site.isthmus({"worker", "--config", site.config().string(), "--name", "c", "--site", "d"});
  EXPECT_THAT(none.output, HasSubstr("the config has no sites"));
}

std::vector<float> floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// A fragment's result in its first round, from a log, in fp32.
std::vector<float> first_result(const std::filesystem::path& folder, outer_sync::FragmentId p) {
  const auto header = log::read_header(folder);
  const auto files = log::fragment_files(folder, header);
  log::RecordReader reader(files.at(p).back(), header, p);
  while (reader.next()) {
    if (reader.head().kind == log::RecordKind::round && reader.head().round == 1)
      return floats(reader.body().subspan(sizeof(log::RecordRule)));
  }
  ADD_FAILURE() << "no first round of fragment " << p << " in " << folder;
  return {};
}

constexpr const char* unequal_batches = "sites: {a: {inner.batch: 12}, b: {inner.batch: 4}}\n";

TEST(Sites, ContributionsWeighWhatTheyWereTrainedOn) {
  Site site;
  const auto config = with_sites(site, unequal_batches).string();
  const auto result = site.isthmus(with_settings(
      {"launch", config},
      {"outer.codec=fp32", "outer.warmup_steps=0", "run.steps=11", "outer.log=" + (site / "log").string(),
       "run.record_outer_gradients=1", "outer.final_sync=false"}));
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  std::size_t unlike = 0;
  // First sent at steps 3 and 6 (of 10, in three fragments), and at 10.
  for (const auto& [p, step] : {std::pair(1U, 3), {2U, 6}, {0U, 10}}) {
    const auto result_of_round = first_result(site / "log" / "a", p);
    std::map<std::string, std::vector<float>> sent;
    for (const std::string worker : {"a", "b"}) {
      char file[64];
      std::snprintf(file, sizeof file, "outer_gradients/step_%012d_fragment_%03u.f32", step, p);
      const auto bytes = read_all(site.run() / worker / file);
      sent[worker] = floats(std::as_bytes(std::span(bytes)));
      ASSERT_EQ(sent[worker].size(), result_of_round.size()) << file;
    }
    const float weight = static_cast<float>(4 * 32 * step) / static_cast<float>(12 * 32 * step);
    for (std::size_t i = 0; i < result_of_round.size(); ++i) {
      const float scaled = weight * sent["b"][i];  // one rounding each, as in numerics.md
      const float sum = sent["a"][i] + scaled;
      ASSERT_EQ(result_of_round[i], sum / (1.0F + weight)) << "element " << i << " of fragment " << p;
      unlike += result_of_round[i] != (sent["a"][i] + sent["b"][i]) / 2 ? 1 : 0;
    }
  }
  EXPECT_GT(unlike, 1000U) << "the plain mean must give other values";
}

TEST(Sites, RunsOfUnequalBatchesRepeatAndResume) {
  Site site;
  const auto config = with_sites(site, unequal_batches).string();
  const auto hash_of = [&](const Words& words) {
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 0) << result.report() << site.logs();
    return site.hash();
  };
  const auto first = hash_of({"launch", config});
  EXPECT_EQ(hash_of({"launch", config}), first);
  EXPECT_NE(first, reference().hash);
  const auto equal = hash_of(with_settings({"launch", config}, {"inner.batch=8"}));
  EXPECT_NE(equal, first) << "the same number of sequences in total, but dealt differently";
  hash_of(with_settings({"launch", config}, {"run.stop_after=17"}));
  EXPECT_EQ(hash_of({"launch", "--resume", site.run().string(), "--set", "run.stop_after=0"}), first);
}

}  // namespace
}  // namespace isthmus
