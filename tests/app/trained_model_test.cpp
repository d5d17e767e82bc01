// `isthmus export`, `eval` and `sample`, and a run that starts with an exported model.

#include <cmath>
#include <filesystem>

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class TrainedModel : public ::testing::TestWithParam<std::string> {
 protected:
  /// The figures of `isthmus eval WORDS`.
  nlohmann::json figures(Words words) {
    words.insert(words.begin(), "eval");
    words.insert(words.end(), {"--out", (site_ / "eval.json").string()});
    const auto result = site_.isthmus(words);
    EXPECT_EQ(result.status, 0) << result.report();
    return nlohmann::json::parse(read_all(site_ / "eval.json"));
  }
  Words settings(Words more = {}) const {
    more.push_back("model.architecture=" + GetParam());
    return more;
  }
  std::string folder() const { return (site_ / "model").string(); }
  /// Adds the run's precision and device, which an exported folder does not hold.
  static Words as_the_run(Words words) {
    return with_settings(std::move(words), {"inner.precision=fp32", "device=cpu", "trainer.threads=1"});
  }

  Site site_;
};

TEST_P(TrainedModel, IsTheSameInTheRunAndExportedAndToBeginWith) {
  ASSERT_EQ(site_.launch(settings()).status, 0) << site_.logs();
  const auto run = site_.run().string();
  const auto text_file = site_.write("text.txt", read_all(site_ / "corpus.txt").substr(0, 20'000)).string();
  const auto exported = site_.isthmus({"export", run, "--out", folder()});
  ASSERT_EQ(exported.status, 0) << exported.report();
  EXPECT_THAT(exported.output, HasSubstr(GetParam() == "gpt2" ? "GPT2LMHeadModel" : "Qwen3ForCausalLM"));

  const double last = site_.summary()["final_eval_loss"].get<double>();
  const auto heldout = figures({run});
  EXPECT_NEAR(heldout["loss"].get<double>(), last, 1e-6) << "must equal the run's own evaluation";
  EXPECT_NEAR(heldout["bits_per_byte"].get<double>(), last / std::log(2.0), 1e-6) << "a token is one byte";
  const auto of_run = figures({run, "--data", text_file});
  const auto of_folder = figures(as_the_run({folder(), "--data", text_file}));
  EXPECT_EQ(of_run["tokens"], 20'000) << "all tokens but the first, plus the separator";
  EXPECT_NEAR(of_folder["loss"].get<double>(), of_run["loss"].get<double>(), 1e-6);
  EXPECT_NEAR(of_folder["perplexity"].get<double>(), std::exp(of_run["loss"].get<double>()), 1e-4);

  const auto text = [&](const std::string& model) {
    const auto result = site_.isthmus(
        as_the_run({"sample", model, "--prompt", "the river ", "--temperature", "0", "--tokens", "40"}));
    EXPECT_EQ(result.status, 0) << result.report();
    EXPECT_TRUE(result.output.starts_with("the river ")) << result.report();
    return result.output;
  };
  EXPECT_EQ(text(run), text(folder()));

  const auto again = site_.launch(
      settings({"trainer.init_from=" + folder(), "run.name=more", "run.steps=2", "outer.warmup_steps=1"}));
  ASSERT_EQ(again.status, 0) << again.report() << site_.logs();
  const auto summary = nlohmann::json::parse(read_all(site_ / "runs/more/summary.json"));
  EXPECT_NEAR(summary["initial_eval_loss"].get<double>(), last, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Architectures, TrainedModel, ::testing::Values("llama"),
                         [](const auto& architecture) { return architecture.param; });
INSTANTIATE_TEST_SUITE_P(LongArchitectures, TrainedModel, ::testing::Values("gpt2"),
                         [](const auto& architecture) { return architecture.param; });

/// The bytes of a text as uint16 ids, as in nanoGPT's .bin files.
std::string ids_of(const std::string& text) {
  std::string ids;
  for (const char byte : text) ids += {byte, '\0'};
  return ids;
}

TEST(TrainedOnNanogptsFolder, IsEvaluatedOnValBinAndExported) {
  Site site;
  const auto text = read_all(site / "corpus.txt");
  constexpr std::size_t held_out = 16 * 32 + 1;  // run.eval_sequences windows, which is all of it
  site.write("owt/train.bin", ids_of(text.substr(held_out)));
  const auto val = site.write("owt/val.bin", ids_of(text.substr(0, held_out))).string();
  site.write("owt/prepare.py", "print()");
  const auto launched = site.launch({"data.path=" + (site / "owt").string(), "data.tokenizer=vocab:256",
                                     "run.steps=4", "outer.warmup_steps=1"});
  ASSERT_EQ(launched.status, 0) << launched.report() << site.logs();
  const auto run = site.run().string();
  const auto of_val = site.isthmus({"eval", run, "--data", val, "--out", (site / "eval.json").string()});
  ASSERT_EQ(of_val.status, 0) << of_val.report();
  EXPECT_NEAR(nlohmann::json::parse(read_all(site / "eval.json"))["loss"].get<double>(),
              site.summary()["final_eval_loss"].get<double>(), 1e-6);
  const auto own = site.isthmus({"eval", run, "--set", "data.val_path=" + val});
  EXPECT_EQ(own.status, 0) << own.report();

  const auto to = (site / "model").string();
  const auto expect = [&](const Words& more, int status, const std::string& said) {
    Words words = {"export", run, "--out", to};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, status) << result.report();
    EXPECT_THAT(result.output, HasSubstr(said));
  };
  const auto weights = site / "model/model.safetensors";
  expect({}, 0, "no tokenizer: the run only knows the size of its vocabulary; --tokenizer FILE adds one");
  const auto size = std::filesystem::file_size(weights);
  expect({}, 2, "has files already; expected a new or empty folder, or --replace");
  expect({"--replace", "--dtype", "bf16"}, 0, "parameters in bf16");
  EXPECT_LT(std::filesystem::file_size(weights), size * 6 / 10);
  expect({"--replace", "--set", "data.tokenizer=bytes"}, 0, "tokenizer bytes");
  EXPECT_TRUE(std::filesystem::exists(site / "model/tokenizer.json"));
  expect({"--replace"}, 0, "no tokenizer");
  EXPECT_FALSE(std::filesystem::exists(site / "model/tokenizer.json")) << "of the replaced model";
  expect({"--replace", "--tokenizer", (site / "none.json").string()}, 2, "none.json: is not a file");
  expect({"--replace", "--set", "data.tokenizer=bytes", "--tokenizer", val}, 2, "has a tokenizer already");
  EXPECT_EQ(std::filesystem::file_size(weights), size) << "a refused export changes nothing";
  const auto notes = site.write("model/notes.txt", "mine");
  expect({"--replace"}, 2, "which holds notes.txt; expected");
  std::filesystem::remove(notes);
  std::filesystem::remove(site / "model/isthmus.json");
  expect({"--replace"}, 2, "expected a new or empty folder, or a folder that `isthmus export`");

  const auto both = site.isthmus({"eval", run, "--data", (site / "owt").string()});
  EXPECT_EQ(both.status, 2) << both.report();
  EXPECT_THAT(both.output, HasSubstr("has files for training and held-out ones"));
}

TEST(TrainedModelInput, IsRefusedByName) {
  Site site;
  const auto expect = [&](const Words& words, int status, const std::string& text) {
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, status) << result.report();
    EXPECT_THAT(result.output, HasSubstr(text));
  };
  const auto empty = site.write("empty/nothing", "").parent_path().string();
  expect({"eval", empty}, 3, "holds no model; expected the folder of a run");
  expect({"export", (site / "none").string(), "--out", (site / "new").string()}, 3, "holds no model");
  expect({"export", empty}, 2, "--out is required");
  expect({"export", empty, "--to", (site / "new").string()}, 3, "holds no model");  // an earlier spelling
  const auto other = site.write("other/config.json", R"({"model_type": "mamba"})").parent_path().string();
  expect({"sample", other}, 3, "config.json has model_type \"mamba\"; expected llama, qwen3 or gpt2");
  const auto launched = site.launch({"trainer.init_from=" + other});
  EXPECT_EQ(launched.status, 3) << launched.report();
  EXPECT_THAT(launched.output + site.logs(), HasSubstr("expected llama, qwen3 or gpt2"));
}

}  // namespace
}  // namespace isthmus
