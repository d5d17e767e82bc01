#include "net/member/network_side.h"

#include <pthread.h>

#include <algorithm>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <cstdio>
#include <utility>
#include <variant>

#include "config/duration.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "net/link/listen.h"
#include "net/link/run_secret.h"
#include "net/link/socket_options.h"
#include "net/link/spawn.h"
#include "tls/credentials.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using namespace protocol;
using Clock = Connection::Clock;
using namespace std::chrono_literals;

namespace {

constexpr auto tick_every = 50ms;
constexpr std::uint64_t max_wakes_per_second = 1000;
constexpr auto wakes_at_once = 20ms;  ///< burst allowed after a pause
constexpr std::size_t max_reports_kept = 4;
constexpr auto begun_without_it = "the run has begun without this replica";

ControlLinkOptions control_options(const NetworkConfig& network) {
  return {.coordinators = parse_addresses(network.coordinator, "network.coordinator"),
          .silence_limit = to_duration(network.detect_timeout) + to_duration(network.emulate.rtt),
          .check_every = to_duration(network.heartbeat),
          .seed = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count())};
}

}  // namespace

NetworkSide::NetworkSide(const NetworkConfig& network, const FragmentLayout* layout, const MemberRules& rules,
                         SharedState& meet, Trace& trace)
    : network_(network),
      rules_(rules),
      reduces_(layout == nullptr),
      shared_(meet),
      codec_context_(reduces_ ? nullptr
                              : std::make_unique<CodecContext>(*layout, rules.codecs, rules.lossless)),
      link_{.hold = to_duration(network.emulate.rtt) / 2,
            .give_up = to_duration(network.detect_timeout),
            .max_queued = reduces_ ? SIZE_MAX : max_bytes_queued(*layout),
            .emulate = network.emulate,
            .congestion = network.congestion,
            .credentials = credentials_of(network),
            .secret = secret_of(network)},
      clock_(2 * to_duration(network.heartbeat)),
      mesh_(io_, bind(), static_cast<std::size_t>(network.lanes), counters_, link_, clock_, trace, *this),
      control_(io_, control_options(network), link_, counters_, clock_, trace, *this),
      records_(control_),
      rounds_(io_, mesh_, meet, trace, rules.closing, saying()),
      membership_(rounds_, mesh_, control_, meet, saying(), *this),
      heartbeats_(network_, link_.hold, reduces_, clock_, mesh_, rounds_, counters_, meet, trace, saying()),
      shutdown_(control_, meet, counters_, reduces_),
      work_(asio::make_work_guard(io_)) {
  if (!reduces_) {
    const auto parts = rules.moments ? static_cast<StateParts>(agreed_parts | moment_parts) : agreed_parts;
    rounds_.use(*codec_context_);
    taker_.emplace(io_, *codec_context_, link_, counters_, trace, parts, meet, saying(), *this);
    giver_.emplace(
        io_, network_, codec_context_->layout, meet,
        [this](FragmentId p, Round r) { return rounds_.held(p, r); },
        [this](FragmentId p) { return rounds_.ledger(p); });
  }
  mesh_.send_at_most(network.rate.bytes_per_second());
  io_thread_ = std::thread([this] { run_io(); });
  pthread_setname_np(io_thread_.native_handle(), "network");  // shown by top -H
}

NetworkSide::~NetworkSide() {
  io_.stop();
  io_thread_.join();
  shared_.state_requests.clear();  // their timers belong to the io context
}

asio::ip::tcp::acceptor NetworkSide::bind() {
  network_.check_ports();
  if (!network_.listens()) return asio::ip::tcp::acceptor(io_);
  auto acceptor = listen_at(io_, network_.listen, "network.listen");
  advertised_ = advertised_address(network_.advertise, bound_address(acceptor)).to_string();
  return acceptor;
}

std::size_t NetworkSide::max_bytes_queued(const FragmentLayout& layout) const {
  return max_queued(layout, rules_.codecs);
}

/// Each wake-up preempts a compute thread on the same core, and its whole team waits for it. So under load
/// this thread wakes only once a millisecond and handles more at a time.
void NetworkSide::run_io() {
  Pacer wakes(max_wakes_per_second, wakes_at_once);
  try {
    while (io_.run_one() > 0) {
      io_.poll();
      const auto now = Pacer::Clock::now();
      std::this_thread::sleep_until(wakes.take(1, now));
    }
  } catch (const std::exception& error) {
    shared_.fail(Error(ErrorKind::network, std::string("the io thread failed: ") + error.what()));
  }
  shared_.update([&] { shared_.io_over = true; });
}

