#include "cli/model_command.h"

#include <CLI/CLI.hpp>
#include <memory>

namespace isthmus::app {

void add_model_verbs(CommandLine& commands, const ModelVerbs& verbs) {
  const auto exported = std::make_shared<ExportRequest>();
  auto* verb = commands.app().add_subcommand("export", "write a run's model in Hugging Face's layout");
  verb->add_option("run", exported->run,
                   "folder of the run, also on the machine of its launch: the model then comes from the live "
                   "run, or from a site")
      ->required();
  verb->add_option("--out,--to", exported->to,
                   "output folder for config.json, model.safetensors and the tokenizer")
      ->required();
  verb->add_option("--dtype", exported->format.dtype, "type of the written values")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  verb->add_option(
      "--tokenizer", exported->format.tokenizer,
      "tokenizer.json or SentencePiece .model that made the data of a run with data.tokenizer vocab:N");
  verb->add_flag("--replace", exported->replace, "replace the model in --out, if `isthmus` wrote it");
  add_set(*verb, exported->assignments);
  add_json(*verb, exported->json);
  verb->footer("Example: isthmus export runs/quickstart --out quickstart-model");
  commands.on(*verb, [&commands, exported, run = verbs.write_model] {
    exported->build = commands.build();
    return run(*exported);
  });

  const auto evaluated = std::make_shared<EvalRequest>();
  verb =
      commands.app().add_subcommand("eval", "report loss, perplexity and bits per byte of a trained model");
  verb->add_option("model", evaluated->model, "folder of a run, or of a model in Hugging Face's layout")
      ->required();
  verb->add_option("--data", evaluated->data,
                   "text to evaluate, as in data.path; by default the run's held-out part");
  verb->add_option("--out", evaluated->out, "write the figures to this file as JSON");
  add_json(*verb, evaluated->json);
  add_set(*verb, evaluated->assignments);
  verb->footer("Example: isthmus eval runs/quickstart --data /data/other.txt");
  commands.on(*verb, [&commands, evaluated, run = verbs.evaluate] {
    evaluated->build = commands.build();
    return run(*evaluated);
  });

  const auto sampled = std::make_shared<SampleRequest>();
  auto& options = sampled->options;
  verb = commands.app().add_subcommand("sample", "generate text from a trained model");
  verb->add_option("model", sampled->model, "folder of a run, or of a model in Hugging Face's layout")
      ->required();
  verb->add_option("--prompt", sampled->prompt, "prompt text; by default the start of a document");
  verb->add_option("--tokens", options.tokens, "number of tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  verb->add_option("--temperature", options.temperature, "sampling temperature; 0 takes the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--seed", options.seed, "sampling seed")->capture_default_str();
  add_set(*verb, sampled->assignments);
  add_json(*verb, sampled->json);
  verb->footer("Example: isthmus sample runs/quickstart --prompt 'namespace at {'");
  commands.on(*verb, [&commands, sampled, run = verbs.sample] {
    sampled->build = commands.build();
    return run(*sampled);
  });
}

void add_audit(CommandLine& commands, const ModelVerbs& verbs) {
  const auto request = std::make_shared<AuditRequest>();
  auto* verb = commands.app().add_subcommand(
      "audit", "run steps of a run's members again, and check that they contributed what they should have");
  verb->add_option("run", request->run, "folder of the run with the audit records of its members")
      ->required();
  verb->add_option("--member", request->member, "only this member; by default any");
  auto* round =
      verb->add_option("--round", request->round, "the steps around this round, instead of random ones");
  verb->add_option("--fragment", request->fragment, "fragment of --round")
      ->capture_default_str()
      ->needs(round);
  verb->add_option("--sample", request->sample,
                   "share of the rounds to check, drawn at random; at least one interval")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->excludes(round);
  verb->add_option("--seed", request->seed,
                   "seed of the draw; by default a new one, which no member can foresee");
  verb->add_option("--log", request->log,
                   "folder of a round log of the run; by default another member's in outer.log");
  add_set(*verb, request->assignments);
  add_json(*verb, request->json);
  verb->footer("Example: isthmus audit runs/my --member eu --sample 0.05");
  commands.on(*verb, [&commands, request, run = verbs.audit] {
    request->build = commands.build();
    request->program = commands.program();
    return run(*request);
  });
}

void add_checks(CommandLine& commands, const ModelVerbs& verbs) {
  const auto request = std::make_shared<SelftestRequest>();
  auto* verb = commands.app().add_subcommand(
      "selftest", "check that codecs, training steps and ranks compute correctly on this machine");
  verb->add_option("--gpus", request->gpus, "GPUs to check, each also as a rank: all, or a number");
  verb->add_option("--ranks", request->ranks,
                   "number of ranks of the replica to check, on the CPU unless --gpus is given")
      ->check(CLI::Range(2, 64));
  add_json(*verb, request->json);
  verb->footer("Example: isthmus selftest --gpus all");
  commands.on(*verb, [&commands, request, run = verbs.selftest] {
    request->program = commands.program();
    return run(*request);
  });

  const auto rank = std::make_shared<RankRequest>();
  verb = commands.app().add_subcommand("rank", "one of the ranks of a replica")->group("");
  verb->add_option("--folder", rank->folder, "folder of the replica")->required();
  verb->add_option("--rank", rank->rank, "number of the rank")->required();
  verb->add_option("--socket", rank->socket,
                   "descriptor of the rank's socket; without, standard input and output");
  const auto silence = std::make_shared<std::int64_t>(rank->silence.count());
  verb->add_option("--silence", *silence, "seconds without an order after which the rank ends")
      ->check(CLI::Range(1, 86'400));
  commands.on(*verb, [&commands, rank, silence, run = verbs.rank] {
    rank->silence = std::chrono::seconds(*silence);
    rank->build = commands.build();
    return run(*rank);
  });
}

}  // namespace isthmus::app
