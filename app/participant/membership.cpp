#include "participant/membership.h"

#include <utility>

#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/engine/outer_loop.h"

namespace isthmus::app {
namespace {

outer_sync::MemberOptions options_in(const Experiment& experiment, outer_sync::MemberOptions options) {
  options.lossless = experiment.outer.lossless_stage();
  if (!experiment.run.gathers()) options.records.reset();
  options.mailbox = mailbox_place(experiment);
  return options;
}

}  // namespace

NodeMembership::NodeMembership(const Experiment& experiment, const outer_sync::FragmentLayout& layout,
                               Trace& trace, outer_sync::MemberOptions options)
    : node_(experiment.network, layout,
            outer_sync::codec_plan(experiment.outer, static_cast<std::uint64_t>(experiment.run.seed)),
            closing_rule(experiment), trace, options_in(experiment, std::move(options))) {}

outer_sync::Admission NodeMembership::join(outer_sync::protocol::Hello hello) {
  return node_.join(std::move(hello));
}

void NodeMembership::activate(outer_sync::OuterLoop& outer, const outer_sync::protocol::Ledger& ledger,
                              SampleSet trained) {
  node_.activate({.fragments = outer.fragments(),
                  .parameters = outer.global_hash(),
                  .ledger = ledger,
                  .settings = outer.settings(),
                  .decided = outer.decided_rounds()},
                 std::move(trained));
}

}  // namespace isthmus::app