void NetworkSide::say(const std::string& text) const {
  const auto& name = membership_.self().name;
  const auto line = printable(text);  // may contain text from other processes
  say_error((name.empty() ? "worker" : name) + ": " + line);
  records_.add(line);
}

// ---- from any thread ----

void NetworkSide::gather(std::shared_ptr<RecordQueue> records) {
  asio::post(io_, [this, records = std::move(records)] { records_.use(records); });
}

void NetworkSide::say_hello(Hello hello) {
  hello.member.address = advertised();
  if (reduces_) hello.member.kind = MemberKind::reducer;
  hello.uplink = network_.rate.bytes_per_second();
  asio::post(io_, [this, hello = std::move(hello)] {
    if (link_.secret) link_.secret->answer_as(hello.member.name);
    membership_.introduce(hello);
    say_what_is_missing();
    heartbeats_.silent();
    control_.start();
    spawn(io_.get_executor(), "sending heartbeats", heartbeat_loop());
    spawn(io_.get_executor(), "the member's clock", tick_loop());
  });
}

void NetworkSide::say_what_is_missing() {
  if (network_.reachable().empty()) return;  // all members are on this machine
  if (const auto missing = missing_congestion_control(network_.congestion))
    saying()("network.congestion: " + missing->problem + "; as root: " + missing->remedy);
}

void NetworkSide::activate(const std::vector<FragmentState>& fragments, const Digest& parameters,
                           const Ledger& ledger, const Settings& settings) {
  asio::post(io_, [this, fragments, parameters, ledger, settings] {
    // Its connection was lost while it restored, and the run began without it.
    if (taker_->takes()) return shared_.update([&] { shared_.evicted = begun_without_it; });
    membership_.begin(fragments, parameters, ledger, settings);
  });
}

void NetworkSide::give_up(const std::string& reason) {
  asio::post(io_, [this, reason] {
    control_.send(protocol::Evicted{reason});
    membership_.evict(reason);
  });
}

Ledger NetworkSide::ledger() {
  const auto answer = std::make_shared<std::optional<Ledger>>();
  asio::post(io_, [this, answer] {
    auto ledger = rounds_.stands() ? rounds_.member().ledger() : Ledger();
    shared_.update([&] { *answer = std::move(ledger); });
  });
  std::unique_lock lock(shared_.mutex);
  shared_.changed.wait(lock, [&] { return answer->has_value() || shared_.io_over; });
  if (!*answer)
    throw shared_.failure ? *shared_.failure : Error(ErrorKind::network, "the io thread has ended");
  return **answer;
}

void NetworkSide::send(ControlMessage message) {
  asio::post(io_, [this, message = std::move(message)] { control_.send(message); });
}

void NetworkSide::report_evaluation(const EvalReport& report) {
  asio::post(io_, [this, report] {
    control_.send(report);
    reports_.push_back(report);
    if (reports_.size() > max_reports_kept) reports_.pop_front();
  });
}

void NetworkSide::request_stop(const std::string& reason) {
  asio::post(io_, [this, reason] { shutdown_.request_stop(reason); });
}

/// The heartbeat goes first, since it reports this member's step.
void NetworkSide::request_checkpoint(const std::string& reason) {
  asio::post(io_, [this, reason] {
    control_.send(heartbeat());
    control_.send(CheckpointRequest{reason});
  });
}

void NetworkSide::done(const Done& done) {
  asio::post(io_, [this, done] {
    records_.send_all();
    control_.send(heartbeat());  // reports the last rounds
    shutdown_.done(done);
  });
}

void NetworkSide::leave(const std::string& reason) {
  asio::post(io_, [this, reason] {
    records_.send_all();
    control_.send(heartbeat());  // reports its last step, loss and audits
    shutdown_.leave(reason);
  });
}

void NetworkSide::contribute(ChunkId chunk, Round round, SharedBytes bytes, SharedBytes packed,
                             std::uint64_t weight, double squares, const SampleSet& samples) {
  asio::post(io_, [this, chunk, round, weight, squares, bytes = std::move(bytes), packed = std::move(packed),
                   samples] { rounds_.contribute(chunk, round, bytes, packed, weight, squares, samples); });
}

void NetworkSide::applied(FragmentId fragment, const FragmentState& state, std::vector<SampleRange> samples) {
  asio::post(io_, [this, fragment, state, samples = std::move(samples)] {
    shared_.update([&] { shared_.taken.erase({fragment, state.round}); });
    if (!rounds_.stands()) return taker_->learned(fragment, state);
    rounds_.applied(fragment, state, samples);
    membership_.begin_waiting_view();
  });
}

