#include "cli/data_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "coordinator/ledger.h"
#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "run/output/json_output.h"
#include "run/process/signals.h"

namespace isthmus::app {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

bool terminal() { return isatty(STDOUT_FILENO) == 1; }

double as_double(std::uint64_t number) { return static_cast<double>(number); }

double elapsed_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string rate(double bytes, double seconds) {
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
    const auto seconds = elapsed_since(*began_);
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
  Progress progress_{stdout, terminal()};
  std::optional<Clock::time_point> began_;
  std::uint64_t first_ = 0;
};

void print_info(const data::StoreInfo& info) {
  fmt::print("ids        {} in {} documents, {} of text\n", info.tokens, info.documents,
             format_bytes(as_double(info.source.bytes)));
  if (info.source.empty + info.source.skipped > 0)
    fmt::print("left out   {} empty and {} bad documents\n", info.source.empty, info.source.skipped);
  fmt::print("stored     {}, {} blocks of {} ids, {}: {:.2f} times smaller than ids of {} bytes\n",
             format_bytes(as_double(info.data_bytes)), info.blocks(), info.spec.block_tokens,
             codec_of(info.spec), ratio_of(info), info.spec.width());
  fmt::print("tokenizer  {} ids, separator {}, fingerprint {}\n", info.spec.vocab_size, info.spec.separator,
             info.spec.tokenizer.hex().substr(0, 16));
  fmt::print("contents   fingerprint {}\n", info.fingerprint.hex().substr(0, 16));
}

Json document(const data::StoreInfo& info) {
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

}  // namespace

int run_data_tokenize(const DataRequest& request) {
  JsonOutput json(request.json);
  auto options = request.tokenize;
  options.codec = data::store_codec(request.codec);
  options.skip_bad = request.on_bad == "skip";
  if (request.jsonl) options.standard_input = data::DocumentFormat::jsonl;
  if (request.text) options.standard_input = data::DocumentFormat::text;
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
               format_duration(report.seconds), rate(as_double(report.bytes_read), report.seconds));
    fmt::print("{}\n", report.resumed_at > 0
                           ? fmt::format(", continued after {} ids of an earlier run", report.resumed_at)
                           : "");
  }
  print_info(report.info);
  json.print({{"folder", folder},
              {"seconds", report.seconds},
              {"bytes_read", report.bytes_read},
              {"tokens_before", report.resumed_at},
              {"store", document(report.info)}});
  return 0;
}

int run_data_tune(const DataRequest& request) {
  JsonOutput json(request.json);
  Progress progress(stdout, terminal());
  auto options = request.tune;
  options.sample_bytes = request.sample_megabytes * 1'000'000;
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
  fmt::print("choice: --block {} --codec {}{}\n  {}\n", spec.block_tokens, codec_name(spec),
             spec.codec == data::StoreCodec::none ? "" : fmt::format(" --level {}", spec.level),
             report.reason);
  json.print({{"sampled_tokens", report.sampled_tokens},
              {"rows", rows},
              {"choice", rows[report.choice]},
              {"reason", report.reason}});
  return 0;
}

int run_data_show(const DataRequest& request) {
  JsonOutput json(request.json);
  const auto info = data::store_info(request.folder);
  auto shown = document(info);
  print_info(info);
  if (!request.verify) {
    json.print(shown);
    return 0;
  }
  Progress progress(stdout, terminal());
  std::uint64_t bad = 0;
  data::verify_store(
      request.folder,
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
                fmt::format("{}: {} of {} blocks are damaged", request.folder.string(), bad, info.blocks()));
  }
  fmt::print("verified: the checksums of all {} blocks match\n", info.blocks());
  shown["verified"] = true;
  json.print(shown);
  return 0;
}

int run_data_ledger(const DataRequest& request) {
  JsonOutput json(request.json);
  const auto report = ledger_report(request.folder);
  fmt::print("{}", report.text);
  json.print(report.json);
  return 0;
}

}  // namespace isthmus::app
