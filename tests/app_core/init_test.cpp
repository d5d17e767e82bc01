// `isthmus init`: the config that it writes loads, the certificates fit, and nothing is overwritten.

#include "cli/files/new_config.h"

#include <array>

#include "isthmus/base/error.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/tls/certificate_state.h"
#include "run/experiment/experiment.h"
#include "site.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<fs::path> recipe_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(source_folder) / "configs/recipes"))
    files.push_back(entry.path());
  return files;
}

app::Experiment loaded_from(const fs::path& file) { return app::load_experiment(file, {}); }

class Init : public ::testing::Test {
 protected:
  /// Runs `init` with certificates in the test's folder, and without a terminal.
  Result init(Words words) {
    words.insert(words.begin(), "init");
    words.insert(words.end(), {"--dir", (site / "certs").string()});
    return site.isthmus(words);
  }
  Result two_sites(const Words& more = {}) {
    Words words = {"--recipe",      "gpt2-124m",
                   "--sites",       "eu=me@eu.example,us=gpu-box",
                   "--data",        "/data/my corpus/train.bin",
                   "--coordinator", "home.example:7000",
                   "--name",        "two",
                   "--out",         file.string()};
    words.insert(words.end(), more.begin(), more.end());
    return init(words);
  }
  void expect_refused(const Result& result, const std::string& words) const {
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(words));
    EXPECT_FALSE(fs::exists(file)) << result.report();
  }

  Site site;
  fs::path file = site / "new run.yaml";
};

TEST_F(Init, SitesBehindNatAreStartedByHandAndGetAReducer) {
  const auto made =
      init({"--recipe", "cpu-tiny", "--sites", "eu=by-hand,us=by-hand", "--data", "/data/corpus",
            "--coordinator", "home.example:7000", "--name", "two", "--out", file.string()});
  ASSERT_EQ(made.status, 0) << made.report();
  EXPECT_THAT(made.output, AllOf(HasSubstr("--name eu"), HasSubstr("certs/two/us to this site")));
  const auto experiment = loaded_from(file);
  EXPECT_EQ(experiment.reducers, 1);
  EXPECT_EQ(experiment.network.advertise, "home.example:7001");
  ASSERT_THAT(experiment.sites, SizeIs(2));
  EXPECT_EQ(experiment.sites[0].launch.kind(), app::LauncherConfig::Kind::by_hand);
  const auto there = app::load_experiment(file, {}, app::WorkerPlace{"us", {}});
  EXPECT_FALSE(there.network.listens());
  EXPECT_TRUE(fs::exists(site / "certs/two/reducer-0/cert.pem"));

  const auto open =
      init({"--recipe", "cpu-tiny", "--sites", "eu=me@eu.example,us=by-hand", "--data", "/d", "--coordinator",
            "home.example:7000", "--name", "mixed", "--out", (site / "mixed.yaml").string()});
  ASSERT_EQ(open.status, 0) << open.report();
  EXPECT_EQ(loaded_from(site / "mixed.yaml").reducers, 0) << "a site has a port";
}

TEST(Recipes, AreAllEmbedded) {
  EXPECT_EQ(recipe_files().size(), app::recipes().size());
  for (const auto& recipe : app::recipes()) {
    std::vector<std::string> texts;
    for (const auto& path : recipe_files()) texts.push_back(read_text(path));
    EXPECT_THAT(texts, ::testing::Contains(std::string(recipe.text))) << recipe.name;
  }
}

TEST(Recipes, LoadAndPlan) {
  Site site;
  for (const auto& path : recipe_files()) {
    const auto config = site.isthmus({"config", path.string()});
    EXPECT_EQ(config.status, 0) << config.report();
    const auto plan = site.isthmus({"plan", path.string(), "--step-time", "500ms"});
    EXPECT_EQ(plan.status, 0) << plan.report();
  }
}

TEST(Recipes, TrainAboutTwentyTokensPerParameter) {
  Site site;
  for (const auto& path : recipe_files()) {
    const auto plan = site.isthmus({"plan", path.string(), "--step-time", "500ms", "--json"});
    ASSERT_EQ(plan.status, 0) << plan.report();
    const auto json = nlohmann::json::parse(plan.output.substr(plan.output.find("{\n")));
    const auto experiment = loaded_from(path);
    const auto tokens = static_cast<double>(experiment.run.steps * experiment.replicas *
                                            experiment.inner.batch * experiment.data.seq_len);
    const auto ratio = tokens / json["parameters"].get<double>();
    EXPECT_GT(ratio, 19) << path;
    EXPECT_LT(ratio, 21) << path;
  }
}

