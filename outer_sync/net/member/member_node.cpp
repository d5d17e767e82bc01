#include "isthmus/outer_sync/net/member/member_node.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "config/duration.h"
#include "net/member/follower.h"
#include "net/member/io/crossing.h"
#include "net/member/io/member_driver.h"
#include "net/member/waits.h"

namespace isthmus::outer_sync {

using namespace protocol;
using namespace transport;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {
constexpr auto farewell_limit = 1s;
constexpr auto longest_service = 1min;  ///< limit for serving fetchers after the run's end
/// How long wait() pauses when rounds do not commit, before the trainer may ask again.
constexpr auto ask_again_after = 20ms;
constexpr std::size_t max_checkpoints_reported = 16;
}  // namespace

/// The driver has threads, so it must end before the crossing.
class MemberNode::Impl {
 public:
  /// `layout` is null for a reducer.
  Impl(const NetworkConfig& config, const FragmentLayout* layout, const MemberRules& rules, Trace& trace,
       const MemberOptions& options)
      : network(config),
        reject(rules.closing.reject > 0),
        waits(crossing, options.while_waiting),
        driver(config, layout, rules, crossing, trace, options.mailbox),
        follower(config, waits, driver) {
    if (options.records) driver.gather(options.records);
    if (options.receipts != nullptr) driver.give_receipts_to(*options.receipts);
  }

  [[nodiscard]] Waits::Lock lock() const { return waits.shared.lock(); }
  void serve_requests(Waits::Lock& now);
  void serve_the_last(Waits::Lock& now);

  const NetworkConfig network;
  const bool reject;  ///< measure the contributions' norms
  Crossing crossing;
  Waits waits;
  MemberDriver driver;
  Follower follower;
  StateSource state_source;         ///< guarded by the crossing's lock
  std::optional<Place> unanswered;  ///< the trainer has asked for it in vain since its last step
};

MemberNode::MemberNode(const NetworkConfig& network, const FragmentLayout& layout, CodecPlan codecs,
                       ClosingRule closing, Trace& trace, const MemberOptions& options)
    : impl_(std::make_unique<Impl>(
          network, &layout,
          MemberRules{codecs, closing, options.lossless, options.moments, layout.chunk_elements()}, trace,
          options)) {}
MemberNode::MemberNode(const NetworkConfig& network, std::uint64_t chunk_elements, CodecPlan codecs,
                       ClosingRule closing, Trace& trace, const MemberOptions& options)
    : impl_(std::make_unique<Impl>(network, nullptr,
                                   MemberRules{codecs, closing, options.lossless, false, chunk_elements},
                                   trace, options)) {}
MemberNode::~MemberNode() = default;

const std::string& MemberNode::advertised() const { return impl_->driver.advertised(); }

NodeStatus MemberNode::status() const {
  auto now = impl_->lock();
  NodeStatus seen = now->run;
  if (!now->run.commits) seen.participation.participating = 0;
  const auto& sent = impl_->driver.counters();
  seen.sent = {sent.payload, sent.total};
  return seen;
}

// ---- entering the run ----

Admission MemberNode::join(Hello hello) {
  impl_->driver.say_hello(std::move(hello));
  auto now = impl_->lock();
  impl_->waits.wait_for(now, [&] { return now->run.admission || now->run.finished; });
  return now->run.admission.value_or(Admission{.how = Admission::How::joins, .step = 0});
}

void MemberNode::activate(InitialState state, SampleSet trained) {
  impl_->waits.shared.update([&](TrainerView now) { now.both.order.restore(std::move(trained)); });
  impl_->driver.activate(std::move(state));
  auto now = impl_->lock();
  impl_->waits.wait_for(now, [&] { return now->run.in_view() || now->both.evicted; });
  Waits::throw_if_ended(now);
}

void MemberNode::catch_up(OuterLoop& loop) { impl_->follower.catch_up(loop); }
Following MemberNode::follow(OuterLoop& loop, const std::vector<Round>& until) {
  return impl_->follower.follow(loop, until);
}
std::optional<std::string> MemberNode::follow(Hello hello) {
  impl_->driver.say_hello(std::move(hello));
  auto problem = follow_as_reducer(impl_->waits.shared, impl_->driver);
  auto now = impl_->lock();
  impl_->serve_the_last(now);
  return problem;
}

// ---- between steps ----

/// Serves fetchers meanwhile, and calls `while_waiting`: a signal may ask this process to leave.
bool MemberNode::is_paused(std::uint64_t step) {
  auto now = impl_->lock();
  Waits::throw_if_ended(now);
  const auto paused = [&] {
    return now->run.settings && step > now->run.settings->pause_after && !now->run.hold;
  };
  if (!paused()) return false;
  impl_->serve_requests(now);
  now.wait_for(Waits::look_up_every, [&] {
    return !paused() || now->both.failure || now->both.evicted || now->run.drains ||
           !now->both.state_requests.empty();
  });
  impl_->waits.look_up(now);
  return true;
}

bool MemberNode::may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach) {
  auto now = impl_->lock();
  Waits::throw_if_ended(now);
  const auto& run = now->run;
  if (run.hold) impl_->waits.wait_for(now, [&] { return run.stops_at || !run.commits || now->both.evicted; });
  // While rounds do not commit, the step at which all stop cannot be reached.
  if (run.hold && (!run.commits || (run.stops_at && step > *run.stops_at))) return false;
  now->trainer.begun = end;
  // A replica that is about to jump to the agreed step is not at `end`, so it reports no reach.
  now->both.reach = run.agreed_step > end ? Settings::never : reach;
  return true;
}

