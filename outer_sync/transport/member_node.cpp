#include "isthmus/outer_sync/transport/member_node.h"

#include <time.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/memory.h"
#include "isthmus/outer_sync/outer_loop.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "tls/credentials.h"
#include "transport/control_link.h"
#include "transport/learner.h"
#include "transport/listen.h"
#include "transport/packing.h"
#include "transport/peer_mesh.h"
#include "transport/rendezvous.h"
#include "transport/state_stream.h"
#include "transport/uplink_meter.h"

namespace isthmus::outer_sync {

using asio::use_awaitable;
using namespace protocol;
using namespace transport;
using Clock = Connection::Clock;
using namespace std::chrono_literals;

namespace {

constexpr auto farewell_limit = 1s;
constexpr auto longest_service = 1min;  ///< of learners, by one that has nothing else to do any more
constexpr auto tick_every = 50ms;
/// Who asks for results that do not come, and has no step to make meanwhile, asks again that often.
constexpr auto ask_again_after = 20ms;
constexpr std::size_t most_beats_unanswered = 64;
constexpr std::size_t most_reports_kept = 4;
constexpr Time longest_lease = 1h + 1min;  ///< network.detect_timeout with network.emulate.rtt at their most

Clock::duration to_duration(const config::Duration& duration) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(duration.seconds));
}

/// The largest frame that a peer can legally send in this run.
std::size_t largest_frame(const FragmentLayout& layout, const CodecPlan& codecs) {
  return largest_chunk_frame(largest_encoded_chunk(layout, codecs));
}

/// Leases end whatever this machine does meanwhile, so this clock goes on while it sleeps.
Time real_time() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::duration_cast<Time>(std::chrono::seconds(now.tv_sec) +
                                          std::chrono::nanoseconds(now.tv_nsec));
}

ControlLinkOptions control_options(const NetworkConfig& network) {
  return {.coordinators = parse_addresses(network.coordinator, "network.coordinator"),
          .silence_limit = to_duration(network.detect_timeout) + to_duration(network.emulate.rtt),
          .check_every = to_duration(network.heartbeat),
          .seed = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count())};
}

/// What follows from the layout of the run.
struct Workshop {
  Workshop(const FragmentLayout& run, const CodecPlan& codecs, quant::Lossless lossless)
      : layout(run),
        reducer(layout, codecs),
        contribution_packer(lossless, layout, codecs, reducer.buffers()),
        result_packer(lossless, layout, codecs, reducer.buffers()),
        unpacker(lossless, layout, codecs, reducer.buffers()) {}
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  FragmentLayout layout;
  Reducer reducer;
  ChunkPacker contribution_packer;  ///< of the trainer's thread
  ChunkPacker result_packer;        ///< of the codec thread
  ChunkUnpacker unpacker;           ///< of the io thread
};

}  // namespace