TEST_F(Init, WritesAConfigThatLoadsWithItsValues) {
  const auto result = two_sites();
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("isthmus doctor '"), HasSubstr("isthmus launch '"),
                                   HasSubstr("isthmus top '")));
  EXPECT_LE(std::ranges::count(result.output, '\n'), 8);

  const auto config = site.isthmus({"config", file.string()});
  EXPECT_EQ(config.status, 0) << config.report();
  const auto experiment = loaded_from(file);
  EXPECT_EQ(experiment.run.name, "two");
  EXPECT_EQ(experiment.replicas, 2);
  EXPECT_EQ(experiment.network.coordinator, "home.example:7000");
  ASSERT_EQ(experiment.sites.size(), 2U);
  EXPECT_EQ(experiment.sites[0].launch.ssh, "me@eu.example");
  EXPECT_EQ(experiment.sites[1].launch.ssh, "gpu-box");
  for (const auto& [name, address] : {std::pair("eu", "eu.example:7001"), {"us", "gpu-box:7001"}}) {
    const auto at_site = app::load_experiment(file, {}, app::WorkerPlace{name, {}});
    EXPECT_EQ(at_site.network.advertise, address);
    EXPECT_EQ(at_site.network.listen, "0.0.0.0:7001");
    EXPECT_EQ(at_site.data.path, "/data/my corpus/train.bin");
    EXPECT_EQ(at_site.inner.batch, 256);
  }
  EXPECT_THAT(
      read_text(file),
      AllOf(HasSubstr("# docs/models.md lists all presets"), HasSubstr("isthmus plan FILE --step-time 570ms"),
            Not(HasSubstr("This file is a recipe")), Not(HasSubstr("home.example:7000 #"))));
}

TEST_F(Init, MakesACertificateForEachProcess) {
  const auto result = two_sites();
  ASSERT_EQ(result.status, 0) << result.report();
  for (const auto* name : {"coordinator", "eu", "us", "operator", "watch"}) {
    const auto state = outer_sync::tls::certificate_state(site / "certs/two" / name);
    EXPECT_EQ(state.name, name);
    EXPECT_EQ(state.run, "two");
    EXPECT_FALSE(state.others_read_key);
  }
  EXPECT_EQ(loaded_from(file).network.certs, (site / "certs/two").string());
}

TEST_F(Init, MakesNoCertificatesIfAskedNotTo) {
  const auto result = two_sites({"--no-certs"});
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_FALSE(fs::exists(site / "certs"));
  EXPECT_EQ(loaded_from(file).network.certs, (site / "certs/two").string());
}

TEST_F(Init, OverwritesNothing) {
  ASSERT_EQ(two_sites().status, 0);
  const auto before = read_text(file);
  const auto again = two_sites();
  EXPECT_EQ(again.status, 2) << again.report();
  EXPECT_THAT(again.output, AllOf(HasSubstr("new run.yaml exists"), HasSubstr("--out")));
  EXPECT_EQ(read_text(file), before);

  file = site / "other.yaml";
  expect_refused(two_sites(), "choose another run with --name");
  EXPECT_EQ(two_sites({"--no-certs"}).status, 0);

  fs::create_symlink(site / "nowhere", site / "dangling.yaml");
  file = site / "dangling.yaml";
  expect_refused(two_sites({"--no-certs"}), "exists, and init overwrites nothing");
}

TEST_F(Init, LeavesNoConfigIfCertificatesFail) {
  site.write("certs", "a file, not a folder");
  const auto result = two_sites();
  EXPECT_NE(result.status, 0) << result.report();
  EXPECT_FALSE(fs::exists(file)) << result.report();
}

TEST_F(Init, OfOneMachineNeedsNoAddressesAndPassesTheDoctor) {
  const auto result = init({"--recipe", "cpu-tiny", "--sites", "a,b", "--data",
                            (site / "corpus.txt").string(), "--out", file.string()});
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_FALSE(fs::exists(site / "certs")) << "loopback alone needs none";
  const auto experiment = loaded_from(file);
  EXPECT_EQ(app::worker_names(experiment), (Words{"a", "b"}));
  EXPECT_EQ(experiment.network.coordinator, "127.0.0.1:7000");
  // The doctor of this program knows no trainer; each other check is made.
  const auto doctor = site.isthmus({"doctor", file.string(), "--set", "network.coordinator=127.0.0.1:0",
                                    "--set", "run.out=" + (site / "runs").string(),
                                    // The recipe is for 18 MB of text.
                                    "--set", "run.steps=10", "--set", "run.eval_sequences=16"});
  EXPECT_THAT(doctor.output, AllOf(HasSubstr("config        ok"), HasSubstr("names         ok"),
                                   HasSubstr("data          ok")))
      << doctor.report();
}