bool MemberNode::checkpoint_due(std::uint64_t step) {
  auto now = impl_->lock();
  now->trainer.step_done = step;
  return now->run.checkpoint_at == step;
}

SampleRange MemberNode::next_samples(std::uint64_t most) { return impl_->lock()->both.order.next(most); }
Ledger MemberNode::ledger() { return impl_->driver.ledger(); }

// ---- reports ----

void MemberNode::report(const StepReport& report) { impl_->lock()->trainer.report = report; }
void MemberNode::report_checkpoints(std::vector<CheckpointId> checkpoints) {
  if (checkpoints.size() > max_checkpoints_reported)
    checkpoints.erase(checkpoints.begin(), checkpoints.end() - max_checkpoints_reported);
  impl_->lock()->trainer.checkpoints = std::move(checkpoints);
}
/// Bounded while the coordinator is away; later rounds are checked too.
void MemberNode::checked(const StateDigest& reported) {
  auto now = impl_->lock();
  if (now->both.digests.size() < max_state_digests) now->both.digests.push_back(reported);
}
void MemberNode::report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens) {
  impl_->driver.report_evaluation({step, sum_nats, tokens});
}
void MemberNode::request_stop(const std::string& reason) { impl_->driver.request_stop(reason); }
void MemberNode::request_checkpoint(const std::string& reason) { impl_->driver.request_checkpoint(reason); }
std::string MemberNode::announced(std::optional<std::string> own) {
  if (own) impl_->driver.send(Announce{std::move(*own)});
  auto now = impl_->lock();
  impl_->waits.wait_for(now, [&] { return now->run.announced.has_value(); });
  return *now->run.announced;
}

std::shared_ptr<const Settings> MemberNode::settings() const { return impl_->lock()->run.settings; }
std::uint64_t MemberNode::agreed_step() const { return impl_->lock()->run.agreed_step; }

// ---- the end ----

std::string MemberNode::done(std::string summary, const Digest& global_hash) {
  impl_->driver.done({std::move(summary), global_hash});
  auto now = impl_->lock();
  while (!now->run.finished) {
    impl_->serve_requests(now);
    impl_->waits.sleep_until(
        now, [&] { return now->both.failure || now->run.finished || !now->both.state_requests.empty(); });
    if (now->both.failure && !now->run.finished) throw *now->both.failure;
  }
  impl_->serve_the_last(now);
  return now->run.finished->problem;
}

void MemberNode::leave(const std::string& reason) noexcept {
  try {
    impl_->driver.leave(reason);
    {
      auto now = impl_->lock();
      now.wait_for(farewell_limit, [&] { return now->both.gone; });
    }
    impl_->waits.shared.update([](TrainerView now) { now.both.gone = true; });
  } catch (const std::exception&) {
    // Best effort: the coordinator also notices a closed connection.
  }
}

void MemberNode::fail(const Error& error) { impl_->waits.shared.fail(error); }

