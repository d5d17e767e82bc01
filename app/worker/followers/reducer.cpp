#include "worker/followers/reducer.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "run/audit/audit_writer.h"
#include "run/experiment/identity.h"
#include "run/metrics/metrics_server.h"
#include "run/metrics/run_readings.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"
#include "run/process/stopper.h"

namespace isthmus::app {
namespace {

/// Locks the reducer's folder; null if it cannot be created, since the reducer writes nothing there. The lock
/// shows a coordinator on this machine that this process's log is in that folder already.
std::unique_ptr<FolderLock> own_folder(const std::filesystem::path& folder) {
  try {
    return std::make_unique<FolderLock>(folder, patience_with_the_killed);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    return nullptr;
  }
}

}  // namespace

int run_reducer(WorkerRequest request) {
  take_replica_name(request.name, request.experiment);
  const auto& experiment = request.experiment;
  const auto& outer = experiment.outer;
  if (outer.data_parallel())
    throw Error(ErrorKind::config, "outer.method is data_parallel, so --reduce-only has nothing to reduce");
  Stopper stopper;
  // Before any other thread, so that all of them leave the signals to this thread.
  const SignalThread signals([&](int signal, int count) { stopper.on_signal(signal, count); });
  Trace trace;  // without a file: there are no steps to show
  const auto records = std::make_shared<outer_sync::RecordQueue>();
  const auto folder = own_folder(experiment.folder() / request.name);
  const auto say = [&records](const std::string& text) {
    records->add(outer_sync::protocol::RecordKind::log, text);
    say_line(text);
  };
  std::optional<AuditWriter> audit;
  if (experiment.run.audit) audit.emplace(experiment.folder() / request.name, records, say);
  outer_sync::MemberNode node(experiment.network, static_cast<std::uint64_t>(outer.chunk_elements),
                              outer_sync::codec_plan(outer, static_cast<std::uint64_t>(experiment.run.seed)),
                              closing_rule(experiment), trace,
                              {.lossless = outer.lossless_stage(),
                               .records = experiment.run.gathers() ? records : nullptr,
                               .receipts = audit ? &*audit : nullptr,
                               .mailbox = mailbox_place(experiment)});
  stopper.in_run(node);
  const auto reached = node.advertised().empty() ? "it opens no port" : "peers dial " + node.advertised();
  say(fmt::format("{} only reduces; {}", request.name, reached));
  const auto metrics = serve_metrics(
      experiment.metrics, {experiment.run.name, request.name}, [&node] { return readings_of(node.status()); },
      say);
  std::optional<std::string> problem;
  try {
    auto agreed = experiment;
    problem = node.follow(hello_of(agreed, request.name, request.build));
  } catch (const std::exception& error) {
    stopper.ending();
    node.leave(error.what());
    throw;
  }
  stopper.ending();
  if (!problem) {
    say("left the run");
    return stopper.leaving() ? stopper.exit_status() : 0;
  }
  if (!problem->empty()) throw Error(ErrorKind::divergence, *problem);
  say(fmt::format("done: {:.1f} MB sent", static_cast<double>(node.status().sent.total) / 1e6));
  return 0;
}

}  // namespace isthmus::app
