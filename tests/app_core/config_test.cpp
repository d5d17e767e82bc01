// Configs: settings are chosen by a step of their own, and keys and verbs of earlier releases name their
// replacements.

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/outer_method.h"
#include "plan/choose.h"
#include "plan/plan.h"
#include "run/experiment/current_names.h"
#include "run/experiment/experiment.h"
#include "site.h"

namespace isthmus {
namespace {

using app::load_and_choose;
using app::load_experiment;
using app::Purpose;
using config::Source;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string with_auto = R"(
run: {steps: 1000}
model: {layers: 4, dim: 64, heads: 4}
outer.auto: {utilization: .95, step_time: 20ms}
network.emulate: {rate: 20Mbps, rtt: 20ms}
sites:
  eu: {inner.batch: 2}
  us: {inner.batch: 4, network.emulate.rate: 5Mbps}
)";

Source source_of(const std::string& text) { return Source::from_text(text, "test.yaml"); }

app::Experiment loaded(const std::string& text, const std::vector<std::string>& assignments = {}) {
  return load_experiment(source_of(text), assignments, std::nullopt, Purpose::own_data);
}

std::string problem_of(const std::string& text, const std::vector<std::string>& assignments = {}) {
  try {
    (void)loaded(text, assignments);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "accepted";
}

std::string values_of(app::Experiment experiment) { return app::to_yaml(experiment); }

TEST(Loading, ValPathIsRelativeToTheFileThatSetsIt) {
  const auto at = [](const std::string& value) {
    auto source = Source::from_text("data: {path: train.bin}", "test.yaml");
    source.put({"data.val_path", {value}, false, false, "sites.yaml", "/there"});
    return load_experiment(std::move(source), {}, std::nullopt, Purpose::training).data.val_path;
  };
  EXPECT_EQ(at("val.bin"), "/there/val.bin");
  EXPECT_EQ(at("/data/val.bin"), "/data/val.bin");
  try {
    ADD_FAILURE() << at("tcp://host:1");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.val_path is tcp://host:1, a stream"));
  }
}

TEST(Presets, SetWhatTrainsTheModelUnlessTheConfigDoes) {
  const auto gpt2 = loaded("{run.steps: 20000, model.preset: gpt2-124m}");
  EXPECT_EQ(gpt2.inner.lr, 6e-4);
  EXPECT_EQ(gpt2.inner.warmup_steps, 715);
  EXPECT_EQ(gpt2.inner.batch, 256);
  EXPECT_EQ(gpt2.data.seq_len, 1024);
  EXPECT_EQ(gpt2.trainer.micro_batch, 16);
  EXPECT_EQ(loaded("{run.steps: 2000, model.preset: gpt2-124m}").inner.warmup_steps, 100);

  const auto own =
      loaded("{inner: {lr: 1e-3, batch: 8}, data.seq_len: 512, trainer.micro_batch: 0, model.preset: 35M}");
  EXPECT_EQ(own.inner.lr, 1e-3);
  EXPECT_EQ(own.inner.batch, 8);
  EXPECT_EQ(own.data.seq_len, 512);
  EXPECT_EQ(own.trainer.micro_batch, 0);
  EXPECT_EQ(values_of(loaded(values_of(own))), values_of(own));
}

TEST(Presets, AtASiteLeaveWhatTheSiteSets) {
  auto site =
      load_experiment(source_of("{model.preset: 35M, sites: {eu: {inner.batch: 4}, us: {replicas: 1}}}"), {},
                      app::WorkerPlace{"eu-1", "eu"}, Purpose::own_data);
  EXPECT_EQ(site.inner.batch, 4);
  EXPECT_EQ(site.inner.lr, 6e-4);
}

TEST(Choosing, LoadingAConfigChoosesNothing) {
  const auto plain = loaded(with_auto);
  EXPECT_TRUE(plain.automatic.at_start);
  EXPECT_EQ(plain.outer.sync_every, outer_sync::OuterConfig{}.sync_every);
  EXPECT_EQ(plain.outer.codec, outer_sync::OuterConfig{}.codec);
}

TEST(Planning, ComparesAllOtherMethods) {
  app::PlanRequest request;
  request.experiment =
      loaded("{run.steps: 1000, network.emulate: {rate: 20Mbps, rtt: 20ms}, outer.method: diloco}");
  request.params = "2M";
  request.step_time = "20ms";
  const auto plan = app::plan_json(request, app::plan_input(request));
  std::vector<std::string> methods{plan["configured"]["method"]};
  for (const auto& row : plan["methods"]) methods.push_back(row["method"]);
  EXPECT_THAT(methods, ::testing::UnorderedElementsAreArray(outer_sync::method_names()));
}

TEST(Choosing, AllWorkersOfARunChooseAlikeAndSayWhy) {
  const auto all = load_and_choose(source_of(with_auto), {}, std::nullopt, Purpose::own_data);
  EXPECT_FALSE(all.experiment.automatic.at_start);
  EXPECT_THAT(all.chosen, HasSubstr("outer.auto: sync_every "));
  for (const auto* worker : {"eu", "us"}) {
    const auto one =
        load_and_choose(source_of(with_auto), {}, app::WorkerPlace{worker, {}}, Purpose::own_data);
    EXPECT_EQ(one.chosen, all.chosen) << worker;
    EXPECT_EQ(one.experiment.outer.sync_every, all.experiment.outer.sync_every) << worker;
    EXPECT_EQ(one.experiment.outer.sync_delay, all.experiment.outer.sync_delay) << worker;
    EXPECT_EQ(one.experiment.outer.num_fragments, all.experiment.outer.num_fragments) << worker;
    EXPECT_EQ(one.experiment.outer.codec, all.experiment.outer.codec) << worker;
  }
}

TEST(Choosing, AResumedRunKeepsWhatItsFolderHas) {
  auto first = load_and_choose(source_of(with_auto), {}, std::nullopt, Purpose::own_data);
  const auto folder = app::to_yaml(first.experiment);
  const auto again =
      load_and_choose(source_of(folder), {"network.emulate.rate=1kbps"}, std::nullopt, Purpose::own_data);
  EXPECT_THAT(again.chosen, IsEmpty());
  EXPECT_EQ(again.experiment.outer.sync_every, first.experiment.outer.sync_every);
}

TEST(Choosing, IsForOneMethodAlone) {
  try {
    (void)load_and_choose(source_of(with_auto), {"outer.method=diloco"}, std::nullopt, Purpose::own_data);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("outer.method is diloco; expected streaming_diloco"));
  }
}

TEST(Audits, NeedALogAndStepsThatCanBeRunAgain) {
  const auto problem = [](const std::string& more) { return problem_of("run.audit: true\n" + more); };
  EXPECT_THAT(problem(""), HasSubstr("run.audit is true and outer.log is empty; expected a folder"));
  EXPECT_THAT(problem("outer: {log: log, method: data_parallel}\n"),
              HasSubstr("data-parallel runs have no rounds"));
  EXPECT_THAT(problem("outer.log: log\nworker.command: [python, train.py]\n"),
              HasSubstr("worker.command is set"));
  EXPECT_THAT(problem("outer.log: log\ndata.path: '-'\n"), HasSubstr("data.path is a stream"));
  EXPECT_EQ(problem("outer.log: log\n"), "accepted");
}

TEST(SharedSequences, NeedTheRanksOfThisProgram) {
  const std::string shared = "replica: {ranks: 2, ranks_per_sequence: 2}\n";
  EXPECT_EQ(problem_of(shared), "accepted");
  EXPECT_THAT(problem_of(shared + "worker.command: [python, train.py]\n"),
              HasSubstr("worker.command is set"));
}

TEST(RemovedKeys, OfAnOldRunAreReadIfTheyHaveTheirDefaults) {
  const std::string old =
      "run.gather: true\ndata: {source: files}\nouter.auto: {in_run: true, least_between: 1min}\n";
  EXPECT_EQ(values_of(loaded(old)), values_of(loaded("")));
}

TEST(RemovedKeys, NameTheirReplacement) {
  EXPECT_THAT(problem_of("a: 1\n"), HasSubstr("test.yaml:1"));
  EXPECT_THAT(problem_of("\nrun: {gather: false}\n"),
              AllOf(HasSubstr("test.yaml:2"),
                    HasSubstr("run.gather was removed: run.gather_limit: 0 copies nothing")));
  EXPECT_THAT(problem_of("outer.auto.least_between: 2s\n"), HasSubstr("it is now outer.auto.min_interval"));
  EXPECT_THAT(problem_of("outer.auto.in_run: false\n"), HasSubstr("outer.auto.min_interval: 0"));
  EXPECT_THAT(problem_of("", {"data.source=pipe"}), AllOf(HasSubstr("--set"), HasSubstr("data.path alone")));
  EXPECT_THAT(problem_of("data.source: [files]\n"), HasSubstr("data.path alone"));
  EXPECT_THAT(problem_of("sites: {eu: {run.gather: false}, us: {inner.batch: 2}}\n"),
              HasSubstr("run.gather_limit"));
}

TEST(Codecs, HaveANameOfEarlierReleasesToo) {
  auto experiment = loaded("outer: {codec: lloyd2, warmup_codec: lloyd3}\n");
  EXPECT_EQ(experiment.outer.codec, "2bit");
  EXPECT_EQ(experiment.outer.warmup_codec, "3bit");
  EXPECT_EQ(values_of(experiment), values_of(loaded("outer: {codec: 2bit}\n", {"outer.warmup_codec=3bit"})));
  EXPECT_THAT(values_of(experiment), HasSubstr("codec: 2bit\n"));
  EXPECT_THAT(problem_of("outer.codec: lloyd5\n"),
              HasSubstr("one of fp32, bf16, int8, int4, e3m0, 4bit, 3bit"));
}

TEST(Codecs, AreComparedByNamesThatNeverChange) {
  auto experiment = loaded("outer.codec: 2bit\n");
  const auto shared = app::shared_items(experiment);
  EXPECT_THAT(shared, ::testing::Contains(::testing::Pair("outer.codec", "lloyd2")));
  EXPECT_THAT(shared, ::testing::Contains(::testing::Pair("outer.warmup_codec", "lloyd4")));
  EXPECT_EQ(app::fingerprint(experiment), app::fingerprint(loaded("outer.codec: lloyd2\n")));
  auto for_others = app::with_stored_names(experiment);
  EXPECT_THAT(app::to_yaml(for_others), HasSubstr("codec: lloyd2\n"))
      << "older builds know these names alone";
}

TEST(Aliases, StandForTheirKeys) {
  auto aliased = loaded(
      "run: {max_steps: 500, save_total_limit: 5}\nouter.sync_period: 40\n"
      "model: {num_hidden_layers: 2, hidden_size: 64}\n",
      {"inner.max_grad_norm=0.5"});
  const auto plain = loaded(
      "run: {steps: 500, keep_checkpoints: 5}\nouter.sync_every: 40\n"
      "model: {layers: 2, dim: 64}\ninner.clip: 0.5\n");
  EXPECT_EQ(values_of(aliased), values_of(plain));
  EXPECT_THAT(
      values_of(loaded("sites: {eu: {trainer.gradient_checkpointing: true}, us: {inner.batch: 2}}\n")),
      HasSubstr("activation_checkpointing: true"));
}

TEST(Aliases, AreNamesOfKeysThatExistAndNoKeysThemselves) {
  app::Experiment experiment;
  std::vector<std::string> keys;
  for (const auto& item : config::list(experiment)) keys.push_back(item.key);
  for (const auto& [alias, key] : app::key_aliases()) {
    EXPECT_THAT(keys, ::testing::Contains(std::string(key))) << alias;
    EXPECT_THAT(keys, ::testing::Not(::testing::Contains(std::string(alias)))) << alias;
  }
}

TEST(Aliases, WithTheirKeyAreRefusedWithBothPlaces) {
  EXPECT_THAT(problem_of("run.steps: 5\nrun.max_steps: 6\n"),
              AllOf(HasSubstr("run.max_steps (test.yaml:2)"), HasSubstr("run.steps (test.yaml:1)"),
                    HasSubstr("two names of one key")));
  EXPECT_THAT(problem_of("outer: {sync_steps: 5, sync_period: 6}\n"), HasSubstr("two names of one key"));
  EXPECT_EQ(loaded("run.steps: 5\n", {"run.max_steps=6"}).run.steps, 6) << "--set overrides a file";
  EXPECT_EQ(loaded("run.max_steps: 5\n", {"run.steps=6"}).run.steps, 6);
}

TEST(Aliases, AreSuggestedToo) {
  EXPECT_THAT(
      problem_of("inner.max_grad_nrm: 1\n"),
      HasSubstr("unknown key inner.max_grad_nrm (test.yaml:1); did you mean inner.max_grad_norm, which is "
                "inner.clip here?"));
  EXPECT_THAT(problem_of("inner.clp: 1\n"), HasSubstr("did you mean inner.clip?"));
}

TEST(Silence, IsTheSitesOwnOrThatOfAll) {
  const std::string two =
      "launch.silence: 1h\nsites: {eu: {launch: {silence: 3s, folder: /runs}}, us: {inner.batch: 2}}\n";
  auto experiment = loaded(two);
  EXPECT_EQ(experiment.sites[0].silence.seconds, 3);
  EXPECT_EQ(experiment.sites[1].silence.seconds, 3600);
  auto again = loaded(app::to_yaml(experiment));
  EXPECT_EQ(app::to_yaml(again), app::to_yaml(experiment));
  EXPECT_EQ(again.sites[0].silence.seconds, 3);
  EXPECT_THAT(problem_of("sites: {eu: {launch: {silnce: 3s}}, us: {inner.batch: 2}}\n"),
              HasSubstr("unknown key launch.silnce"));
}

TEST(RemovedVerbs, NameTheirReplacement) {
  Site site;
  for (const auto& [words, now] :
       {std::pair(Words{"config", "explain", "run.steps"}, "isthmus config --explain KEY"),
        {Words{"config", "diff", "a.yaml", "b.yaml"}, "isthmus config A --diff B"},
        {Words{"trace", "summary", "trace.json"}, "isthmus trace FILE"}}) {
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(now));
  }
  const auto explained = site.isthmus({"config", "--explain", "run.gather"});
  EXPECT_EQ(explained.status, 2) << explained.report();
  EXPECT_THAT(explained.output, HasSubstr("run.gather_limit"));
}

}  // namespace
}  // namespace isthmus
