#include "net/member/io/member_driver.h"

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
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "net/link/listen.h"
#include "net/link/run_secret.h"
#include "net/link/socket_options.h"
#include "net/link/spawn.h"
#include "net/mailbox/mailbox.h"
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

ControlLinkOptions control_options(const NetworkConfig& network) {
  return {.coordinators = parse_addresses(network.coordinator, "network.coordinator"),
          .silence_limit = to_duration(network.detect_timeout),
          .check_every = to_duration(network.heartbeat),
          .seed = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count())};
}

}  // namespace

MemberDriver::MemberDriver(const NetworkConfig& network, const FragmentLayout* layout,
                           const MemberRules& rules, Crossing& crossing, Trace& trace,
                           const std::optional<MailboxPlace>& mailbox)
    : network_(network),
      reduces_(layout == nullptr),
      shared_(crossing),
      codecs_(rules, layout),
      link_{.hold = to_duration(network.emulate.rtt) / 2,
            .give_up = to_duration(network.detect_timeout),
            .max_queued = codecs_.max_bytes_queued(),
            .emulate = network.emulate,
            .congestion = network.congestion,
            .credentials = credentials_of(network),
            .secret = secret_of(network),
            .mailbox = mailbox ? std::make_shared<Mailbox>(io_, *mailbox) : nullptr},
      clock_(2 * to_duration(network.heartbeat)),
      mesh_(io_, bind(), static_cast<std::size_t>(network.lanes), counters_, link_, clock_, trace, rounds_),
      control_(io_, control_options(network), link_, counters_, clock_, trace, *this),
      records_(control_),
      rounds_(io_, mesh_, codecs_, shared_, trace, saying()),
      heartbeats_(network_, link_.hold, reduces_, clock_, mesh_, rounds_, counters_, shared_, trace,
                  saying()),
      limits_(network_, mesh_, heartbeats_, shared_, saying()),
      membership_(codecs_, rounds_, mesh_, control_, heartbeats_, recovery_, shared_, saying()),
      shutdown_(control_, shared_, counters_, reduces_),
      work_(asio::make_work_guard(io_)) {
  if (!reduces_) {
    const auto parts = rules.moments ? static_cast<StateParts>(agreed_parts | moment_parts) : agreed_parts;
    recovery_.emplace(io_, *codecs_, link_, counters_, trace, parts, shared_, saying(), membership_);
    giver_.emplace(
        io_, network_, codecs_->layout, shared_, [this](FragmentId p, Round r) { return rounds_.held(p, r); },
        [this](FragmentId p) { return rounds_.ledger(p); });
    rounds_.give_state_with(*giver_);
    limits_.also_limit(*giver_);
  }
  io_thread_ = std::thread([this] { run_io(); });
  pthread_setname_np(io_thread_.native_handle(), "network");  // shown by top -H
}

MemberDriver::~MemberDriver() {
  io_.stop();
  io_thread_.join();
  if (link_.mailbox) link_.mailbox->end();
  shared_.lock()->both.state_requests.clear();  // their timers belong to the io context
}

asio::ip::tcp::acceptor MemberDriver::bind() {
  network_.check_ports();
  if (!network_.listens()) return asio::ip::tcp::acceptor(io_);
  auto acceptor = listen_at(io_, network_.listen, "network.listen");
  advertised_ = advertised_address(network_.advertise, bound_address(acceptor)).to_string();
  return acceptor;
}

/// Each wake-up preempts a compute thread on the same core, and its whole team waits for it. So under load
/// this thread wakes only once a millisecond and handles more at a time.
void MemberDriver::run_io() {
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
  shared_.update([](IoView now) { now.run.io_over = true; });
}

void MemberDriver::say(const std::string& text) const {
  const auto& name = membership_.self().name;
  const auto line = printable(text);  // may contain text from other processes
  say_error((name.empty() ? "worker" : name) + ": " + line);
  records_.add(line);
}

// ---- from any thread ----

void MemberDriver::gather(std::shared_ptr<RecordQueue> records) {
  asio::post(io_, [this, records = std::move(records)] { records_.use(records); });
}

void MemberDriver::say_hello(Hello hello) {
  if (link_.mailbox && advertised_.empty())
    advertised_ = Address{mailbox_host(hello.member.name), mailbox_port}.to_string();
  hello.member.address = advertised();
  if (reduces_) hello.member.kind = MemberKind::reducer;
  hello.uplink = network_.rate.bytes_per_second();
  hello.calendar = network_.calendar;
  asio::post(io_, [this, hello = std::move(hello)] {
    if (link_.secret) link_.secret->answer_as(hello.member.name);
    if (link_.mailbox)
      link_.mailbox->begin(
          hello.member.name, [this](asio::ip::tcp::socket socket) { mesh_.accept(std::move(socket), true); },
          saying());
    membership_.introduce(hello);
    say_what_is_missing();
    heartbeats_.silent();
    control_.start();
    spawn(io_.get_executor(), "sending heartbeats", heartbeat_loop());
    spawn(io_.get_executor(), "the member's clock", tick_loop());
  });
}

