#include "compare/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "compare/arms/comparison.h"
#include "compare/report/certificate.h"
#include "compare/report/page.h"
#include "compare/report/report.h"
#include "compare/runs/run_record.h"
#include "compare/runs/run_state.h"
#include "compare/runs/runner.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "run/output/json_output.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* mark = "comparison.json";

/// Marks the folder as that of this comparison. Throws Error(config) if it holds something else.
void claim_folder(const Comparison& comparison) {
  const auto file = comparison.folder / mark;
  const nlohmann::json own = {{"name", comparison.keys.name}, {"size", comparison.size}};
  if (!fs::exists(file)) {
    if (fs::exists(comparison.folder) && !fs::is_empty(comparison.folder))
      config_error(
          fmt::format("{} is not the folder of a comparison (it has no {}); "
                      "use another name, or --set out=FOLDER",
                      comparison.folder.string(), mark));
    make_private_folder(comparison.folder);  // private, so that no other user can hold its lock
    replace_file(file, own.dump() + "\n");
    return;
  }
  const auto there = nlohmann::json::parse(read_text(file), nullptr, false);
  if (there == own) return;
  config_error(
      fmt::format("{} is the folder of another comparison ({}); this one is {}. Use another name, or "
                  "--set out=FOLDER",
                  comparison.folder.string(), there.is_discarded() ? "damaged" : there.dump(), own.dump()));
}

/// A run that diverged may have no evaluation.
RunRecord read_finished(const RunPlan& run, const RunState& state) {
  RunRecord record;
  try {
    record = read_run(run);
  } catch (const Error&) {
    if (state.ended.how != "diverged") throw;
    record.seed = run.seed;
    record.source = run.folder();
  }
  record.ended = state.ended;
  return record;
}

Records read_records(const Comparison& comparison) {
  Records records;
  records.of_arm.resize(comparison.arms.size());
  for (const auto& run : comparison.runs) {
    const auto state = state_of(run);
    if (state.stage != RunState::Stage::finished) {
      records.missing.push_back(run.name());
      continue;
    }
    records.of_arm[run.arm].push_back(read_finished(run, state));
  }
  for (std::size_t i = 0; i < comparison.arms.size(); ++i)
    for (const auto& file : comparison.arms[i].curves) records.of_arm[i].push_back(read_curve(file));
  return records;
}

nlohmann::ordered_json write_report(const Comparison& comparison) {
  auto report = report_json(comparison, read_records(comparison));
  const auto text = report.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  replace_file(comparison.folder / "report.json", text + "\n");
  replace_file(comparison.folder / "runs.csv", runs_csv(report));
  replace_file(comparison.folder / "curves.csv", curves_csv(report));
  replace_file(comparison.folder / "report.html", report_page(report));
  return report;
}

}  // namespace

/// Checks runs and curves made elsewhere before hours of training, not after them.
void check_others(const Comparison& comparison) {
  for (const auto& arm : comparison.arms)
    for (const auto& file : arm.curves) static_cast<void>(read_curve(file));
  for (const auto& run : comparison.runs) {
    if (!run.is_read_only) continue;
    if (state_of(run).stage != RunState::Stage::finished)
      data_error(run.folder().string() +
                 " has a run that is not finished; expected a finished run "
                 "(`isthmus launch --resume` continues it)");
    static_cast<void>(read_run(run));
  }
}

int run_compare(const CompareRequest& request) {
  JsonOutput output(request.json);
  const auto load = request.certify ? load_certified : load_comparison;
  const auto comparison = load(request.file, request.size, request.assignments);
  check_others(comparison);
  const bool runs = std::ranges::any_of(comparison.arms, &Arm::is_run);
  if (runs && request.no_run && !fs::exists(comparison.folder / mark))
    data_error(comparison.folder.string() + " does not exist: nothing has been run yet");
  claim_folder(comparison);
  const FolderLock lock(comparison.folder);
  int status = 0;
  if (runs && !request.no_run) {
    if (!fs::exists(request.program.front()))
      config_error("cannot find " + request.program.front() +
                   ", which makes the runs; pass --no-run to report on the existing "
                   "runs");
    status = run_missing(comparison,
                         {.program = request.program, .jobs = request.jobs, .out = stdout, .finished = [&] {
                            write_report(comparison);
                          }});
  }
  const auto report = write_report(comparison);
  output.print(report);
  if (!request.json)
    fmt::print("\n{}\n{}\n", terminal_report(report), (comparison.folder / "report.html").string());
  std::fflush(stdout);
  if (status == 130) say_error("stopped; run the same command again to continue");
  if (status != 0 || !request.certify || report["certificate"]["passed"].get<bool>()) return status;
  say_error("not certified: " + certificate_summary(report["certificate"]));
  return exit_status(ErrorKind::divergence);
}

void add_compare(CommandLine& commands) {
  const auto request = std::make_shared<CompareRequest>();
  auto* verb = commands.app().add_subcommand(
      "compare", "run the arms of an experiment with several seeds and report which losses differ");
  verb->add_option("file", request->file,
                   "the comparison, in YAML: arms, seeds, budget; with --certify an experiment too")
      ->required();
  verb->add_option("--size", request->size, "which of the file's sizes to run; by default the first");
  verb->add_option("--jobs", request->jobs, "number of runs at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  verb->add_flag("--no-run", request->no_run, "run nothing; report on the existing runs");
  verb->add_flag(
      "--certify", request->certify,
      "judge the file's gates, or an experiment against its baselines; status 5 unless all passed");
  add_json(*verb, request->json);
  add_set(*verb, request->assignments);
  verb->footer("Example: isthmus compare configs/compare/ladder.yaml --set seeds=[1,2,3]");
  commands.on(*verb, [&commands, request] {
    request->program = commands.program();
    request->program.front() = fs::path(request->program.front()).replace_filename("isthmus");
    return run_compare(*request);
  });
}

}  // namespace isthmus::app