class MemberNode::Impl final : public PeerMesh::Handler,
                               public ControlLink::Handler,
                               public Learner::Handler {
 public:
  /// `layout` is null for one that only reduces.
  Impl(const NetworkConfig& network, const FragmentLayout* layout, std::uint64_t chunk_elements,
       CodecPlan codecs, ClosingRule closing, Trace& trace, quant::Lossless lossless, bool moments)
      : network_(network),
        reduces_(layout == nullptr),
        chunk_elements_(chunk_elements),
        lossless_(lossless),
        codecs_(codecs),
        closing_(closing),
        moments_(moments),
        trace_(trace),
        workshop_(reduces_ ? nullptr : std::make_unique<Workshop>(*layout, codecs, lossless)),
        link_{.hold = to_duration(network.emulate.rtt) / 2,
              .give_up = to_duration(network.detect_timeout),
              .most_queued = reduces_ ? SIZE_MAX : most_bytes_queued(*layout),
              .emulate = network.emulate,
              .congestion = network.congestion,
              .credentials = credentials_of(network)},
        clock_(2 * to_duration(network.heartbeat)),
        mesh_(io_, bind(), static_cast<std::size_t>(network.lanes), counters_, link_, clock_, trace, *this),
        control_(io_, control_options(network), link_, counters_, clock_, trace, *this),
        pacer_(std::make_shared<Pacer>(static_cast<std::uint64_t>(network.join_rate))),
        chains_(reduces_ ? 0 : layout->fragment_count()),
        work_(asio::make_work_guard(io_)),
        codec_pool_(1),
        io_thread_([this] { run_io(); }) {
    mesh_.send_at_most(network.rate.bytes_per_second());
  }

  ~Impl() override {
    io_.stop();
    io_thread_.join();
    codec_pool_.stop();
    codec_pool_.join();
    meet_.state_requests.clear();  // their timers are the io context's
  }

  // ---- called by the trainer's thread ----

  std::string advertised() const { return advertised_.to_string(); }

  void say_hello(Hello hello) {
    hello.member.address = advertised();
    if (reduces_) hello.member.kind = MemberKind::reducer;
    hello.uplink = network_.rate.bytes_per_second();
    name_ = hello.member.name;
    asio::post(io_, [this, hello] {
      hello_ = hello;
      down_since_ = clock_.now();
      control_.start();
      asio::co_spawn(io_, heartbeat_loop(), asio::detached);
      asio::co_spawn(io_, tick_loop(), asio::detached);
    });
  }

  Admission join(Hello hello) {
    say_hello(std::move(hello));
    std::unique_lock lock(meet_.mutex);
    meet_.wait_for(lock, [&] { return meet_.seal || meet_.admitted || meet_.finished; });
    if (!meet_.seal) return {.how = Admission::How::joins, .step = 0};
    const auto step = meet_.seal->resume_step;
    return {.how = step > 0 ? Admission::How::resumes : Admission::How::begins, .step = step};
  }

  void activate(const std::vector<FragmentState>& fragments, const Digest& parameters) {
    asio::post(io_, [this, fragments, parameters] {
      chains_ = fragments;
      parameters_ = parameters;
      member_.emplace(workshop_->layout, codecs_, closing_, fragments);
      std::uint64_t view = 0;
      meet_.update([&] { view = meet_.seal->view; });
      answer_seal(view);
    });
    std::unique_lock lock(meet_.mutex);
    meet_.wait_for(lock, [&] { return meet_.view || meet_.displaced; });
    throw_if_ended();
  }

  void catch_up(OuterLoop& loop) {
    for (;;) {
      std::unique_lock lock(meet_.mutex);
      meet_.wait_for(lock, [&] { return !meet_.lessons.empty() || meet_.view.has_value(); });
      if (meet_.view) {
        meet_.displaced.reset();
        const auto step = meet_.agreed_step;
        lock.unlock();
        return loop.begin_at(step);
      }
      const auto lesson = std::move(meet_.lessons.front());
      meet_.lessons.pop_front();
      if (const auto* round = std::get_if<FollowedRound>(&lesson))
        meet_.taken.insert({round->fragment, round->round});
      lock.unlock();
      learn_from(loop, lesson);
    }
  }

  bool follow(OuterLoop& loop, const std::vector<Round>& until) {
    const auto patience = to_duration(network_.detect_timeout);
    std::unique_lock lock(meet_.mutex);
    for (auto begin = Clock::now();;) {
      if (meet_.failure) throw *meet_.failure;
      if (const auto lesson = next_lesson(loop, until)) {
        lock.unlock();
        learn_from(loop, *lesson);
        return true;
      }
      if (!meet_.finished) {
        meet_.changed.wait(lock);
        begin = Clock::now();
      } else if (meet_.behind == Round{0} || meet_.nothing_comes ||
                 meet_.changed.wait_until(lock, begin + patience) == std::cv_status::timeout) {
        return false;
      }
    }
  }

  /// The first that may be taken now. A fragment that was fetched anew is past some that came before it.
  std::optional<Lesson> next_lesson(const OuterLoop& loop, const std::vector<Round>& until) {
    auto& lessons = meet_.lessons;
    for (auto at = lessons.begin(); at != lessons.end();) {
      const auto* round = std::get_if<FollowedRound>(&*at);
      const bool stale = round != nullptr && round->round <= loop.fragments()[round->fragment].round &&
                         meet_.installed.contains(round->fragment);
      if (stale || round == nullptr || round->round <= until.at(round->fragment)) {
        std::optional<Lesson> lesson;
        if (!stale) lesson = std::move(*at);
        at = lessons.erase(at);
        if (lesson) return lesson;
      } else {
        ++at;
      }
    }
    return std::nullopt;
  }

  void learn_from(OuterLoop& loop, const Lesson& lesson) {
    if (const auto* anew = std::get_if<BeginAnew>(&lesson)) {
      meet_.update([&] {
        meet_.taken.clear();  // what was taken of old is not applied any more
        meet_.installed.clear();
      });
      asio::post(io_, [this, attempt = anew->attempt] { learning_ = attempt == attempt_; });
    } else if (const auto* snapshot = std::get_if<outer_sync::FragmentSnapshot>(&lesson)) {
      loop.install(*snapshot);
      meet_.update([&] { meet_.installed.insert(snapshot->fragment); });
      asio::post(io_, [this, p = snapshot->fragment, state = snapshot->state] { learned(p, state); });
    } else {
      const auto& round = std::get<FollowedRound>(lesson);
      loop.follow(round.fragment, round.results);  // which says `applied`
    }
  }

  bool may_begin(std::uint64_t step, std::uint64_t reach) {
    std::unique_lock lock(meet_.mutex);
    throw_if_ended();
    if (meet_.hold) meet_.wait_for(lock, [&] { return meet_.stop_at || !meet_.commits || meet_.displaced; });
    // Where rounds do not commit, the step that all share cannot be reached either.
    if (meet_.hold && (!meet_.commits || (meet_.stop_at && step > *meet_.stop_at))) {
      meet_.stopped = true;
      return false;
    }
    meet_.begun = reach;
    return true;
  }

  std::string done(Done done) {
    asio::post(io_, [this, done = std::move(done)] {
      done_ = done;
      control_.send(heartbeat());  // so that it is known which rounds are the last
      control_.send(done);
    });
    std::unique_lock lock(meet_.mutex);
    while (!meet_.finished) {
      serve_requests(lock);
      meet_.changed.wait(lock,
                         [&] { return meet_.failure || meet_.finished || !meet_.state_requests.empty(); });
      if (meet_.failure && !meet_.finished) throw *meet_.failure;
    }
    serve_the_last(lock);
    return meet_.finished->problem;
  }

  /// Observers hear of the run's last rounds when it is over.
  void serve_the_last(std::unique_lock<std::mutex>& lock) {
    const auto begin = Clock::now();
    meet_.served_until = std::max(meet_.served_until, begin + to_duration(network_.detect_timeout));
    while (meet_.learners > 0 && Clock::now() < std::min(meet_.served_until, begin + longest_service)) {
      serve_requests(lock);
      meet_.changed.wait_until(lock, std::min(meet_.served_until, begin + longest_service));
    }
  }

  std::optional<std::string> follow(Hello hello) {
    say_hello(std::move(hello));
    std::unique_lock lock(meet_.mutex);
    for (;;) {
      auto next = meet_.results.end();
      meet_.changed.wait(lock, [&] {
        next = next_to_follow();
        return meet_.failure || meet_.finished || meet_.gone || next != meet_.results.end();
      });
      if (meet_.finished) return meet_.finished->problem;
      if (meet_.gone) return std::nullopt;
      if (meet_.failure) throw *meet_.failure;
      const auto [fragment, round] = next->first;
      const auto result = std::move(next->second);
      const auto before = meet_.followed[fragment].chain;
      const auto life = meet_.life;
      meet_.results.erase(next);
      meet_.taken.insert({fragment, round});
      lock.unlock();
      std::vector<std::span<const std::byte>> bytes;
      for (const auto& chunk : result.chunks) bytes.emplace_back(*chunk);
      const FragmentState state{round, log::next_chain(before, fragment, round, bytes)};
      lock.lock();
      if (life == meet_.life) meet_.followed[fragment] = state;
      asio::post(io_, [this, fragment = fragment, state, life] { followed(fragment, state, life); });
    }
  }

  void leave(const std::string& reason) {
    asio::post(io_, [this, reason] {
      leaving_ = true;
      control_.send(Leave{reason});
      control_.finish();
      if (!control_.up()) meet_.update([&] { meet_.gone = true; });
    });
    std::unique_lock lock(meet_.mutex);
    meet_.changed.wait_for(lock, farewell_limit, [&] { return meet_.gone; });
    meet_.gone = true;
    meet_.changed.notify_all();
  }

  void contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight) {
    auto packed = workshop_->contribution_packer.pack(chunk, round, *bytes);
    const double squares = closing_.reject > 0 ? workshop_->reducer.squares(chunk, round, *bytes) : 0;
    asio::post(io_,
               [this, chunk, round, weight, squares, bytes = std::move(bytes), packed = std::move(packed)] {
                 if (!member_) return;
                 member_->contribute(chunk, round, bytes, weight, squares);
                 act({bytes, packed});
               });
  }

  std::optional<RoundResult> wait(FragmentId fragment, Round round) {
    const Rendezvous::Place place{fragment, round};
    std::unique_lock lock(meet_.mutex);
    for (;;) {
      throw_if_ended();
      if (auto found = meet_.results.extract(place)) {
        meet_.taken.insert(place);
        return std::move(found.mapped());
      }
      serve_requests(lock);
      if (!meet_.commits) {
        meet_.stuck = meet_.unanswered == place;
        meet_.changed.wait_for(lock, ask_again_after);
        if (meet_.commits || meet_.results.contains(place)) continue;
        meet_.unanswered = place;
        return std::nullopt;
      }
      meet_.changed.wait(lock, [&] {
        return meet_.failure || meet_.displaced || meet_.results.contains(place) || !meet_.commits ||
               !meet_.state_requests.empty();
      });
    }
  }

  void applied(FragmentId fragment, Round round, const Digest& chain) {
    asio::post(io_, [this, fragment, round, chain] {
      meet_.update([&] { meet_.taken.erase({fragment, round}); });
      chains_[fragment] = {round, chain};
      if (!member_) return learned(fragment, chains_[fragment]);
      member_->applied(fragment, round, chain);
      act();
      begin_waiting_view();
    });
  }

  void serve_state_from(StateSource source) {
    const std::lock_guard lock(meet_.mutex);
    state_source_ = std::move(source);
  }

  void serve() {
    std::unique_lock lock(meet_.mutex);
    throw_if_ended();
    meet_.unanswered.reset();
    meet_.stuck = false;
    serve_requests(lock);
  }

  void post_control(ControlMessage message) {
    asio::post(io_, [this, message = std::move(message)] { control_.send(message); });
  }

  void report_evaluation(const EvalReport& report) {
    asio::post(io_, [this, report] {
      control_.send(report);
      reports_.push_back(report);
      if (reports_.size() > most_reports_kept) reports_.pop_front();
    });
  }

  void request_stop(const std::string& reason) {
    asio::post(io_, [this, reason] {
      if (control_.up()) return control_.send(StopRequest{reason});
      if (reduces_) return;  // the others may need it
      // Nobody to agree with: this replica stops where it is.
      meet_.update([&] {
        meet_.hold = true;
        meet_.stop_at = meet_.begun;
      });
    });
  }

  Participation participation() {
    const std::lock_guard lock(meet_.mutex);
    auto seen = participation_;
    if (!meet_.commits) seen.participating = 0;
    return seen;
  }

  // ---- bulk, on the io thread ----

  std::optional<std::string> on_chunk(ReplicaId from, Connection::Received chunk) override {
    const auto index = index_of(from);
    if (!index) return std::nullopt;  // of a view that has not begun here, or is over
    if (auto problem = workshop_->unpacker.unpack(chunk.head, chunk.body)) return problem;
    auto problem = member_->receive(*index, message_of(std::move(chunk)));
    act();
    return problem;
  }
  void on_ack(ReplicaId from, ViewNumber view, const ChunkKey& key) override {
    if (const auto index = index_of(from)) member_->acknowledged(*index, view, key);
  }
  void on_begun(ReplicaId from, ViewNumber view) override {
    const auto index = index_of(from);
    if (!index) return;
    member_->peer_begun(*index, view);
    act();
  }
  void on_peer_up(ReplicaId peer) override {
    count_live();
    const auto index = index_of(peer);
    if (!index) return;
    member_->repeat_to(*index, [](const ChunkKey&) { return true; });
    act();
  }
  void on_peer_down(ReplicaId) override { count_live(); }  // it is dialled again; the coordinator hears of it
  void on_broken_peer(ReplicaId peer, const std::string& why) override {
    const auto index = index_of(peer);
    const auto name = index ? member_->view().members[*index].name : "a peer";
    fail(Error(ErrorKind::network, name + " breaks the protocol: " + why));
  }
  asio::awaitable<void> on_learner(ReplicaId, ConnectionPtr connection) override {
    if (reduces_) throw Error(ErrorKind::network, "who only reduces has no state to give");
    const Served served(meet_);
    co_await serve_learner(
        connection, workshop_->layout, pacer_, [this](StateRequest request) { return snapshot(request); },
        [this](FragmentId p, Round r) { return round_for_learner(p, r); });
  }
  void on_message(const std::string& text) override { say(text); }

  Rendezvous meet_;
  WireCounters counters_;

 private:
  friend class MemberNode;

  /// Counts a learner while it is served.
  class Served {
   public:
    explicit Served(Rendezvous& meet) : meet_(meet) {
      meet_.update([&] { ++meet_.learners; });
    }
    ~Served() {
      meet_.update([&] { --meet_.learners; });
    }
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;

   private:
    Rendezvous& meet_;
  };

  std::vector<SharedBytes> round_for_learner(FragmentId p, Round r) {
    auto results = member_ ? member_->held(p, r) : std::vector<SharedBytes>();
    double bytes = 0;
    for (const auto& result : results) bytes += result ? static_cast<double>(result->size()) : 0;
    const auto takes = std::chrono::duration<double>(bytes / static_cast<double>(network_.join_rate)) +
                       std::chrono::duration<double>(network_.detect_timeout.seconds);
    meet_.update([&] {
      meet_.served_until =
          std::max(meet_.served_until, Clock::now() + std::chrono::duration_cast<Clock::duration>(takes));
    });
    return results;
  }

  StateParts parts_to_learn() const {
    return moments_ ? static_cast<StateParts>(agreed_parts | moment_parts) : agreed_parts;
  }
  bool observes() const { return hello_.member.kind == MemberKind::observer; }

  asio::ip::tcp::acceptor bind() {
    auto acceptor = listen_at(io_, network_.listen, "network.listen");
    advertised_ = advertised_address(network_.advertise, bound_address(acceptor));
    return acceptor;
  }

  void run_io() {
    try {
      io_.run();
    } catch (const std::exception& error) {
      fail(Error(ErrorKind::network, std::string("the io thread failed: ") + error.what()));
    }
  }

  /// One line on standard error per event; limiters keep strangers from filling a disk.
  void say(const std::string& text) {
    std::fprintf(stderr, "%s: %s\n", hello_.member.name.empty() ? "worker" : hello_.member.name.c_str(),
                 text.c_str());
  }

  void fail(const Error& error) {
    meet_.update([&] {
      if (!meet_.failure) meet_.failure = error;
    });
  }

  /// Position in the view in force here.
  std::optional<MemberIndex> index_of(ReplicaId peer) const {
    if (!member_) return std::nullopt;
    const auto place = std::ranges::find(ids_, peer);
    if (place == ids_.end()) return std::nullopt;
    return static_cast<MemberIndex>(place - ids_.begin());
  }

  std::size_t most_bytes_queued(const FragmentLayout& layout) const { return most_queued(layout, codecs_); }

  // ---- of the trainer's thread, under the lock ----

  /// Rounds of a fragment may be complete in any order; they are followed in theirs.
  std::map<Rendezvous::Place, RoundResult>::iterator next_to_follow() {
    return std::ranges::find_if(meet_.results, [this](const auto& entry) {
      const auto [fragment, round] = entry.first;
      return fragment < meet_.followed.size() && round == meet_.followed[fragment].round + 1;
    });
  }

  void throw_if_ended() const {
    if (meet_.failure) throw *meet_.failure;
    if (meet_.displaced) throw outer_sync::Displaced(*meet_.displaced);
  }

  void serve_requests(std::unique_lock<std::mutex>& lock) {
    while (!meet_.state_requests.empty() && state_source_) {
      const auto question = std::move(meet_.state_requests.front());
      meet_.state_requests.pop_front();
      const auto source = state_source_;
      lock.unlock();
      question.answer(source(question.fragment, question.moments));
      lock.lock();
    }
  }

  // ---- rounds, on the io thread ----

  /// A chunk that has just been made, and what it was packed to (null where that would not be smaller).
  struct Fresh {
    SharedBytes bytes, packed;
  };

  /// Chunks that are sent once more, on a new connection, travel unpacked: they are few, and so nothing has
  /// to be kept twice.
  void act(const Fresh& fresh = {}) {
    for (auto& action : member_->take_actions()) {
      if (auto* chunk = std::get_if<SendChunk>(&action)) {
        const auto& message = chunk->message;
        mesh_.send(ids_[chunk->peer], order_of(message.key), message,
                   message.bytes == fresh.bytes ? fresh.packed : nullptr);
      } else if (auto* ack = std::get_if<SendAck>(&action)) {
        mesh_.acknowledge(ids_[ack->peer], ack->view, ack->key);
      } else if (auto* begun = std::get_if<SendBegun>(&action)) {
        mesh_.say_begun(ids_[begun->peer], begun->view);
      } else if (auto* job = std::get_if<Reduce>(&action)) {
        asio::post(codec_pool_, [this, job = std::move(*job)] { reduce(job); });
      } else if (auto* forget = std::get_if<ForgetResidual>(&action)) {
        asio::post(codec_pool_, [this, chunk = forget->chunk] { workshop_->reducer.forget(chunk); });
      } else if (auto* round = std::get_if<Deliver>(&action)) {
        say_if_rejected(*round);
        meet_.update([&] {
          participation_.contributed = round->contributed;
          meet_.results[{round->fragment, round->round}] = {
              std::move(round->results), std::move(round->included), std::move(round->rejected)};
        });
      }  // a Retract is carried out by `begin_view`, under the lock
    }
  }

  /// Rounds are due in the order in which they begin. What is sent of one later, again, keeps its place.
  std::uint64_t order_of(const ChunkKey& key) {
    const Rendezvous::Place place{workshop_->layout.fragment_of(key.chunk), key.round};
    std::erase_if(orders_, [&](const auto& entry) {
      return entry.first.first == place.first && entry.first.second + Member::most_held < place.second;
    });
    return orders_.try_emplace(place, orders_begun_ + 1).second ? ++orders_begun_ : orders_.at(place);
  }

  /// A replica that is sick is so for long.
  void say_if_rejected(const Deliver& round) {
    constexpr std::uint64_t say_every = 100;
    const auto chunks = std::ranges::count(round.rejected, true);
    if (chunks == 0 || rejected_++ % say_every != 0) return;
    say("the others left out this replica's contribution to " + std::to_string(chunks) + " of " +
        std::to_string(round.rejected.size()) + " chunks of fragment " + std::to_string(round.fragment) +
        ", round " + std::to_string(round.round) +
        ": its norm is more than outer.reject times the median; it does not come back");
  }

  void reduce(const protocol::Reduce& job) {
    try {
      const Trace::Scope scope(
          trace_, Trace::Row::reduce, "reduce",
          "{\"chunk\":" + std::to_string(job.chunk) + ",\"round\":" + std::to_string(job.round) + "}");
      auto made = workshop_->reducer.reduce(job.chunk, job.round, job.contributions, job.weights, job.reject);
      const bool alone = job.contributions.size() == 1;
      auto packed = alone ? nullptr : workshop_->result_packer.pack(job.chunk, job.round, *made.bytes);
      asio::post(io_, [this, view = job.view, chunk = job.chunk, round = job.round, made = std::move(made),
                       packed = std::move(packed)] {
        if (!member_) return;
        member_->reduced(view, chunk, round, made.bytes, made.measured);
        act({made.bytes, packed});
      });
    } catch (const BadContribution& error) {
      asio::post(io_, [this, error, view = job.view, member = job.members.at(error.contribution)] {
        const bool known = member_ && member_->view().number == view;
        fail(Error(error.kind(),
                   (known ? member_->view().members.at(member).name + ": " : std::string()) + error.what()));
      });
    } catch (const Error& error) {
      fail(error);
    }
  }

  // ---- control, on the io thread ----

  void on_up() override {
    if (member_ && member_->view().number > 0) {
      hello_.sealed = member_->sealed();
      hello_.activated = member_->view().number;
      hello_.token = token_;
      say("the coordinator is there again");
    }
    if (!member_) blank_seal_ = 0;  // what the one before had asked for is void with its connection
    beats_.clear();
    hello_.done = done_.has_value();
    hello_.fresh = is_fresh();
    control_.send(hello_);
    // A coordinator that has come back has not heard these.
    for (const auto& report : reports_) control_.send(report);
    if (done_) control_.send(*done_);
    // A coordinator that came after the one that was asked does not know of it.
    const bool stops = [&] {
      const std::lock_guard lock(meet_.mutex);
      return meet_.hold && !meet_.stop_at;
    }();
    if (stops) control_.send(StopRequest{"as was asked before"});
  }

  bool is_fresh() {
    const std::lock_guard lock(meet_.mutex);
    return !meet_.admitted && !meet_.view && !meet_.displaced;
  }

  void on_down(const std::string& why) override {
    if (learner_ && !observes()) {  // whom to learn from may have changed by then
      stop_learning();
      member_.reset();
      waiting_view_.reset();
    }
    if (!down_since_) down_since_ = clock_.now();
    if (leaving_) meet_.update([&] { meet_.gone = true; });
    const bool over = [&] {
      const std::lock_guard lock(meet_.mutex);
      return meet_.finished || meet_.failure;
    }();
    if (over) return control_.stop();
    if (leaving_) return;
    const auto* meanwhile = reduces_ ? "rounds go on" : "training goes on while rounds commit";
    say(why + "; " + (ids_.empty() ? "dialling again" : meanwhile));
  }

  void on_control(ControlMessage message) override {
    if (down_since_) vouched_ = clock_.now();
    down_since_.reset();
    if (auto* seal = std::get_if<Seal>(&message)) {
      on_seal(*seal);
    } else if (auto* view = std::get_if<NewView>(&message)) {
      on_new_view(std::move(*view));
    } else if (auto* reply = std::get_if<HeartbeatReply>(&message)) {
      on_reply(*reply);
    } else if (auto* admitted = std::get_if<Admitted>(&message); admitted != nullptr && !reduces_) {
      learn(*admitted);
    } else if (auto* displaced = std::get_if<protocol::Displaced>(&message)) {
      on_displaced(displaced->reason);
    } else if (auto* suspended = std::get_if<Suspended>(&message)) {
      suspended_ = suspended->reason;
      judge_commits();
    } else if (auto* announce = std::get_if<Announce>(&message)) {
      meet_.update([&] { meet_.announced = announce->text; });
    } else if (reduces_ && std::holds_alternative<Hold>(message)) {
      // It has no step to name.
    } else if (reduces_ && std::holds_alternative<StopAt>(message)) {
      done_ = Done{"{\"total_bytes\": " + std::to_string(counters_.total) + "}", {}};
      control_.send(*done_);
    } else if (std::holds_alternative<Hold>(message)) {
      Held held;
      meet_.update([&] {
        meet_.hold = true;
        held.step = meet_.begun;
      });
      control_.send(held);
    } else if (auto* stop = std::get_if<StopAt>(&message)) {
      meet_.update([&] { meet_.stop_at = stop->step; });
    } else if (auto* finished = std::get_if<Finished>(&message)) {
      meet_.update([&] { meet_.finished = *finished; });
      if (ids_.empty() && !observes())
        fail(Error(ErrorKind::config, "the run has ended; there is nothing left to join"));
      control_.stop();
    } else if (auto* refused = std::get_if<Refused>(&message)) {
      on_refused(refused->reason);
    } else if (auto* abort = std::get_if<Abort>(&message)) {
      fail(Error(ErrorKind::network, "the run cannot go on: " + abort->reason));
      control_.stop();
    } else {
      throw Error(ErrorKind::network, "it sent a message that is a member's to send");
    }
  }

  /// Whoever has been in the run is asked to go away only for the moment.
  void on_refused(const std::string& reason) {
    if (!ids_.empty()) return say("the coordinator refused this worker for now: " + reason);
    fail(Error(ErrorKind::config, "the coordinator refused this worker: " + reason));
    control_.stop();
  }

  void on_seal(const Seal& seal) {
    if (reduces_ && !member_) return answer_seal_blankly(seal.view);
    meet_.update([&] {
      if (!meet_.seal || !member_) meet_.seal = seal;
    });
    if (member_) answer_seal(seal.view);
  }

  void answer_seal(ViewNumber view) {
    auto sealed = member_->seal(view);
    if (!sealed) return;
    {
      const std::lock_guard lock(meet_.mutex);
      sealed->step = meet_.report.step;
    }
    sealed->parameters = parameters_;
    control_.send(std::move(*sealed));
  }

  /// Who only reduces and has been in no view knows of nothing; but it enters no older one from here on.
  void answer_seal_blankly(ViewNumber view) {
    if (view < blank_seal_) return;
    blank_seal_ = view;
    Sealed sealed;
    sealed.view = view;
    control_.send(std::move(sealed));
  }

  /// What it needs it is told with the view.
  void begin_reducing(const NewView& message) {
    auto layout = layout_of(message.layout, message.chunk_elements);
    if (!layout || message.chunk_elements != chunk_elements_)
      throw Error(ErrorKind::network, "it announced a view of no layout that this run can have");
    if (!workshop_) {
      workshop_ = std::make_unique<Workshop>(*layout, codecs_, lossless_);
      mesh_.queue_at_most(most_bytes_queued(*layout));
    }
    if (!std::ranges::equal(workshop_->layout.fragments(), message.layout))
      throw Error(ErrorKind::network, "it announced a view of another layout than before");
    member_.emplace(workshop_->layout, codecs_, closing_,
                    std::vector<FragmentState>(workshop_->layout.fragment_count()));
    static_cast<void>(member_->seal(blank_seal_));
  }

  void on_new_view(NewView message) {
    if (reduces_ && !member_) begin_reducing(message);
    const auto& members = message.view.members;
    const auto me = std::ranges::find(members, own_id(), id_of);
    const auto self = static_cast<MemberIndex>(me - members.begin());
    if (me == members.end() || !member_ || !member_->fits(message, self))
      throw Error(ErrorKind::network, "it announced a view that does not fit this member");
    waiting_view_ = std::move(message);
    begin_waiting_view();
  }

  /// A view may void results that have not been applied: so not while one of them is being applied.
  void begin_waiting_view() {
    if (!waiting_view_) return;
    const auto& members = waiting_view_->view.members;
    const auto self = static_cast<MemberIndex>(std::ranges::find(members, own_id(), id_of) - members.begin());
    const bool of_reference = member_->is_of_reference(*waiting_view_, self);
    std::unique_lock lock(meet_.mutex);
    if (!of_reference && !meet_.taken.empty()) return;
    const auto message = *std::exchange(waiting_view_, std::nullopt);
    const auto entry = member_->activate(message, self);
    if (entry == Member::Entry::begun && !of_reference) {
      meet_.results.clear();
      meet_.lessons.clear();  // they come once more, as results that are decided
      if (reduces_) {
        meet_.followed = chains_ = member_->fragments();
        ++meet_.life;
      }
    }
    lock.unlock();
    if (entry == Member::Entry::displaced) {
      control_.send(
          protocol::Displaced{"its rounds are not those of view " + std::to_string(message.view.number)});
      return on_displaced("this replica's rounds are not those of the run");
    }
    if (entry == Member::Entry::begun) on_view_begun(message, of_reference);
  }

  void on_view_begun(const NewView& message, bool of_reference) {
    const bool first = ids_.empty();
    stop_learning();
    suspended_.clear();
    vouched_ = clock_.now();
    hello_.member = message.view.members[member_->self()];
    ids_.clear();
    std::vector<PeerInfo> peers;
    for (const auto& member : message.view.members) {
      ids_.push_back(id_of(member));
      if (ids_.back() != own_id()) peers.push_back({ids_.back(), member.name, member.address});
    }
    begin_mesh(message.token);
    mesh_.set_peers(std::move(peers));
    mesh_.view_begun(message.view.number);
    if (!first) say(describe(message.view));
    meet_.update([&] {
      if (!of_reference) meet_.agreed_step = message.step;
      meet_.view = message;
      meet_.commits = true;
    });
    count_live();
    act();
  }

  static std::string describe(const View& view) {
    std::string names;
    for (const auto& member : view.members) names += (names.empty() ? "" : ", ") + member.name;
    const auto trainers = std::ranges::count_if(view.members, trains);
    const auto reducers = static_cast<std::ptrdiff_t>(view.members.size()) - trainers;
    return "view " + std::to_string(view.number) + " begins with " + std::to_string(trainers) + " replicas" +
           (reducers == 0 ? "" : " and " + std::to_string(reducers) + " that only reduce") + ": " + names;
  }

  void begin_mesh(const Digest& token) {
    if (token_ == token) return;
    token_ = token;
    mesh_.begin(own_id(), hello_.member.name, token, largest_frame(workshop_->layout, codecs_),
                workshop_->reducer.buffers());
  }

  ReplicaId own_id() const { return id_of(hello_.member); }

  void count_live() {
    Participation seen;
    for (std::size_t m = 0; m < ids_.size(); ++m) {
      if (!trains(member_->view().members[m])) continue;
      ++seen.participating;
      seen.live += ids_[m] == own_id() || mesh_.up(ids_[m]) ? 1 : 0;
    }
    const std::lock_guard lock(meet_.mutex);
    participation_.live = seen.live;
    participation_.participating = seen.participating;
  }

  bool nobody_is_up() const {
    return std::ranges::none_of(ids_, [this](ReplicaId id) { return mesh_.up(id); });
  }

  void on_reply(const HeartbeatReply& reply) {
    meet_.update([&] { meet_.reference_speed = reply.inner_steps_per_second; });
    if (learner_ && reply.newest.size() == workshop_->layout.fragment_count()) {
      newest_ = reply.newest;
      learner_->newest(newest_);
      observes() ? count_behind() : say_ready_if_so();
    }
    const auto sent = beats_.find(reply.number);
    if (sent == beats_.end()) return;
    if (member_ && reply.view != 0 && reply.view == member_->view().number) {
      vouched_ = clock_.now();
      member_->lease_until(sent->second + Time(std::min<std::uint64_t>(reply.lease, longest_lease.count())));
      member_->lowest_applied(reply.lowest);
    }
    beats_.erase(beats_.begin(), std::next(sent));
  }

  // ---- taking the state from others ----

  /// What this replica has contributed is of one that is gone; so it comes back under another incarnation.
  void on_displaced(const std::string& reason) {
    say((reduces_ ? "comes again: " : "must take the state from other members: ") + reason);
    member_.reset();
    ids_.clear();
    waiting_view_.reset();
    suspended_.clear();
    mesh_.set_peers({});
    stop_learning();
    for (ChunkId k = 0; workshop_ && k < workshop_->layout.chunk_count(); ++k)
      asio::post(codec_pool_, [this, k] { workshop_->reducer.forget(k); });
    ++hello_.member.incarnation;
    hello_.sealed = hello_.activated = 0;
    token_ = {};
    blank_seal_ = 0;
    meet_.update([&] {
      ++meet_.life;
      if (!reduces_) meet_.displaced = reason;
      meet_.behind.reset();
      meet_.results.clear();
      meet_.view.reset();
      meet_.lessons.clear();
    });
    control_.redial();
  }

  /// Each attempt begins with nothing: what the trainer has in hand of the one before does not count.
  void learn(const Admitted& admitted) {
    if (member_ && member_->view().number > 0) return;
    if (member_) meet_.update([&] { meet_.displaced = "the run has begun without this replica"; });
    member_.reset();
    const bool goes_on = observes() && learner_ && token_ == admitted.token;
    begin_mesh(admitted.token);
    std::vector<PeerInfo> donors;
    for (const auto& donor : admitted.donors) donors.push_back({id_of(donor), donor.name, donor.address});
    if (goes_on) return learner_->start(donors, own_id(), token_, parts_to_learn());  // what is here stays
    say("takes the state from " + std::to_string(donors.size()) + " members");
    learned_.assign(workshop_->layout.fragment_count(), false);
    newest_.clear();
    learning_ = false;  // until the trainer has begun anew
    received_.assign(workshop_->layout.fragment_count(), std::nullopt);
    meet_.update([&] {
      meet_.admitted = true;
      meet_.behind.reset();
      meet_.lessons.clear();
      meet_.lessons.emplace_back(BeginAnew{++attempt_});
    });
    learner_.emplace(io_, workshop_->layout, codecs_, link_, counters_, trace_, workshop_->reducer.buffers(),
                     *this);
    learner_->start(donors, own_id(), admitted.token, parts_to_learn());
  }

  void stop_learning() {
    learner_.reset();
    learning_ = false;
  }

  void on_fragment(transport::FragmentSnapshot snapshot) override {
    // What it is ready with is what the others count on.
    if (member_) return on_displaced("rounds that it needs were gone before it was in a view");
    received_.at(snapshot.fragment) = snapshot.at.round;
    const auto part = [&](StatePart which) { return snapshot.values[static_cast<std::size_t>(which)]; };
    outer_sync::FragmentSnapshot lesson{.fragment = snapshot.fragment,
                                        .state = snapshot.at,
                                        .theta = part(StatePart::theta),
                                        .velocity = part(StatePart::velocity),
                                        .first_moment = part(StatePart::first_moment),
                                        .second_moment = part(StatePart::second_moment),
                                        .inner_steps = snapshot.inner_steps};
    meet_.update([&] { meet_.lessons.emplace_back(std::move(lesson)); });
    count_behind();
  }
  void on_round(FragmentId fragment, Round round, std::vector<SharedBytes> results) override {
    received_.at(fragment) = round;
    meet_.update([&] { meet_.lessons.emplace_back(FollowedRound{fragment, round, std::move(results)}); });
    count_behind();
  }
  void on_failed(const std::string& why) override {
    bool over = false;
    meet_.update([&] { over = meet_.nothing_comes = meet_.finished.has_value(); });
    if (over) return;
    say("takes no state: " + why + "; asks the coordinator again");
    if (observes()) return control_.redial();  // what is here stays
    stop_learning();
    member_.reset();
    control_.redial();
  }

  /// The trainer has it in the global parameters.
  void learned(FragmentId fragment, const FragmentState& state) {
    if (!learning_) return;
    chains_[fragment] = state;
    learned_[fragment] = true;
    say_ready_if_so();
  }

  /// How far an observer's rounds are behind the members', as they have come.
  void count_behind() {
    std::optional<Round> most;
    for (FragmentId p = 0; p < received_.size() && p < newest_.size(); ++p) {
      if (!received_[p]) return;
      most = std::max(most.value_or(0), newest_[p] - std::min(newest_[p], *received_[p]));
    }
    meet_.update([&] { meet_.behind = most; });
  }

  void say_ready_if_so() {
    if (observes() || member_ || !learner_->caught_up()) return;
    for (FragmentId p = 0; p < chains_.size(); ++p) {
      if (!learned_[p] || (!newest_.empty() && chains_[p].round + 1 < newest_[p])) return;
    }
    say("has the state and is ready to take part");
    member_.emplace(workshop_->layout, codecs_, closing_, chains_);
    control_.send(Ready{});
  }

  // ---- giving it ----

  /// Throws Error(network), which ends the learner's connection, for moments that are not shared here.
  asio::awaitable<transport::FragmentSnapshot> snapshot(StateRequest request) {
    struct Answer {
      explicit Answer(asio::io_context& io) : there(io, Clock::time_point::max()) {}
      asio::steady_timer there;
      std::optional<outer_sync::FragmentSnapshot> snapshot;
    };
    const auto answer = std::make_shared<Answer>(io_);
    meet_.update([&] {
      const auto hand_over = [this, answer](outer_sync::FragmentSnapshot snapshot) {
        asio::post(io_, [answer, snapshot = std::move(snapshot)]() mutable {
          answer->snapshot = std::move(snapshot);
          answer->there.cancel();
        });
      };
      meet_.state_requests.push_back({request.fragment, (request.parts & moment_parts) != 0, hand_over});
    });
    asio::error_code woken;
    while (!answer->snapshot) {
      co_await answer->there.async_wait(asio::redirect_error(use_awaitable, woken));
    }
    const auto& given = *answer->snapshot;
    transport::FragmentSnapshot out{
        .fragment = request.fragment, .at = given.state, .values = {}, .inner_steps = given.inner_steps};
    const auto add = [&](StatePart part, const SharedFloats& values) {
      if ((request.parts & set_of(part)) != 0) out.values[static_cast<std::size_t>(part)] = values;
    };
    add(StatePart::theta, given.theta);
    add(StatePart::velocity, given.velocity);
    add(StatePart::first_moment, given.first_moment);
    add(StatePart::second_moment, given.second_moment);
    if (out.parts() != request.parts)
      throw Error(ErrorKind::network, "it asked for the inner optimizer's moments, which are not given here");
    co_return out;
  }

  // ---- of one that only reduces ----

  /// What was taken before its rounds became void counts no more.
  void followed(FragmentId fragment, const FragmentState& state, std::uint64_t life) {
    bool counts = false;
    meet_.update([&] {
      meet_.taken.erase({fragment, state.round});
      counts = life == meet_.life;
    });
    if (counts && member_) {
      chains_[fragment] = state;
      member_->applied(fragment, state.round, state.chain);
      act();
    }
    if (member_) begin_waiting_view();
  }

  // ---- time ----

  asio::awaitable<void> heartbeat_loop() {
    asio::steady_timer timer(io_);
    for (;;) {
      look_at_certificates();
      control_.send(heartbeat());
      // Whoever trains does not need it for that; who waits for the run to begin, to go on or to end does.
      const bool waits = ids_.empty() || done_ || is_stuck() || (reduces_ && nobody_is_up());
      if (down_since_ && waits && clock_.now() - *down_since_ > to_duration(network_.join_timeout)) {
        control_.stop();
        fail(Error(ErrorKind::network, "the coordinator at " + network_.coordinator +
                                           " is not there: no answer within network.join_timeout (" +
                                           control_.last_failure() + ")"));
      }
      timer.expires_after(to_duration(network_.heartbeat));
      co_await timer.async_wait(use_awaitable);
    }
  }

  void look_at_certificates() {
    const auto news = link_.credentials ? link_.credentials->refresh() : std::nullopt;
    if (!news) return;
    say(*news);
    mesh_.drop_revoked();
    control_.drop_revoked();
  }

  asio::awaitable<void> tick_loop() {
    asio::steady_timer timer(io_);
    for (;;) {
      timer.expires_after(tick_every);
      co_await timer.async_wait(use_awaitable);
      judge_commits();
      mesh_.tick();
      uplink_.sample(clock_.now(), counters_.total, mesh_.backed_up());
      if (!member_) continue;
      member_->tick(real_time());
      act();
    }
  }

  /// Whether a result that is due is worth waiting for. A view change takes a moment; one that takes longer
  /// than a silence that counts as a loss may take for ever.
  void judge_commits() {
    const auto limit = to_duration(network_.detect_timeout) + 2 * link_.hold;
    const auto now = clock_.now();
    std::string obstacle = suspended_;
    if (!ids_.empty() && !down_since_ && now - vouched_ > limit) obstacle = "this replica is in no view";
    const bool alone = down_since_ && now - *down_since_ > limit;
    if (alone && !mesh_.lost(limit).empty())
      obstacle = "the coordinator and some of the members cannot be reached";
    bool changed = false;
    meet_.update([&] {
      changed = meet_.commits != obstacle.empty();
      meet_.commits = obstacle.empty();
    });
    if (changed && !obstacle.empty())
      say("ROUNDS DO NOT COMMIT: " + obstacle +
          (reduces_ ? "" : ". Training goes on locally for at most outer.max_local_rounds."));
    if (changed && obstacle.empty()) say("rounds commit again");
  }

  bool is_stuck() {
    const std::lock_guard lock(meet_.mutex);
    return meet_.stuck && !meet_.commits;
  }

  Heartbeat heartbeat() {
    Heartbeat beat;
    beat.number = ++beat_number_;
    beats_[beat.number] = real_time();
    if (beats_.size() > most_beats_unanswered) beats_.erase(beats_.begin());
    {
      const std::lock_guard lock(meet_.mutex);
      beat.step = meet_.report.step;
      beat.loss = meet_.report.loss;
      beat.tokens_per_second = meet_.report.tokens_per_second;
      beat.utilization = meet_.report.utilization;
      beat.bytes_sent = meet_.report.other_bytes;
      beat.inner_steps_per_second = meet_.report.inner_steps_per_second;
      beat.contributed = static_cast<std::uint16_t>(participation_.contributed);
    }
    beat.bytes_sent += counters_.total;
    if (observes()) {
      const auto is_here = [](bool learned) { return learned; };
      if (learned_.empty() || !std::ranges::all_of(learned_, is_here)) return beat;
      for (const auto& fragment : chains_)
        beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
      return beat;
    }
    beat.uplink = network_.rate.bytes_per_second();
    if (beat.uplink == 0) beat.uplink = uplink_.bytes_per_second();
    if (!member_ || ids_.empty()) return beat;
    beat.view = member_->view().number;
    beat.lost = mesh_.lost(to_duration(network_.detect_timeout) + 2 * link_.hold);
    for (const auto& fragment : chains_)
      beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
    beat.health = member_->take_health();
    return beat;
  }

  NetworkConfig network_;
  std::string name_;              ///< of the trainer's thread
  bool reduces_;                  ///< and does nothing else
  std::uint64_t chunk_elements_;  ///< of its run, whose layout it does not know before its first view
  quant::Lossless lossless_;
  CodecPlan codecs_;
  ClosingRule closing_;
  const bool moments_;  ///< taken from members with the state
  Trace& trace_;
  std::unique_ptr<Workshop> workshop_;
  LinkOptions link_;
  asio::io_context io_;
  Address advertised_;
  AwakeClock clock_;
  PeerMesh mesh_;
  ControlLink control_;
  std::optional<Learner> learner_;  ///< while the state is taken from others
  std::shared_ptr<Pacer> pacer_;

  Hello hello_;
  Digest token_;
  std::optional<Done> done_;
  std::deque<EvalReport> reports_;  ///< the newest evaluations
  std::optional<Member> member_;
  std::vector<ReplicaId> ids_;  ///< of the members of the view in force here; empty outside of one
  std::vector<FragmentState> chains_;
  Digest parameters_;                                  ///< global ones, before the first view
  std::map<Rendezvous::Place, std::uint64_t> orders_;  ///< of rounds, as they have begun here
  std::uint64_t orders_begun_ = 0;
  std::optional<NewView> waiting_view_;
  ViewNumber blank_seal_ = 0;  ///< of one that only reduces: highest sealed before its first view
  UplinkMeter uplink_;
  std::uint64_t beat_number_ = 0;
  std::map<std::uint64_t, Time> beats_;        ///< when each was sent, of those not answered
  std::optional<Clock::duration> down_since_;  ///< by clock_: no coordinator has been heard since
  Clock::duration vouched_{};                  ///< by clock_: when it last said that this view is in force
  std::string suspended_;                      ///< by the coordinator, and why
  bool leaving_ = false;
  std::uint64_t rejected_ = 0;                  ///< rounds that this replica was left out of for its norm
  std::uint64_t attempt_ = 0;                   ///< to take the state from others
  bool learning_ = false;                       ///< the trainer has begun this attempt
  std::vector<bool> learned_;                   ///< by fragment: in the global parameters here
  std::vector<std::optional<Round>> received_;  ///< by fragment: the last that has come
  std::vector<Round> newest_;                   ///< by fragment, of the run's members
  Participation participation_;                 ///< under the rendezvous' mutex, like the state source
  StateSource state_source_;

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::thread_pool codec_pool_;
  std::thread io_thread_;
};