TEST_F(Init, MakesCertificatesOnOneMachineIfAsked) {
  const auto result = init(
      {"--recipe", "cpu-tiny", "--sites", "a,b", "--data", "corpus.txt", "--certs", "--out", file.string()});
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_EQ(outer_sync::tls::certificate_state(site / "certs/cpu-tiny/b").name, "b");
}

TEST_F(Init, NamesTheFlagThatIsMissing) {
  expect_refused(init({"--out", file.string()}), "--recipe is missing");
  expect_refused(init({"--out", file.string(), "--recipe", "llama-1b"}), "--sites is missing");
  expect_refused(init({"--out", file.string(), "--recipe", "llama-1b", "--sites", "a,b"}),
                 "--data is missing");
  expect_refused(init({"--out", file.string(), "--recipe", "llama-1b", "--sites", "a=x,b=y", "--data", "d"}),
                 "--coordinator is missing");
}

TEST_F(Init, PrintsOneDocument) {
  const auto result = two_sites({"--json"});
  ASSERT_EQ(result.status, 0) << result.report();
  const auto json = nlohmann::json::parse(result.output.substr(result.output.find("{\n")));
  EXPECT_EQ(json["file"], file.string());
  EXPECT_EQ(json["next"].size(), 3U);
}

TEST_F(Init, AsksInATerminal) {
  // `script` gives the program a terminal. The third answer is refused and asked for again.
  const auto command = std::string(PROGRAM_UNDER_TEST) + " init --out asked.yaml";
  const auto result = run_command(
      {"/bin/bash", "-c",
       "cd '" + (site / "").string() + "' && printf 'cpu-tiny\\n\\n-x\\na,b\\n\\n' | script -qec '" +
           command + "' /dev/null"},
      site / "terminal.log");
  EXPECT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("recipe, one of"), HasSubstr("a site is named '-x'"),
                                   HasSubstr("[corpus.txt]"), HasSubstr("isthmus launch asked.yaml")));
  EXPECT_EQ(loaded_from(site / "asked.yaml").run.name, "cpu-tiny");
}

struct Hostile {
  std::string flag, value, words;
};

TEST_F(Init, RefusesHostileValues) {
  const std::string long_name(65, 'n');
  const std::vector<Hostile> all = {
      {"--sites", "eu=-oProxyCommand=sh", "ssh target of eu is '-oProxyCommand=sh'"},
      {"--sites", "eu=me@-oProxyCommand=sh", "not beginning with '-'"},
      {"--sites", "eu=me@eu example", "expected USER@HOST"},
      {"--sites", "eu=me@eu\nevil: 1", "expected USER@HOST"},
      {"--sites", "eu=", "expected USER@HOST"},
      {"--sites", "eu=ssh://eu.example", "expected USER@HOST"},
      {"--sites", "eu=me@eu.example:22", "sites.eu.launch.port"},
      {"--sites", "eu=me@eu.example:70000", "from 1024 to 65535"},
      {"--sites", "eu=me@eu.example:", "the port of eu is ''"},
      {"--sites", "eu=me@[2001:db8::1]:x", "the port of eu is 'x'"},
      {"--sites", "eu=a@h:7101,us=b@h:7101", "eu and us are both at h:7101; give each a port of its own"},
      {"--sites", "eu=me@home.example:7000", "where the worker of eu listens; give one of them another port"},
      {"--sites", "eu=a,eu=b", "--sites has the site eu twice"},
      {"--sites", "eu=a,", "a site is named ''"},
      {"--sites", "../eu=a", "a site is named '../eu'"},
      {"--sites", "e.u=a", "beginning with a letter"},
      {"--sites", long_name + "=a", "expected up to 48 letters"},
      {"--sites", "coordinator=a", "reserved for the run's own files"},
      {"--sites", "operator-2=a", "another certificate"},
      {"--sites", "watch=a", "another certificate"},
      {"--name", long_name, "expected up to 64 letters"},
      {"--name", "../up", "it names a folder"},
      {"--data", "a\nb", "--data is 'a?b'"},
      {"--coordinator", "home.example", "--coordinator is 'home.example'; expected HOST:PORT"},
      {"--coordinator", "home.example:0", "a port other than 0"},
      {"--coordinator", "127.0.0.1:7000", "other machines cannot reach"},
      {"--coordinator", "0.0.0.0:7000", "other machines cannot reach"},
      {"--recipe", "gpt9", "expected one of gpt2-124m, llama-350m, llama-1b, cpu-tiny"},
  };
  for (const auto& [flag, value, expected] : all) {
    Words words = {"--out", file.string()};
    for (const auto& [name, usual] : {std::pair<std::string, std::string>{"--recipe", "cpu-tiny"},
                                      {"--sites", "eu=me@eu.example"},
                                      {"--data", "corpus"},
                                      {"--coordinator", "home.example:7000"}})
      if (name != flag) words.insert(words.end(), {name, usual});
    words.push_back(flag + "=" + value);
    expect_refused(init(words), expected);
    EXPECT_FALSE(fs::exists(site / "certs")) << value;
  }
}