void MemberDriver::say_what_is_missing() {
  if (network_.reachable().empty()) return;  // all members are on this machine
  if (const auto missing = missing_congestion_control(network_.congestion))
    saying()("network.congestion: " + missing->problem + "; as root: " + missing->remedy);
}

void MemberDriver::activate(InitialState state) {
  asio::post(io_, [this, state = std::move(state)] { membership_.begin(state); });
}

void MemberDriver::give_up(const std::string& reason) {
  asio::post(io_, [this, reason] {
    control_.send(protocol::Evicted{reason});
    membership_.evict(reason);
  });
}

Ledger MemberDriver::ledger() {
  const auto answer = std::make_shared<std::optional<Ledger>>();
  asio::post(io_, [this, answer] {
    auto ledger = rounds_.stands() ? rounds_.member().ledger() : Ledger();
    shared_.update([&](IoView) { *answer = std::move(ledger); });
  });
  auto now = shared_.lock();
  now.wait([&] { return answer->has_value() || now->run.io_over; });
  if (!*answer)
    throw now->both.failure ? *now->both.failure : Error(ErrorKind::network, "the io thread has ended");
  return **answer;
}

void MemberDriver::send(ControlMessage message) {
  asio::post(io_, [this, message = std::move(message)] { control_.send(message); });
}

void MemberDriver::report_evaluation(const EvalReport& report) {
  asio::post(io_, [this, report] {
    control_.send(report);
    reports_.push_back(report);
    if (reports_.size() > max_reports_kept) reports_.pop_front();
  });
}

void MemberDriver::request_stop(const std::string& reason) {
  asio::post(io_, [this, reason] { shutdown_.request_stop(reason); });
}

/// The heartbeat goes first, since it reports this member's step.
void MemberDriver::request_checkpoint(const std::string& reason) {
  asio::post(io_, [this, reason] {
    control_.send(heartbeat());
    control_.send(CheckpointRequest{reason});
  });
}

void MemberDriver::done(const Done& done) {
  asio::post(io_, [this, done] {
    records_.send_all();
    control_.send(heartbeat());  // reports the last rounds
    shutdown_.done(done);
  });
}

void MemberDriver::leave(const std::string& reason) {
  asio::post(io_, [this, reason] {
    records_.send_all();
    control_.send(heartbeat());  // reports its last step, loss and digests
    shutdown_.leave(reason);
  });
}

void MemberDriver::contribute(ChunkId chunk, Round round, SharedBytes bytes, SharedBytes packed,
                              std::uint64_t weight, double squares, const SampleSet& samples) {
  asio::post(io_, [this, chunk, round, weight, squares, bytes = std::move(bytes), packed = std::move(packed),
                   samples] { rounds_.contribute(chunk, round, bytes, packed, weight, squares, samples); });
}

void MemberDriver::exchange(ChunkId chunk, std::uint64_t step, const SharedBytes& bytes, std::uint64_t weight,
                            SharedBytes packed) {
  asio::post(io_, [this, chunk, step, weight, bytes, packed = std::move(packed)] {
    rounds_.exchange(chunk, step, bytes, weight, packed);
  });
}

void MemberDriver::end_exchange(FragmentId fragment, std::uint64_t step) {
  asio::post(io_, [this, fragment, step] { rounds_.end_exchange(fragment, step); });
}

void MemberDriver::applied(FragmentId fragment, const FragmentState& state, std::vector<SampleRange> samples,
                           std::optional<std::uint64_t> life) {
  asio::post(io_, [this, fragment, state, samples = std::move(samples), life] {
    const bool counts = shared_.update([&](IoView now) {
      now.both.rounds.applied({fragment, state.round});
      return !life || life == now.both.life;
    });
    if (!rounds_.stands()) {
      if (recovery_) recovery_->learned(fragment, state);
      return;
    }
    if (counts) rounds_.applied(fragment, state, samples);
    membership_.begin_waiting_view();
  });
}

void MemberDriver::attempt_begun(std::uint64_t attempt) {
  asio::post(io_, [this, attempt] { recovery_->begun(attempt); });
}

void MemberDriver::learned(FragmentId fragment, const FragmentState& state) {
  asio::post(io_, [this, fragment, state] { recovery_->learned(fragment, state); });
}

