#include "isthmus/outer_sync/net/member/member_node.h"

#include <functional>
#include <utility>

#include "net/member/follower_side.h"
#include "net/member/network_side.h"
#include "net/member/reducer_side.h"
#include "net/member/shared_state.h"
#include "net/member/trainer_side.h"

namespace isthmus::outer_sync {

using namespace protocol;
using namespace transport;

/// The sides of the threads and their shared state. The network side has threads, so it must end before the
/// shared state.
class MemberNode::Impl {
 public:
  /// `layout` is null for a reducer.
  Impl(const NetworkConfig& config, const FragmentLayout* layout, const MemberRules& rules, Trace& trace)
      : network(config, layout, rules, meet, trace),
        trainer(config, rules.closing.reject > 0, meet, network),
        follower(config, meet, network),
        reducer(meet, network) {}

  SharedState meet;
  NetworkSide network;
  TrainerSide trainer;
  FollowerSide follower;
  ReducerSide reducer;
};

MemberNode::MemberNode(const NetworkConfig& network, const FragmentLayout& layout, CodecPlan codecs,
                       ClosingRule closing, Trace& trace, quant::Lossless lossless, bool moments)
    : impl_(std::make_unique<Impl>(network, &layout,
                                   MemberRules{codecs, closing, lossless, moments, layout.chunk_elements()},
                                   trace)) {}
MemberNode::MemberNode(const NetworkConfig& network, std::uint64_t chunk_elements, CodecPlan codecs,
                       ClosingRule closing, Trace& trace, quant::Lossless lossless)
    : impl_(std::make_unique<Impl>(network, nullptr,
                                   MemberRules{codecs, closing, lossless, false, chunk_elements}, trace)) {}
MemberNode::~MemberNode() = default;

void MemberNode::gather(std::shared_ptr<RecordQueue> records) { impl_->network.gather(std::move(records)); }
void MemberNode::look_up(std::function<void()> while_waiting) {
  impl_->meet.while_waiting = std::move(while_waiting);
}
std::string MemberNode::advertised() const { return impl_->network.advertised(); }
Admission MemberNode::join(Hello hello) {
  impl_->trainer.say_hello(std::move(hello));
  return impl_->trainer.admission();
}
void MemberNode::activate(const std::vector<FragmentState>& fragments, const Digest& parameters,
                          const Ledger& ledger, SampleSet trained, const Settings& settings) {
  impl_->trainer.activate(fragments, parameters, ledger, std::move(trained), settings);
}
SampleRange MemberNode::next_samples(std::uint64_t most) { return impl_->trainer.next_samples(most); }
Ledger MemberNode::ledger() { return impl_->network.ledger(); }
void MemberNode::catch_up(OuterLoop& loop) { impl_->follower.catch_up(loop); }
bool MemberNode::follow(OuterLoop& loop, const std::vector<Round>& until) {
  return impl_->follower.follow(loop, until);
}
bool MemberNode::has_state() const { return impl_->follower.has_state(); }
bool MemberNode::is_current() const { return impl_->follower.is_current(); }
std::optional<Finished> MemberNode::finished() const { return impl_->trainer.finished(); }
View MemberNode::view() const { return impl_->trainer.view(); }
MemberIndex MemberNode::self() const { return impl_->trainer.self(); }
Rank MemberNode::rank() const { return impl_->trainer.rank(); }
Participation MemberNode::participation() const { return impl_->trainer.participation(); }
void MemberNode::announce(std::string text) { impl_->network.send(Announce{std::move(text)}); }
std::string MemberNode::announced() { return impl_->trainer.announced(); }
bool MemberNode::may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach) {
  return impl_->trainer.may_begin(step, end, reach);
}
bool MemberNode::is_paused(std::uint64_t step) { return impl_->trainer.is_paused(step); }
std::optional<std::string> MemberNode::drains() const { return impl_->trainer.drains(); }
std::shared_ptr<const Settings> MemberNode::settings() const { return impl_->trainer.settings(); }
void MemberNode::give_up(const std::string& reason) { impl_->trainer.give_up(reason); }
std::optional<std::uint64_t> MemberNode::stops_at() const { return impl_->trainer.stops_at(); }
double MemberNode::reference_speed() const { return impl_->trainer.reference_speed(); }
bool MemberNode::checkpoint_due(std::uint64_t step) { return impl_->trainer.checkpoint_due(step); }
void MemberNode::request_checkpoint(const std::string& reason) { impl_->network.request_checkpoint(reason); }
bool MemberNode::reaches_coordinator() const { return impl_->trainer.reaches_coordinator(); }
void MemberNode::report_checkpoints(std::vector<CheckpointId> checkpoints) {
  impl_->trainer.report_checkpoints(std::move(checkpoints));
}
std::uint64_t MemberNode::common_checkpoint() const { return impl_->trainer.common_checkpoint(); }
void MemberNode::report(const StepReport& report) { impl_->trainer.report(report); }
void MemberNode::report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens) {
  impl_->network.report_evaluation({step, sum_nats, tokens});
}
void MemberNode::request_stop(const std::string& reason) { impl_->network.request_stop(reason); }
bool MemberNode::stopped_early() const { return impl_->trainer.stopped_early(); }
std::string MemberNode::done(std::string summary, const Digest& global_hash) {
  return impl_->trainer.done(std::move(summary), global_hash);
}
std::optional<std::string> MemberNode::follow(Hello hello) {
  impl_->trainer.say_hello(std::move(hello));
  return impl_->reducer.follow();
}
void MemberNode::leave(const std::string& reason) noexcept {
  try {
    impl_->trainer.leave(reason);
  } catch (const std::exception&) {
    // Best effort: the coordinator also notices a closed connection.
  }
}
void MemberNode::fail(const Error& error) { impl_->meet.fail(error); }
void MemberNode::contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight,
                            const SampleSet& samples) {
  impl_->trainer.contribute(chunk, round, std::move(bytes), weight, samples);
}
Awaited MemberNode::wait(FragmentId fragment, Round round, bool can_train_on) {
  return impl_->trainer.wait(fragment, round, can_train_on);
}
void MemberNode::applied(FragmentId fragment, Round round, const Digest& chain,
                         std::vector<SampleRange> samples) {
  impl_->network.applied(fragment, {round, chain}, std::move(samples));
}
void MemberNode::audited(const Audit& audit) { impl_->trainer.audited(audit); }
void MemberNode::serve_state_from(StateSource source) { impl_->trainer.serve_state_from(std::move(source)); }
void MemberNode::serve() { impl_->trainer.serve(); }
std::uint64_t MemberNode::agreed_step() const { return impl_->trainer.agreed_step(); }
Reducer& MemberNode::reducer() { return impl_->network.codec_context().reducer; }
MemberNode::Wire MemberNode::wire() const {
  return {impl_->network.counters().payload, impl_->network.counters().total};
}

}  // namespace isthmus::outer_sync