TEST(NewConfig, QuotesWhatYamlWouldRead) {
  for (const std::string data :
       {"/a: b/c # d", "~", "null", "{x: y}", "*a", "'", "\"", "a\\b", "1e3", " lead", "é", "\xff"}) {
    const app::NewRun run{.recipe = app::recipes().front(),
                          .name = "on",
                          .sites = app::parse_new_sites("no=me@a.example,on=b.example"),
                          .data = data,
                          .coordinator = "[2001:db8::1]:7000",
                          .certs = "certs/on: x"};
    const auto source = config::Source::from_text(app::new_config(run), "test");
    for (const auto* key : {"data.path", "sites.no.data.path", "sites.on.data.path"}) {
      ASSERT_NE(source.find(key), nullptr) << data;
      EXPECT_THAT(source.find(key)->values, ::testing::ElementsAre(data));
    }
  }
}

TEST(NewConfig, SharesTheTotalBatchAndThePortsOfAHost) {
  const app::NewRun run{.recipe = app::recipe_named("gpt2-124m"),
                        .name = "four",
                        .sites = app::parse_new_sites("a=x@h.example,b=y@h.example,c=2001:db8::2,d"),
                        .data = "/data",
                        .coordinator = "home.example:7000",
                        .certs = "certs/four"};
  const auto text = app::new_config(run);
  const auto experiment =
      app::load_experiment(config::Source::from_text(text, "test"), {}, std::nullopt, app::Purpose::training);
  EXPECT_EQ(experiment.replicas, 4);
  EXPECT_EQ(experiment.inner.batch, 128);
  EXPECT_THAT(text, AllOf(HasSubstr("h.example:7001"), HasSubstr("h.example:7002"),
                          HasSubstr("\"[2001:db8::2]:7001\""), HasSubstr("listen: \"[::]:7001\""),
                          HasSubstr("advertise: home.example:7001")));
}

TEST(NewConfig, ASiteMayNameItsPortAndTheOthersOfItsHostGetOtherOnes) {
  const app::NewRun run{
      .recipe = app::recipe_named("gpt2-124m"),
      .name = "ports",
      .sites = app::parse_new_sites("a=x@h.example,b=y@h.example:7001,c=[2001:db8::2]:7101,d=gpu-box:7101"),
      .data = "/data",
      .coordinator = "home.example:7000",
      .certs = "certs/ports"};
  const auto text = app::new_config(run);
  const auto source = config::Source::from_text(text, "test");
  for (const auto& [site, ssh, address] :
       std::vector<std::array<std::string, 3>>{{"a", "x@h.example", "h.example:7002"},
                                               {"b", "y@h.example", "h.example:7001"},
                                               {"c", "[2001:db8::2]", "[2001:db8::2]:7101"},
                                               {"d", "gpu-box", "gpu-box:7101"}}) {
    EXPECT_THAT(source.find("sites." + site + ".launch.ssh")->values, ElementsAre(ssh));
    EXPECT_THAT(source.find("sites." + site + ".network.advertise")->values, ElementsAre(address));
  }
  EXPECT_THAT(text, AllOf(HasSubstr("listen: \"0.0.0.0:7002\""), HasSubstr("listen: \"[::]:7101\"")));
}

TEST(NewConfig, LeavesTheCoordinatorsPortFree) {
  const app::NewRun run{.recipe = app::recipe_named("gpt2-124m"),
                        .name = "run",
                        .sites = app::parse_new_sites("here,there=me@h.example"),
                        .data = "/data",
                        .coordinator = "home.example:7001",
                        .certs = "certs/run"};
  EXPECT_THAT(app::new_config(run),
              AllOf(HasSubstr("advertise: home.example:7002"), HasSubstr("advertise: h.example:7001")));
}

TEST(NewConfig, FitsEveryRecipeAndNumberOfSites) {
  for (const auto& recipe : app::recipes()) {
    for (const auto* sites : {"a", "a,b", "a,b,c", "a,b,c,d,e,f,g"}) {
      const app::NewRun run{.recipe = recipe,
                            .name = "run",
                            .sites = app::parse_new_sites(sites),
                            .data = app::data_of(recipe),
                            .coordinator = std::string(app::local_coordinator),
                            .certs = {}};
      EXPECT_THAT(app::new_config(run), Not(HasSubstr(".example"))) << recipe.name;
    }
  }
}

}  // namespace
}  // namespace isthmus