MemberNode::MemberNode(const NetworkConfig& network, const FragmentLayout& layout, CodecPlan codecs,
                       ClosingRule closing, Trace& trace, quant::Lossless lossless, bool moments)
    : impl_(std::make_unique<Impl>(network, &layout, layout.chunk_elements(), codecs, closing, trace,
                                   lossless, moments)) {}
MemberNode::MemberNode(const NetworkConfig& network, std::uint64_t chunk_elements, CodecPlan codecs,
                       ClosingRule closing, Trace& trace, quant::Lossless lossless)
    : impl_(std::make_unique<Impl>(network, nullptr, chunk_elements, codecs, closing, trace, lossless,
                                   false)) {}
MemberNode::~MemberNode() = default;

std::string MemberNode::advertised() const { return impl_->advertised(); }
Admission MemberNode::join(Hello hello) { return impl_->join(std::move(hello)); }
void MemberNode::activate(const std::vector<FragmentState>& fragments, const Digest& parameters) {
  impl_->activate(fragments, parameters);
}
void MemberNode::catch_up(OuterLoop& loop) { impl_->catch_up(loop); }
bool MemberNode::follow(OuterLoop& loop, const std::vector<Round>& until) {
  return impl_->follow(loop, until);
}
bool MemberNode::has_state() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.installed.size() == impl_->workshop_->layout.fragment_count();
}
bool MemberNode::is_current() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  const auto& meet = impl_->meet_;
  return meet.lessons.empty() && meet.behind && *meet.behind <= (meet.finished ? 0 : 1);
}
std::optional<Finished> MemberNode::finished() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.finished;
}
View MemberNode::view() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.view ? impl_->meet_.view->view : View{};
}
MemberIndex MemberNode::self() const {
  const auto members = view().members;
  const auto me = std::ranges::find(members, impl_->name_, &MemberInfo::name);
  return static_cast<MemberIndex>(me - members.begin());
}
Rank MemberNode::rank() const {
  const auto members = view().members;
  Rank rank;
  for (const auto& member : members) {
    if (!trains(member)) continue;
    rank.index += member.name < impl_->name_ ? 1 : 0;
    ++rank.of;
  }
  return rank;
}
Participation MemberNode::participation() const { return impl_->participation(); }
void MemberNode::announce(std::string text) { impl_->post_control(Announce{std::move(text)}); }
std::string MemberNode::announced() {
  std::unique_lock lock(impl_->meet_.mutex);
  impl_->meet_.wait_for(lock, [&] { return impl_->meet_.announced.has_value(); });
  return *impl_->meet_.announced;
}
bool MemberNode::may_begin(std::uint64_t step, std::uint64_t reach) { return impl_->may_begin(step, reach); }
std::optional<std::uint64_t> MemberNode::stops_at() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.stop_at;
}
double MemberNode::reference_speed() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.reference_speed;
}
void MemberNode::report(const StepReport& report) {
  const std::lock_guard lock(impl_->meet_.mutex);
  impl_->meet_.report = report;
}
void MemberNode::report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens) {
  impl_->report_evaluation({step, sum_nats, tokens});
}
void MemberNode::request_stop(const std::string& reason) { impl_->request_stop(reason); }
bool MemberNode::stopped_early() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.stopped;
}
std::string MemberNode::done(std::string summary, const Digest& global_hash) {
  return impl_->done({std::move(summary), global_hash});
}
std::optional<std::string> MemberNode::follow(Hello hello) { return impl_->follow(std::move(hello)); }
void MemberNode::leave(const std::string& reason) noexcept {
  try {
    impl_->leave(reason);
  } catch (const std::exception&) {
    // Leaving politely is best effort: the coordinator notices a closed connection too.
  }
}
void MemberNode::contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight) {
  impl_->contribute(chunk, round, std::move(bytes), weight);
}
std::optional<RoundResult> MemberNode::wait(FragmentId fragment, Round round) {
  return impl_->wait(fragment, round);
}
void MemberNode::applied(FragmentId fragment, Round round, const Digest& chain) {
  impl_->applied(fragment, round, chain);
}
void MemberNode::serve_state_from(StateSource source) { impl_->serve_state_from(std::move(source)); }
void MemberNode::serve() { impl_->serve(); }
std::uint64_t MemberNode::agreed_step() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.agreed_step;
}
Reducer& MemberNode::reducer() { return impl_->workshop_->reducer; }
MemberNode::Wire MemberNode::wire() const { return {impl_->counters_.payload, impl_->counters_.total}; }

}  // namespace isthmus::outer_sync
