#include "bench/loader.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/data/loader.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"

namespace isthmus::app {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Pass {
  std::uint64_t batches = 0;
  double seconds = 0, waited = 0, first = 0;  ///< first: until the first batch; the others leave it out
};

Pass run_pass(const data::Corpus& corpus, const Experiment& experiment, double seconds, double step) {
  const auto device = data::make_cpu_device();
  Trace trace;
  Pass pass;
  const auto start = Clock::now();
  data::OneTrack source;
  data::Loader loader(corpus, loader_options(experiment), source, *device, trace);
  loader.next();
  const auto begin = Clock::now();
  pass.first = Seconds(begin - start).count();
  const double before = loader.waited_seconds();
  for (auto now = begin; Seconds(now - begin).count() < seconds; now = Clock::now(), ++pass.batches) {
    if (step > 0) std::this_thread::sleep_for(Seconds(step));
    loader.next();
  }
  pass.seconds = Seconds(Clock::now() - begin).count();
  pass.waited = loader.waited_seconds() - before;
  return pass;
}

/// "12.3 M".
std::string count_text(double n) {
  if (n >= 1e9) return fmt::format("{:.2f} G", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.2f} M", n / 1e6);
  return n >= 1e4 ? fmt::format("{:.1f} k", n / 1e3) : fmt::format("{:.0f}", n);
}

double resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

}  // namespace

int run_loader_bench(const LoaderBenchRequest& request) {
  JsonOutput json(request.json);
  const auto& experiment = request.experiment;
  const data::Corpus corpus(experiment.data);
  for (const auto& note : corpus.notes()) fmt::print("{}\n", note);
  const auto tokens_per_batch = static_cast<double>(experiment.inner.batch * experiment.data.seq_len);
  const auto rate = [&](const Pass& pass) {
    return static_cast<double>(pass.batches) * tokens_per_batch / pass.seconds;
  };
  constexpr std::size_t margin = 14;
  const auto row = [](const std::string& text) { fmt::print("{}", in_lines(text, margin)); };
  row(fmt::format("corpus        {} tokens for training, {} held out, {} bytes each in batches",
                  count_text(static_cast<double>(corpus.tokens(data::Split::train))),
                  count_text(static_cast<double>(corpus.tokens(data::Split::heldout))), corpus.width()));
  const auto free = run_pass(corpus, experiment, request.seconds, 0);
  row(fmt::format("at most       {} tokens/s, {}/s ({} batches of {} x {} in {:.1f} s)",
                  count_text(rate(free)), format_bytes(rate(free) * corpus.width()), free.batches,
                  experiment.inner.batch, experiment.data.seq_len, free.seconds));
  fmt::print("first batch   after {:.0f} ms\n", 1e3 * free.first);
  nlohmann::ordered_json out = {{"tokens_per_second", rate(free)},
                                {"bytes_per_second", rate(free) * corpus.width()},
                                {"first_batch_seconds", free.first}};
  if (request.step_time.seconds > 0) {
    const auto paced = run_pass(corpus, experiment, request.seconds, request.step_time.seconds);
    row(fmt::format("with steps    of {:.1f} ms: training would wait {:.3f} % of the time for data",
                    1e3 * request.step_time.seconds, 100 * paced.waited / paced.seconds));
    out["gpu_queue_wait"] = paced.waited / paced.seconds;
  }
  out["peak_resident_bytes"] = resident_bytes();
  fmt::print("memory        {} at its peak (whole process)\n", format_bytes(resident_bytes()));
  json.print(out);
  if (!request.out.empty()) {
    std::ofstream file(request.out);
    file << out.dump(2) << '\n';
    if (!file.flush()) throw Error(ErrorKind::data, request.out.string() + ": cannot be written");
  }
  return 0;
}

}  // namespace isthmus::app
