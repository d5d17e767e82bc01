#include "cli/files/data_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "coordinator/ledger.h"
#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "isthmus/base/time.h"
#include "isthmus/data/tokenize.h"
#include "isthmus/data/tune.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"
#include "run/output/terminal.h"
#include "run/process/signals.h"

namespace isthmus::app {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double as_double(std::uint64_t number) { return static_cast<double>(number); }

std::string byte_rate(double bytes, double seconds) {
  return format_bytes(bytes / std::max(seconds, 1e-9)) + "/s";
}

std::string_view codec_name(const data::StoreSpec& spec) {
  return data::store_codec_names[static_cast<std::size_t>(spec.codec)];
}

std::string codec_of(const data::StoreSpec& spec) {
  return spec.codec == data::StoreCodec::none ? "none" : fmt::format("{} {}", codec_name(spec), spec.level);
}

/// How many times smaller the store is than plain ids of 2 or 4 bytes.
double ratio_of(const data::StoreInfo& info) {
  return as_double(info.tokens * info.spec.width()) / as_double(std::max<std::uint64_t>(1, info.data_bytes));
}

/// Exiting at any time is safe: the store on disk is complete up to the last commit.
void stop_now(int signal, int /*count*/) {
  std::fputs("\nisthmus: interrupted; run the same command again to continue\n", stderr);
  _exit(128 + signal);
}

class TokenizeProgressLine {
 public:
  void show(const data::TokenizeProgress& now) {
    if (!began_) {
      began_ = Clock::now();
      first_ = now.source_bytes;
    }
    const auto seconds = seconds_since(*began_);
    const auto done = as_double(now.source_bytes - first_), speed = done / std::max(seconds, 1e-9);
    const bool known = now.all_source_bytes > 0;
    auto text = format_bytes(as_double(now.source_bytes));
    if (known) text += " of " + format_bytes(as_double(now.all_source_bytes));
    text += fmt::format(", {} ids", format_count(as_double(now.tokens)));
    if (seconds > 0.2) {
      text += ", " + format_bytes(speed) + "/s";
      if (known && speed > 0)
        text += ", ETA " + format_duration(as_double(now.all_source_bytes - now.source_bytes) / speed);
    }
    progress_.update(
        format_bar(known ? as_double(now.source_bytes) / as_double(now.all_source_bytes) : -1, text));
  }
  void finish() { progress_.finish(); }