void NetworkSide::followed(FragmentId fragment, const FragmentState& state, std::vector<SampleRange> samples,
                           std::uint64_t life) {
  asio::post(io_, [this, fragment, state, samples = std::move(samples), life] {
    bool counts = false;
    shared_.update([&] {
      shared_.taken.erase({fragment, state.round});
      counts = life == shared_.life;
    });
    if (!rounds_.stands()) return;
    if (counts) rounds_.applied(fragment, state, samples);
    membership_.begin_waiting_view();
  });
}

void NetworkSide::attempt_begun(std::uint64_t attempt) {
  asio::post(io_, [this, attempt] { taker_->begun(attempt); });
}

void NetworkSide::learned(FragmentId fragment, const FragmentState& state) {
  asio::post(io_, [this, fragment, state] { taker_->learned(fragment, state); });
}

// ---- peers ----

std::optional<std::string> NetworkSide::on_chunk(ReplicaId from, Connection::Received chunk) {
  return rounds_.on_chunk(from, std::move(chunk));
}
void NetworkSide::on_ack(ReplicaId from, ViewNumber view, const ChunkKey& key) {
  rounds_.on_ack(from, view, key);
}
void NetworkSide::on_begun(ReplicaId from, ViewNumber view) { rounds_.on_begun(from, view); }
void NetworkSide::on_peer_up(ReplicaId peer) { rounds_.on_peer_up(peer); }
/// The mesh dials it again, and heartbeats report the loss.
void NetworkSide::on_peer_down(ReplicaId) { rounds_.count_live(); }
void NetworkSide::on_broken_peer(ReplicaId peer, const std::string& why) {
  rounds_.on_broken_peer(peer, why);
}
asio::awaitable<void> NetworkSide::on_fetcher(ReplicaId, ConnectionPtr connection) {
  if (!giver_) throw Error(ErrorKind::network, "this member is a reducer and has no state to give");
  co_await giver_->serve(connection);
}

// ---- the coordinator ----

void NetworkSide::on_up() {
  shared_.update([&] { shared_.reaches_coordinator = true; });
  heartbeats_.forget_unanswered();
  records_.connected();
  control_.send(membership_.hello(shutdown_.is_done()));
  // A restarted coordinator has not received these.
  for (const auto& report : reports_) control_.send(report);
  if (shutdown_.is_done()) {
    records_.send_all();
    control_.send(heartbeat());
  }
  shutdown_.repeat();
}

void NetworkSide::on_down(const std::string& why) {
  shared_.update([&] { shared_.reaches_coordinator = false; });
  if (taker_ && taker_->takes() && !membership_.observes()) {  // the donors may have changed on reconnection
    taker_->stop();
    membership_.withdraw();
  }
  heartbeats_.silent();
  if (shutdown_.ends_with_connection()) return control_.stop();
  if (shutdown_.is_leaving()) return;
  const auto* meanwhile = reduces_ ? "rounds continue" : "training continues while rounds commit";
  say(why + "; " + (rounds_.in_a_view() ? meanwhile : "dialling again"));
}

void NetworkSide::on_control(ControlMessage message) {
  heartbeats_.heard();
  const auto* layout = codec_context_ ? &codec_context_->layout : nullptr;
  if (const auto problem = problem_of_message(message, {.steps = 0, .layout = layout}); !problem.empty())
    throw Error(ErrorKind::network, "the coordinator broke the protocol: " + problem);
  std::visit([this](auto& what) { handle(what); }, message);
}

void NetworkSide::handle(const HeartbeatReply& reply) {
  shared_.update([&] {
    shared_.reference_speed = reply.inner_steps_per_second;
    shared_.common_checkpoint = reply.checkpoint;
  });
  if (taker_) taker_->on_newest(reply.newest);
  heartbeats_.on_reply(reply);
}

void NetworkSide::handle(const Admitted& admitted) {
  if (!taker_) throw Error(ErrorKind::network, "it sent a message that only members may send");
  if (rounds_.in_a_view()) return;
  if (rounds_.stands()) shared_.update([&] { shared_.evicted = begun_without_it; });
  membership_.withdraw();
  membership_.join_mesh(admitted.token);
  taker_->take_from(admitted, membership_.id(), membership_.observes());
  handle(Steered{admitted.settings});
}

/// Passes the settings on to a trainer that follows the rounds.
void NetworkSide::handle(const Steered& steered) {
  steered_ = steered.settings;
  if (!taker_ || !taker_->takes()) return;
  shared_.update([&] { shared_.state_events.emplace_back(steered.settings); });
}

/// Ignores unknown keys: they come from a newer build.
void NetworkSide::handle(const Adjust& adjust) {
  for (const auto& [key, value] : adjust.items) {
    if (key != "network.rate") continue;
    const auto rate = rate_of(value);
    mesh_.send_at_most(rate.bytes_per_second());
    heartbeats_.rate_is(rate.bytes_per_second());
    say("network.rate is now " + value);
  }
}