void MemberNode::give_up(const std::string& reason) {
  impl_->driver.give_up(reason);
  auto now = impl_->lock();
  impl_->waits.wait_for(now, [&] { return now->both.evicted.has_value(); });
  throw outer_sync::Evicted(reason);
}

// ---- rounds ----

void MemberNode::contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight,
                            const SampleSet& samples) {
  auto& codecs = impl_->driver.codec_context();
  auto packed = codecs.contribution_packer.pack(chunk, round, *bytes);
  const double squares = impl_->reject ? codecs.reducer.squares(chunk, round, *bytes) : 0;
  impl_->driver.contribute(chunk, round, std::move(bytes), std::move(packed), weight, squares, samples);
}

Awaited MemberNode::wait(FragmentId fragment, Round round, bool can_train_on) {
  const Place place{fragment, round};
  auto now = impl_->lock();
  const auto& run = now->run;
  auto& rounds = now->both.rounds;
  for (;;) {
    Waits::throw_if_ended(now);
    if (auto result = rounds.take(place)) return {std::move(result)};
    impl_->serve_requests(now);
    if (!run.commits) {
      now->trainer.stuck = impl_->unanswered == place;
      now.wait_until(Clock::now() + ask_again_after);
      impl_->waits.look_up(now);
      if (run.commits || rounds.complete().contains(place)) continue;
      impl_->unanswered = place;
      return {std::nullopt, false};
    }
    if (can_train_on && run.forms_without_a_trainer()) return {};
    impl_->waits.sleep_until(now, [&] {
      return now->both.failure || now->both.evicted || rounds.complete().contains(place) || !run.commits ||
             (can_train_on && run.forms_without_a_trainer()) || !now->both.state_requests.empty();
    });
  }
}

void MemberNode::applied(FragmentId fragment, Round round, const Digest& chain,
                         std::vector<SampleRange> samples) {
  impl_->driver.applied(fragment, {round, chain}, std::move(samples));
}

bool MemberNode::begin_exchange(FragmentId fragment, std::uint64_t step) {
  auto now = impl_->lock();
  now->both.exchanged.erase(fragment);
  return partner_of(*now->run.view, now->run.self, fragment, step).has_value();
}
void MemberNode::exchange(ChunkId chunk, std::uint64_t step, const SharedBytes& bytes, std::uint64_t weight) {
  auto packed = impl_->driver.codec_context().contribution_packer.pack(chunk, step, *bytes);
  impl_->driver.exchange(chunk, step, bytes, weight, std::move(packed));
}
void MemberNode::end_exchange(FragmentId fragment, std::uint64_t step) {
  impl_->lock()->both.exchanged.erase(fragment);
  impl_->driver.end_exchange(fragment, step);
}
std::optional<Exchanged> MemberNode::take_exchanged(FragmentId fragment, std::uint64_t step) {
  auto now = impl_->lock();
  const auto found = now->both.exchanged.find(fragment);
  if (found == now->both.exchanged.end() || found->second.step != step) return {};
  return std::move(now->both.exchanged.extract(found).mapped());
}

Reducer& MemberNode::reducer() { return impl_->driver.codec_context().reducer; }

// ---- serving the state ----

void MemberNode::serve_state_from(StateSource source) {
  auto now = impl_->lock();
  impl_->state_source = std::move(source);
}

void MemberNode::serve() {
  auto now = impl_->lock();
  Waits::throw_if_ended(now);
  impl_->unanswered.reset();
  now->trainer.stuck = false;
  impl_->serve_requests(now);
}

void MemberNode::Impl::serve_requests(Waits::Lock& now) {
  while (!now->both.state_requests.empty() && state_source) {
    const auto question = std::move(now->both.state_requests.front());
    now->both.state_requests.pop_front();
    const auto source = state_source;
    now.without([&] { question.answer(source(question.fragment, question.moments)); });
  }
}

/// Observers fetch the run's last rounds after its end.
void MemberNode::Impl::serve_the_last(Waits::Lock& now) {
  const auto begin = Clock::now();
  const auto limit = [&] {
    const auto until = std::max(now->run.serving.until, begin + to_duration(network.detect_timeout));
    return std::min(until, begin + longest_service);
  };
  while (now->run.serving.fetchers > 0 && Clock::now() < limit()) {
    serve_requests(now);
    waits.await_change(now, limit());
  }
}

}  // namespace isthmus::outer_sync