// ---- the coordinator ----

void MemberDriver::on_up() {
  shared_.update([](IoView now) { now.run.reaches_coordinator = true; });
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

void MemberDriver::on_down(const std::string& why) {
  shared_.update([](IoView now) { now.run.reaches_coordinator = false; });
  membership_.on_disconnected();
  heartbeats_.silent();
  if (shutdown_.ends_with_connection()) return control_.stop();
  if (shutdown_.is_leaving()) return;
  const auto* meanwhile = reduces_ ? "rounds continue" : "training continues while rounds commit";
  say(why + "; " + (rounds_.in_a_view() ? meanwhile : "dialling again"));
}

void MemberDriver::on_control(ControlMessage message) {
  heartbeats_.heard();
  const auto* layout = codecs_.known() ? &codecs_->layout : nullptr;
  if (const auto problem = problem_of_message(message, {.steps = 0, .layout = layout}); !problem.empty())
    throw Error(ErrorKind::network, "the coordinator broke the protocol: " + problem);
  std::visit([this](auto& what) { handle(what); }, message);
}

void MemberDriver::handle(const HeartbeatReply& reply) {
  shared_.update([&](IoView now) {
    now.run.reference_speed = reply.inner_steps_per_second;
    now.run.common_checkpoint = reply.checkpoint;
  });
  if (recovery_) recovery_->on_newest(reply.newest);
  heartbeats_.on_reply(reply);
}

/// Ignores unknown keys: they come from a newer build.
void MemberDriver::handle(const Adjust& adjust) {
  for (const auto& [key, value] : adjust.items) {
    if (key == "network.rate") limits_.set_rate(value);
    if (key != "network.calendar") continue;
    limits_.set_calendar(value);
    membership_.calendar_is(limits_.calendar());
    control_.send(CalendarChanged{limits_.calendar()});
  }
}

/// A reducer leaves at once: it has nothing to finish.
void MemberDriver::handle(const Drain& drain) {
  say("leaving as requested: " + drain.reason);
  if (reduces_) return shutdown_.leave(drain.reason);
  shared_.update([&](IoView now) { now.run.drains = drain.reason; });
}

void MemberDriver::handle(const CheckpointAt& checkpoint) {
  const bool missed = shared_.update([&](IoView now) {
    const auto before = std::exchange(now.run.checkpoint_at, checkpoint.step);
    return before != checkpoint.step && now.trainer.step_done >= checkpoint.step;
  });
  if (missed && !reduces_) request_checkpoint("it was already past step " + std::to_string(checkpoint.step));
}

void MemberDriver::handle(const Announce& announce) {
  shared_.update([&](IoView now) { now.run.announced = announce.text; });
}

void MemberDriver::handle(const Finished& finished) {
  shared_.update([&](IoView now) { now.run.finished = finished; });
  if (!rounds_.in_a_view() && !membership_.observes())
    shared_.fail(Error(ErrorKind::config, "the run has ended; there is nothing left to join"));
  else if (!shutdown_.is_done() && !membership_.observes())
    shared_.fail(Error(
        ErrorKind::config,
        "the run has ended without this member, which does not have the final parameters; the others do"));
  control_.stop();
}

/// A member that is in a view is refused only temporarily.
void MemberDriver::handle(const Refused& refused) {
  if (rounds_.in_a_view()) return say("the coordinator refused this worker for now: " + refused.reason);
  shared_.fail(Error(ErrorKind::config, "the coordinator refused this worker: " + refused.reason));
  control_.stop();
}

void MemberDriver::handle(const Abort& abort) {
  shared_.fail(Error(ErrorKind::network, "the run cannot continue: " + abort.reason));
  control_.stop();
}

// ---- time ----

Heartbeat MemberDriver::heartbeat() {
  return membership_.observes() ? heartbeats_.of_observer(recovery_->whole()) : heartbeats_.of_member();
}

asio::awaitable<void> MemberDriver::heartbeat_loop() {
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

asio::awaitable<void> MemberDriver::tick_loop() {
  asio::steady_timer timer(io_);
  for (;;) {
    timer.expires_after(tick_every);
    co_await timer.async_wait(use_awaitable);
    limits_.tick(std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
    mesh_.tick();
    heartbeats_.tick();
    rounds_.tick(lease_time());
    records_.send_if_enough();
  }
}

void MemberDriver::look_at_certificates() {
  const auto news = link_.credentials ? link_.credentials->refresh() : std::nullopt;
  if (!news) return;
  say(*news);
  link_.connections->drop_revoked();
}

}  // namespace isthmus::outer_sync::transport