/// A reducer leaves at once: it has nothing to finish.
void NetworkSide::handle(const Drain& drain) {
  say("leaving as requested: " + drain.reason);
  if (reduces_) return shutdown_.leave(drain.reason);
  shared_.update([&] { shared_.drain = drain.reason; });
}

void NetworkSide::handle(const CheckpointAt& checkpoint) {
  bool missed = false;
  shared_.update([&] {
    missed = shared_.checkpoint_at != checkpoint.step && shared_.step_done >= checkpoint.step;
    shared_.checkpoint_at = checkpoint.step;
  });
  if (missed && !reduces_) request_checkpoint("it was already past step " + std::to_string(checkpoint.step));
}

void NetworkSide::handle(const Announce& announce) {
  shared_.update([&] { shared_.announced = announce.text; });
}

void NetworkSide::handle(const Finished& finished) {
  shared_.update([&] { shared_.finished = finished; });
  if (!rounds_.in_a_view() && !membership_.observes())
    shared_.fail(Error(ErrorKind::config, "the run has ended; there is nothing left to join"));
  control_.stop();
}

/// A member that is in a view is refused only temporarily.
void NetworkSide::handle(const Refused& refused) {
  if (rounds_.in_a_view()) return say("the coordinator refused this worker for now: " + refused.reason);
  shared_.fail(Error(ErrorKind::config, "the coordinator refused this worker: " + refused.reason));
  control_.stop();
}

void NetworkSide::handle(const Abort& abort) {
  shared_.fail(Error(ErrorKind::network, "the run cannot continue: " + abort.reason));
  control_.stop();
}

// ---- entering views ----

void NetworkSide::on_layout(const NewView& view) {
  auto layout = layout_of(view.layout, view.chunk_elements);
  if (!layout || view.chunk_elements != rules_.chunk_elements)
    throw Error(ErrorKind::network, "it announced a view with a layout that is invalid for this run");
  if (!codec_context_) {
    codec_context_ = std::make_unique<CodecContext>(*layout, rules_.codecs, rules_.lossless);
    rounds_.use(*codec_context_);
    mesh_.queue_at_most(max_bytes_queued(*layout));
  }
  if (!std::ranges::equal(codec_context_->layout.fragments(), view.layout))
    throw Error(ErrorKind::network, "it announced a view with a different layout than before");
}

void NetworkSide::stop_taking() {
  if (taker_) taker_->stop();
}

void NetworkSide::on_view_begun() {
  stop_taking();
  heartbeats_.view_begun();
}

void NetworkSide::on_evicted() {
  heartbeats_.evicted();
  stop_taking();
}

void NetworkSide::on_ready(const std::vector<FragmentState>& states, const Ledger& ledger) {
  rounds_.begin(states, ledger, steered_);
  control_.send(Ready{});
}

void NetworkSide::on_rounds_gone() {
  membership_.evict("its donors dropped rounds that it needs before it was in a view");
}

void NetworkSide::on_no_donors() {
  if (!membership_.observes()) membership_.withdraw();
  control_.redial();
}

// ---- time ----

Heartbeat NetworkSide::heartbeat() {
  return membership_.observes() ? heartbeats_.of_observer(taker_->whole()) : heartbeats_.of_member();
}

asio::awaitable<void> NetworkSide::heartbeat_loop() {
  asio::steady_timer timer(io_);
  for (;;) {
    look_at_certificates();
    control_.send(heartbeat());
    records_.send();
    if (heartbeats_.has_waited_in_vain(shutdown_.is_done())) {
      control_.stop();
      shared_.fail(
          Error(ErrorKind::network, "the coordinator at " + network_.coordinator +
                                        " cannot be reached: no answer within network.join_timeout (" +
                                        control_.last_failure() + ")"));
    }
    timer.expires_after(to_duration(network_.heartbeat));
    co_await timer.async_wait(use_awaitable);
  }
}

asio::awaitable<void> NetworkSide::tick_loop() {
  asio::steady_timer timer(io_);
  for (;;) {
    timer.expires_after(tick_every);
    co_await timer.async_wait(use_awaitable);
    mesh_.tick();
    heartbeats_.tick();
    rounds_.tick(lease_time());
    records_.send_if_enough();
  }
}

void NetworkSide::look_at_certificates() {
  const auto news = link_.credentials ? link_.credentials->refresh() : std::nullopt;
  if (!news) return;
  say(*news);
  link_.connections->drop_revoked();
}

}  // namespace isthmus::outer_sync::transport