 private:
  Progress progress_{stdout, is_terminal(stdout)};
  std::optional<Clock::time_point> began_;
  std::uint64_t first_ = 0;
};

void print_info(const data::StoreInfo& info) {
  fmt::print("ids        {} in {} documents, {} of text\n", info.tokens, info.documents,
             format_bytes(as_double(info.source.bytes)));
  if (info.source.empty + info.source.skipped > 0)
    fmt::print("left out   {} empty and {} bad documents\n", info.source.empty, info.source.skipped);
  constexpr std::size_t margin = 11;
  fmt::print(
      "{}",
      in_lines(fmt::format("stored     {}, {} blocks of {} ids, {}: {:.2f} times smaller than ids of "
                           "{} bytes",
                           format_bytes(as_double(info.data_bytes)), info.blocks(), info.spec.block_tokens,
                           codec_of(info.spec), ratio_of(info), info.spec.width()),
               margin));
  fmt::print("tokenizer  {} ids, separator {}, fingerprint {}\n", info.spec.vocab_size, info.spec.separator,
             info.spec.tokenizer.hex().substr(0, 16));
  fmt::print("contents   fingerprint {}\n", info.fingerprint.hex().substr(0, 16));
}

Json store_json(const data::StoreInfo& info) {
  return {{"tokens", info.tokens},
          {"documents", info.documents},
          {"source_bytes", info.source.bytes},
          {"empty_documents", info.source.empty},
          {"skipped_documents", info.source.skipped},
          {"stored_bytes", info.data_bytes},
          {"blocks", info.blocks()},
          {"block_tokens", info.spec.block_tokens},
          {"codec", codec_of(info.spec)},
          {"width", info.spec.width()},
          {"vocab_size", info.spec.vocab_size},
          {"separator", info.spec.separator},
          {"tokenizer", info.spec.tokenizer.hex()},
          {"fingerprint", info.fingerprint.hex()}};
}

struct TokenizeFlags {
  data::TokenizeOptions options;
  std::string codec = "zstd", on_bad = "fail";
  bool jsonl = false, text = false;  ///< format of standard input
  bool json = false;
};

int run_tokenize_verb(const TokenizeFlags& flags) {
  JsonOutput json(flags.json);
  auto options = flags.options;
  options.codec = data::store_codec(flags.codec);
  options.skip_bad = flags.on_bad == "skip";
  if (flags.jsonl) options.standard_input = data::DocumentFormat::jsonl;
  if (flags.text) options.standard_input = data::DocumentFormat::text;
  const SignalThread signals(stop_now);
  TokenizeProgressLine line;
  const auto report = data::tokenize(options, [&](const data::TokenizeProgress& now) { line.show(now); });
  line.finish();
  for (const auto& message : report.bad) say_error("skipped: " + message);
  if (report.info.source.skipped > report.bad.size())
    say_error(fmt::format("skipped: {} documents in all", report.info.source.skipped));
  const auto folder = options.out.string();
  if (report.resumed_at == report.info.tokens) {
    fmt::print("{}: was already complete\n", folder);
  } else {
    fmt::print("{}: {} in {}, {}", folder, format_bytes(as_double(report.bytes_read)),
               format_duration(report.seconds), byte_rate(as_double(report.bytes_read), report.seconds));
    fmt::print("{}\n", report.resumed_at > 0
                           ? fmt::format(", continued after {} ids of an earlier run", report.resumed_at)
                           : "");
  }
  print_info(report.info);
  json.print({{"folder", folder},
              {"seconds", report.seconds},
              {"bytes_read", report.bytes_read},
              {"tokens_before", report.resumed_at},
              {"store", store_json(report.info)}});
  return 0;
}

struct TuneFlags {
  data::TuneOptions options;
  std::uint64_t sample_megabytes = 8;
  bool json = false;
};

int run_tune_verb(const TuneFlags& flags) {
  JsonOutput json(flags.json);
  Progress progress(stdout, is_terminal(stdout));
  auto options = flags.options;
  options.sample_bytes = flags.sample_megabytes * 1'000'000;
  const auto report = data::tune(options, [&](double done) {
    progress.update(format_bar(done, fmt::format("{:.0f} % measured", 100 * done)));
  });
  progress.finish();
  fmt::print("{} ids sampled; rates in MB/s of ids of {} bytes, with one thread\n\n", report.sampled_tokens,
             report.width);
  fmt::print("{:>8} {:8} {:>7} {:>9} {:>11} {:>10}\n", "block", "codec", "ratio", "compress", "decompress",
             "disk");
  auto rows = Json::array();
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const auto& row = report.rows[i];
    rows.push_back({{"block_tokens", row.spec.block_tokens},
                    {"codec", codec_of(row.spec)},
                    {"ratio", row.ratio},
                    {"compress_bytes_per_second", row.compress},
                    {"decompress_bytes_per_second", row.decompress},
                    {"disk_bytes_per_second", row.disk()}});
    fmt::print("{:>8} {:8} {:>7.2f} {:>9.0f} {:>11.0f} {:>10.0f}{}\n", row.spec.block_tokens,
               codec_of(row.spec), row.ratio, row.compress / 1e6, row.decompress / 1e6, row.disk() / 1e6,
               i == report.choice ? "  <" : "");
  }
  const auto& spec = report.rows[report.choice].spec;
  fmt::print("\ndisk: read rate that keeps one decompressing thread busy\n");
  fmt::print("choice: --block {} --codec {}{}\n{}", spec.block_tokens, codec_name(spec),
             spec.codec == data::StoreCodec::none ? "" : fmt::format(" --level {}", spec.level),
             in_lines("  " + report.reason, 2));
  json.print({{"sampled_tokens", report.sampled_tokens},
              {"rows", rows},
              {"choice", rows[report.choice]},
              {"reason", report.reason}});
  return 0;
}

struct ShowFlags {
  std::filesystem::path folder;
  bool verify = false, json = false;
};

int run_show_verb(const ShowFlags& flags) {
  JsonOutput json(flags.json);
  const auto info = data::store_info(flags.folder);
  auto shown = store_json(info);
  print_info(info);
  if (!flags.verify) {
    json.print(shown);
    return 0;
  }
  Progress progress(stdout, is_terminal(stdout));
  std::uint64_t bad = 0;
  data::verify_store(
      flags.folder,
      [&](const std::string& message) {
        ++bad;
        progress.message(message);
      },
      [&](std::uint64_t blocks) {
        progress.update(format_bar(as_double(blocks) / as_double(info.blocks()),
                                   fmt::format("{} of {} blocks read", blocks, info.blocks())));
      });
  progress.finish();
  if (bad > 0) {
    throw Error(ErrorKind::data,
                fmt::format("{}: {} of {} blocks are damaged", flags.folder.string(), bad, info.blocks()));
  }
  fmt::print("verified: the checksums of all {} blocks match\n", info.blocks());
  shown["verified"] = true;
  json.print(shown);
  return 0;
}

