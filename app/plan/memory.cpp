#include "plan/memory.h"

#include <algorithm>

#include "isthmus/outer_sync/engine/chunk_transfer.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/outer_sync/plan/predict.h"
#include "isthmus/outer_sync/protocol/topology.h"
#include "run/audit/receipt_groups.h"

namespace isthmus::app {

namespace {

using outer_sync::protocol::Topology;

outer_sync::protocol::View mesh_of(const Experiment& experiment, const outer_sync::FragmentLayout& layout) {
  outer_sync::protocol::View view;
  view.members.resize(static_cast<std::size_t>(experiment.replicas));
  view.owners = outer_sync::protocol::balanced_owners(layout, view.members.size());
  return view;
}

/// Bytes of an owner's receipts at the end of the run; `owners` have equal numbers of chunks.
std::uint64_t receipt_bytes(const Experiment& experiment, const outer_sync::FragmentLayout& layout,
                            std::int64_t owners) {
  outer_sync::protocol::Receipt receipt{.round = 1000, .chunk = 1000};
  receipt.contributions.assign(static_cast<std::size_t>(experiment.replicas),
                               {.member = "replica-0", .weight = 1'000'000});
  std::uint64_t per_interval = 0;
  for (outer_sync::FragmentId p = 0; p < layout.fragment_count(); ++p) {
    ReceiptGroups lines;
    const auto chunks = static_cast<std::int64_t>(layout.chunks_of(p).size());
    receipt.of = static_cast<std::uint32_t>((chunks + owners - 1) / owners);
    for (std::uint32_t i = 0; i < receipt.of; ++i) {
      ++receipt.chunk;
      for (const auto& line : lines.add(receipt)) per_interval += audit_json(line).dump().size() + 1;
    }
  }
  return per_interval * experiment.run.last_step() / outer_sync::plan::last_sync_every(experiment.outer);
}

/// Bytes of a trainer's lines about the rounds that it applied.
std::uint64_t applied_bytes(const Experiment& experiment, const outer_sync::FragmentLayout& layout) {
  AuditApplied line{.fragment = 10, .round = 1000};
  for (std::uint64_t track = 0; track < static_cast<std::uint64_t>(experiment.replicas); ++track)
    line.samples.push_back({track, 100'000, 101'000});
  return (audit_json(line).dump().size() + 1) * layout.fragment_count() * experiment.run.last_step() /
         outer_sync::plan::last_sync_every(experiment.outer);
}

/// Sets the bytes of audit records.
void plan_audit(const Experiment& experiment, const outer_sync::FragmentLayout& layout, PlanMemory& m) {
  constexpr std::uint64_t step_line = 50;
  const auto steps = step_line * experiment.run.last_step();
  const auto topology = experiment.outer.topology_setting();
  const bool has_reducers = experiment.reducers > 0;
  const bool in_hub = topology == Topology::hub;
  m.audit = steps + applied_bytes(experiment, layout);
  if (!in_hub || !has_reducers)
    m.audit += receipt_bytes(experiment, layout, in_hub ? 1 : experiment.replicas);
  m.audit_most = m.audit;
  if (has_reducers && topology != Topology::mesh)
    m.audit_most = std::max(m.audit, receipt_bytes(experiment, layout, 1));
}

}  // namespace

PlanMemory plan_memory(const Experiment& experiment, const outer_sync::FragmentLayout& layout) {
  const auto& outer = experiment.outer;
  const std::uint64_t vector = layout.buffer_size() * sizeof(float);
  const bool bf16 = experiment.inner.precision == "bf16" ||
                    (experiment.inner.precision == "auto" && experiment.device.device == "cuda");
  PlanMemory m;
  m.one_memory = experiment.device.device != "cuda";
  // In bf16 the master parameters have a bf16 copy and the gradient is half as large. Several gradients are
  // summed in fp32 (docs/models.md, "Memory").
  const bool summed = experiment.trainer.micro_batch > 0 || experiment.replica.ranks > 1;
  const auto computed = bf16 ? vector / 2 : vector;
  m.parameters = vector + (bf16 ? computed : 0);
  m.gradient = computed + (bf16 && summed ? vector : 0);
  m.evaluation = computed;
  m.moments = 2 * vector;
  if (experiment.replica.zero) m.moments /= static_cast<std::uint64_t>(experiment.replica.ranks);
  // A data-parallel run has an outer loop too, but no rounds.
  const auto bound = outer_sync::memory_bound(outer, layout, mesh_of(experiment, layout), 0);
  const auto state = bound.state;
  m.global_parameters = m.outer_momentum = vector;
  m.residuals = state - 2 * vector;
  if (!outer.data_parallel()) {
    m.chunks = bound.usual;
    m.max_chunks = bound.usual + bound.most;
  }
  std::size_t pinned = 0;
  if (!m.one_memory) {
    const outer_sync::StagingRoom room(layout, outer.codec_spec());
    m.staging = room.on_device();
    pinned = room.on_host();
  }
  // Parameters, both moments and the outer loop's state.
  m.checkpoint = 3 * vector + state;
  m.checkpoint_buffer = m.checkpoint + (m.one_memory ? 0 : 2 * vector);
  const auto& run = experiment.run;
  const auto kept = run.keep_checkpoints;
  // The number written by time is unknown: assume as many as are kept.
  const auto by_time = run.checkpoint_interval.seconds > 0 ? std::max<std::int64_t>(kept, 1) : 1;
  const auto made = run.checkpoint_every > 0 ? run.steps / run.checkpoint_every + 1 : by_time;
  // Plus the one being written.
  m.checkpoints = m.checkpoint * static_cast<std::uint64_t>(kept > 0 ? std::min(kept, made) + 1 : made);
  m.log = outer.log.empty() ? 0 : static_cast<std::uint64_t>(outer.log_budget.bytes);
  const auto trained = m.parameters + m.gradient + m.moments;
  m.device = trained + m.evaluation + state + m.staging;
  m.host = m.chunks + m.checkpoint_buffer;
  if (m.one_memory) {
    m.device += trained * static_cast<std::uint64_t>(experiment.replica.ranks_per_machine() - 1);
    m.host += m.device;
  } else {
    // Pinned buffers: one for parameters, one for encoded chunks.
    m.host += vector + pinned;
  }
  if (run.audit) plan_audit(experiment, layout, m);
  m.disk = m.checkpoints + m.log + m.audit;
  return m;
}

nlohmann::ordered_json to_json(const PlanMemory& m) {
  return {{"parameters", m.parameters},
          {"gradient", m.gradient},
          {"moments", m.moments},
          {"evaluation", m.evaluation},
          {"global_parameters", m.global_parameters},
          {"outer_momentum", m.outer_momentum},
          {"residuals", m.residuals},
          {"chunks", m.chunks},
          {"chunks_at_worst", m.max_chunks},
          {"staging", m.staging},
          {"checkpoint_buffer", m.checkpoint_buffer},
          {"device", m.device},
          {"host", m.host},
          {"device_is_host", m.one_memory},
          {"checkpoint", m.checkpoint},
          {"checkpoints", m.checkpoints},
          {"log", m.log},
          {"audit_records", m.audit},
          {"disk", m.disk}};
}

}  // namespace isthmus::app
