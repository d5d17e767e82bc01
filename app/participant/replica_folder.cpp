#include "participant/replica_folder.h"

#include <fmt/format.h>

#include "isthmus/base/file.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

using outer_sync::OuterLoop;

std::filesystem::path checkpoints_in(const std::filesystem::path& replica_folder) {
  return replica_folder / "checkpoints";
}

std::filesystem::path replica_folder(const Experiment& experiment, const std::string& name, bool resume) {
  make_private_folder(experiment.folder());  // it has the run's secret, and a coordinator's state
  auto folder = experiment.folder() / name;
  if (resume || !std::filesystem::exists(checkpoints_in(folder))) return folder;
  const auto kept = make_room(folder);
  for (const auto* goes_on : {"worker.log", incarnation_file}) {
    if (!std::filesystem::exists(kept / goes_on)) continue;
    std::filesystem::create_directories(folder);
    std::filesystem::rename(kept / goes_on, folder / goes_on);
  }
  return folder;
}

std::filesystem::path trace_file(const std::filesystem::path& replica_folder) {
  auto file = replica_folder / "trace.json";
  for (int n = 1; std::filesystem::exists(file); ++n)
    file = replica_folder / fmt::format("trace-resumed-{}.json", n);
  return file;
}

OuterLoop::LogPlan log_plan(const Experiment& experiment, const std::string& name,
                            std::span<const outer_sync::log::LoggedTensor> tensors,
                            const outer_sync::FragmentLayout& layout, const Digest& model) {
  outer_sync::log::LogHeader header;
  header.run = experiment.run.name;
  header.model = model;
  header.fragments.assign(layout.fragments().begin(), layout.fragments().end());
  header.chunk_elements = layout.chunk_elements();
  header.codec = experiment.outer.codec_spec();
  header.warmup_rounds = static_cast<std::uint64_t>(experiment.outer.warmup_steps);
  header.tensors.assign(tensors.begin(), tensors.end());
  // By name: several replicas on one machine may share `outer.log`.
  return {.folder = std::filesystem::path(experiment.outer.log) / name,
          .header = std::move(header),
          .budget = static_cast<std::uint64_t>(experiment.outer.log_budget.bytes)};
}

}  // namespace isthmus::app