void add_tokenize(CommandLine& commands, CLI::App& data) {
  const auto flags = std::make_shared<TokenizeFlags>();
  auto& options = flags->options;
  auto* verb =
      data.add_subcommand("tokenize", "build a token store from text; rerun the same command to continue");
  verb->add_option("sources", options.sources,
                   "text files, folders of them, .jsonl files, or - (standard input)")
      ->required();
  verb->add_option("--out", options.out, "folder of the store to create")->required();
  verb->add_option("--tokenizer", options.tokenizer, "tokenizer: bytes, or a tokenizer file")->required();
  verb->add_option("--codec", flags->codec, "zstd, lz4 or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"zstd", "lz4", "none"}));
  verb->add_option("--level", options.level, "compression level: zstd -7 to 19, lz4 1 or 3 to 12")
      ->capture_default_str();
  verb->add_option("--block", options.block_tokens, "ids in a block")
      ->capture_default_str()
      ->check(CLI::Range(data::min_block_tokens, data::max_block_tokens));
  verb->add_option("--threads", options.threads,
                   "threads that tokenise, and the same number that compress; 0: one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  verb->add_option("--text-field", options.text_field, "name of the text field in JSONL")
      ->capture_default_str();
  verb->add_option("--on-bad", flags->on_bad, "fail at a bad document, or skip and count it")
      ->capture_default_str()
      ->check(CLI::IsMember({"fail", "skip"}));
  auto* jsonl = verb->add_flag("--jsonl", flags->jsonl, "standard input is JSONL");
  verb->add_flag("--text", flags->text, "standard input is one document of text")->excludes(jsonl);
  verb->add_option("--commit-every", options.commit_every, "seconds")->group("");
  verb->footer("Example: isthmus data tokenize /data/text more.jsonl --out /data/store --tokenizer my.model");
  add_json(*verb, flags->json);
  commands.on(*verb, [flags] { return run_tokenize_verb(*flags); });
}

void add_tune(CommandLine& commands, CLI::App& data) {
  const auto flags = std::make_shared<TuneFlags>();
  auto& options = flags->options;
  auto* verb =
      data.add_subcommand("tune", "measure which block size and codec suit a corpus on this machine");
  verb->add_option("path", options.path, "a store, a .bin file, a Megatron data set, or text")->required();
  verb->add_option("--tokenizer", options.tokenizer, "tokenizer for text: bytes, or a tokenizer file")
      ->capture_default_str();
  verb->add_option("--text-field", options.text_field, "name of the text field in JSONL")
      ->capture_default_str();
  verb->add_option("--sample", flags->sample_megabytes, "MB of ids to measure with")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  verb->footer("Example: isthmus data tune /data/text --tokenizer my.model");
  add_json(*verb, flags->json);
  commands.on(*verb, [flags] { return run_tune_verb(*flags); });
}

void add_show(CommandLine& commands, CLI::App& data) {
  const auto flags = std::make_shared<ShowFlags>();
  auto* verb = data.add_subcommand("show", "show what a store holds");
  verb->add_option("folder", flags->folder, "folder of the store")->required();
  verb->add_flag("--verify", flags->verify, "read all of it and check every checksum");
  verb->footer("Example: isthmus data show /data/store --verify");
  add_json(*verb, flags->json);
  commands.on(*verb, [flags] { return run_show_verb(*flags); });
}

void add_ledger(CommandLine& commands, CLI::App& data) {
  struct Flags {
    std::filesystem::path run;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  auto* verb =
      data.add_subcommand("ledger", "report which sequences a run trained on, and which twice or never");
  verb->add_option("run", flags->run, "folder of the run")->required();
  verb->footer("Example: isthmus data ledger runs/my-run");
  add_json(*verb, flags->json);
  commands.on(*verb, [flags] {
    JsonOutput json(flags->json);
    const auto report = ledger_report(flags->run);
    fmt::print("{}", report.text);
    json.print(report.json);
    return 0;
  });
}

}  // namespace

void add_data(CommandLine& commands) {
  auto* verb =
      commands.app().add_subcommand("data", "make and inspect chunk stores: token ids in compressed blocks");
  verb->require_subcommand(1);
  add_tokenize(commands, *verb);
  add_tune(commands, *verb);
  add_show(commands, *verb);
  add_ledger(commands, *verb);
}

}  // namespace isthmus::app
