#include "isthmus/outer_sync/transport/member_node.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "isthmus/base/error.h"
#include "transport/listen.h"
#include "transport/packing.h"
#include "transport/peer_mesh.h"
#include "transport/rendezvous.h"

namespace isthmus::outer_sync {

using asio::use_awaitable;
using namespace protocol;
using namespace transport;
using Clock = Connection::Clock;

namespace {

Clock::duration to_duration(const config::Duration& duration) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(duration.seconds));
}

std::uint64_t prefix_of(const Digest& digest) {
  std::uint64_t prefix = 0;
  std::memcpy(&prefix, digest.bytes.data(), sizeof prefix);
  return prefix;
}

/// The largest frame that a peer can legally send in this run.
std::size_t largest_frame(const FragmentLayout& layout, const CodecPlan& codecs) {
  return largest_chunk_frame(largest_encoded_chunk(layout, codecs));
}

constexpr auto dial_limit = std::chrono::seconds(5);
constexpr auto farewell_limit = std::chrono::seconds(1);

}  // namespace

class MemberNode::Impl final : public PeerMesh::Handler {
 public:
  Impl(const NetworkConfig& network, const FragmentLayout& layout, CodecPlan codecs, Trace& trace,
       quant::Lossless lossless)
      : network_(network),
        layout_(layout),
        codecs_(codecs),
        trace_(trace),
        reducer_(layout, codecs),
        contribution_packer_(lossless, layout, codecs, reducer_.buffers()),
        result_packer_(lossless, layout, codecs, reducer_.buffers()),
        unpacker_(lossless, layout, codecs, reducer_.buffers()),
        link_{.hold = to_duration(network.emulate.rtt) / 2, .give_up = to_duration(network.detect_timeout)},
        clock_(2 * to_duration(network.heartbeat)),
        mesh_(io_, bind(), static_cast<std::size_t>(network.lanes), counters_, link_, clock_, trace, *this),
        heartbeat_timer_(io_),
        work_(asio::make_work_guard(io_)),
        codec_pool_(1),
        io_thread_([this] { run_io(); }) {}

  ~Impl() override {
    io_.stop();
    io_thread_.join();
    codec_pool_.stop();
    codec_pool_.join();
  }

  // ---- called by the trainer's thread ----

  std::string advertised() const { return advertised_.to_string(); }

  std::uint64_t join(Hello hello) {
    hello.member.address = advertised();
    asio::co_spawn(
        io_, [this, hello] { return control_loop(hello); }, asio::detached);
    std::unique_lock lock(meet_.mutex);
    meet_.wait_for(lock, [&] { return meet_.seal.has_value(); });
    return meet_.seal->resume_step;
  }

  ViewNumber seal_view() {
    const std::lock_guard lock(meet_.mutex);
    return meet_.seal->view;
  }

  View activate(const std::vector<FragmentState>& fragments, const Digest& parameters) {
    Sealed sealed{.view = seal_view(),
                  .layout = {layout_.fragments().begin(), layout_.fragments().end()},
                  .chunk_elements = layout_.chunk_elements(),
                  .fragments = fragments,
                  .parameters = parameters};
    asio::post(io_, [this, sealed, fragments] {
      chains_ = fragments;
      std::vector<Round> applied;
      applied.reserve(fragments.size());
      for (const auto& fragment : fragments) applied.push_back(fragment.round);
      member_.emplace(layout_, codecs_, std::move(applied));
      send_control(sealed);
    });
    std::unique_lock lock(meet_.mutex);
    meet_.wait_for(lock, [&] { return meet_.view.has_value(); });
    owners_ = meet_.view->view.owners;
    return meet_.view->view;
  }

  bool may_begin(std::uint64_t step) {
    std::unique_lock lock(meet_.mutex);
    if (meet_.failure) throw *meet_.failure;
    if (meet_.hold) meet_.wait_for(lock, [&] { return meet_.stop_at.has_value(); });
    if (meet_.stop_at && step > *meet_.stop_at) {
      meet_.stopped = true;
      return false;
    }
    meet_.begun = step;
    return true;
  }

  std::string done(Done done) {
    asio::post(io_, [this, done = std::move(done)] { send_control(done); });
    std::unique_lock lock(meet_.mutex);
    meet_.wait_for(lock, [&] { return meet_.finished.has_value(); });
    return meet_.finished->problem;
  }

  void leave(const std::string& reason) {
    asio::post(io_, [this, reason] {
      if (control_) control_->send(control_frame(Leave{reason}));
      if (control_) control_->close_when_sent();
    });
    std::unique_lock lock(meet_.mutex);
    meet_.changed.wait_for(lock, farewell_limit, [&] { return meet_.gone; });
  }

  void contribute(ChunkId chunk, Round round, SharedBytes bytes) {
    auto packed = owners_.at(chunk) == self_ ? nullptr : contribution_packer_.pack(chunk, round, *bytes);
    asio::post(io_, [this, chunk, round, bytes = std::move(bytes), packed = std::move(packed)] {
      member_->contribute(chunk, round, bytes);
      act({bytes, packed});
    });
  }

  std::vector<SharedBytes> wait(FragmentId fragment, Round round) {
    std::unique_lock lock(meet_.mutex);
    const std::pair key{fragment, round};
    meet_.wait_for(lock, [&] { return meet_.results.contains(key); });
    return std::move(meet_.results.extract(key).mapped());
  }

  void applied(FragmentId fragment, Round round, const Digest& chain) {
    asio::post(io_, [this, fragment, round, chain] {
      member_->applied(fragment, round);
      chains_[fragment] = {round, chain};
    });
  }

  void post_control(ControlMessage message) {
    asio::post(io_, [this, message = std::move(message)] { send_control(message); });
  }

  // ---- bulk, on the io thread ----

  std::optional<std::string> on_chunk(ReplicaId from, Connection::Received chunk) override {
    if (auto problem = unpacker_.unpack(chunk.head, chunk.body)) return problem;
    auto problem = member_->receive(index_of(from), message_of(std::move(chunk)));
    act();
    return problem;
  }
  void on_ack(ReplicaId from, ViewNumber view, const ChunkKey& key) override {
    member_->acknowledged(index_of(from), view, key);
  }
  void on_lane_up(ReplicaId peer, std::size_t lane) override {
    member_->repeat_to(index_of(peer), [&](const ChunkKey& key) { return mesh_.lane_of(key.chunk) == lane; });
    act();
  }
  void on_peer_down(ReplicaId) override {}  // it is dialled again; `lost` names those that stay away
  void on_broken_peer(ReplicaId peer, const std::string& why) override {
    fail(Error(ErrorKind::network,
               member_->view().members[index_of(peer)].name + " breaks the protocol: " + why));
  }
  asio::awaitable<void> on_learner(ReplicaId, ConnectionPtr) override { co_return; }  // nothing is given yet
  void on_message(const std::string& text) override {
    // One line on standard error per event; the limiter keeps strangers from filling a disk.
    std::fprintf(stderr, "%s: %s\n", name_.empty() ? "worker" : name_.c_str(), text.c_str());
  }

  Rendezvous meet_;
  WireCounters counters_;
  MemberIndex self_ = 0;

 private:
  friend class MemberNode;

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

  /// Of a peer: all of them are members of the view.
  MemberIndex index_of(ReplicaId peer) const {
    return static_cast<MemberIndex>(std::find(ids_.begin(), ids_.end(), peer) - ids_.begin());
  }

  void fail(const Error& error) {
    meet_.update([&] {
      if (!meet_.failure) meet_.failure = error;
    });
  }

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
        mesh_.send(ids_[chunk->peer], message.key.chunk,
                   chunk_frame(message, message.bytes == fresh.bytes ? fresh.packed : nullptr));
      } else if (auto* ack = std::get_if<SendAck>(&action)) {
        mesh_.send(ids_[ack->peer], ack->key.chunk, ack_frame(ack->view, ack->key));
      } else if (auto* job = std::get_if<Reduce>(&action)) {
        asio::post(codec_pool_, [this, job = std::move(*job)] { reduce(job); });
      } else if (auto* round = std::get_if<Deliver>(&action)) {
        meet_.update([&] { meet_.results[{round->fragment, round->round}] = std::move(round->results); });
      }
    }
  }

  void reduce(const protocol::Reduce& job) {
    try {
      const Trace::Scope scope(
          trace_, Trace::Row::reduce, "reduce",
          "{\"chunk\":" + std::to_string(job.chunk) + ",\"round\":" + std::to_string(job.round) + "}");
      auto bytes = reducer_.reduce(job.chunk, job.round, job.contributions);
      const bool alone = job.contributions.size() == 1;
      auto packed = alone ? nullptr : result_packer_.pack(job.chunk, job.round, *bytes);
      asio::post(io_, [this, chunk = job.chunk, round = job.round, bytes = std::move(bytes),
                       packed = std::move(packed)] {
        member_->reduced(chunk, round, bytes);
        act({bytes, packed});
      });
    } catch (const Error& error) {
      fail(error);
    }
  }

  // ---- control, on the io thread ----

  void send_control(const ControlMessage& message) {
    if (control_) control_->send(control_frame(message));
  }

  asio::awaitable<void> control_loop(Hello hello) {
    name_ = hello.member.name;  // here, on the thread that reads it
    std::string why = "its connection closed";
    try {
      control_ = co_await dial_coordinator();
      send_control(hello);
      heard_ = clock_.now();
      asio::co_spawn(io_, heartbeat_loop(), asio::detached);
      for (;;) {
        const auto frame = co_await control_->receive(control_limit);
        if (frame.type != FrameType::control)
          throw Error(ErrorKind::network, "it sent a frame that is not control");
        heard_ = clock_.now();
        on_control(decode_control(*frame.body));
      }
    } catch (const Error& error) {
      why = error.what();
    } catch (const asio::system_error& error) {
      why = error.code().message();
    }
    if (control_) control_->close();
    meet_.update([&] {
      meet_.gone = true;
      if (!meet_.failure && !meet_.finished)
        meet_.failure =
            Error(ErrorKind::network, "the coordinator at " + network_.coordinator + " is lost: " + why);
    });
  }

  asio::awaitable<ConnectionPtr> dial_coordinator() {
    const auto address = parse_address(network_.coordinator, "network.coordinator");
    const auto give_up = Clock::now() + to_duration(network_.join_timeout);
    for (;;) {
      asio::ip::tcp::socket socket(io_);
      const auto error = co_await dial(socket, address, dial_limit);
      if (!error) co_return start_connection(std::move(socket), counters_, link_, trace_);
      if (Clock::now() > give_up) {
        throw Error(ErrorKind::network,
                    "no connection within network.join_timeout (" + error.message() + ")");
      }
      asio::steady_timer pause(io_, std::chrono::milliseconds(200));
      co_await pause.async_wait(use_awaitable);
    }
  }

  void on_control(ControlMessage message) {
    if (auto* seal = std::get_if<Seal>(&message)) {
      meet_.update([&] { meet_.seal = *seal; });
    } else if (auto* view = std::get_if<NewView>(&message)) {
      begin_view(std::move(*view));
    } else if (auto* announce = std::get_if<Announce>(&message)) {
      meet_.update([&] { meet_.announced = announce->text; });
    } else if (std::holds_alternative<Hold>(message)) {
      Held held;
      meet_.update([&] {
        meet_.hold = true;
        held.step = meet_.begun;
      });
      send_control(held);
    } else if (auto* stop = std::get_if<StopAt>(&message)) {
      meet_.update([&] { meet_.stop_at = stop->step; });
    } else if (auto* finished = std::get_if<Finished>(&message)) {
      meet_.update([&] { meet_.finished = *finished; });
    } else if (auto* refused = std::get_if<Refused>(&message)) {
      fail(Error(ErrorKind::config, "the coordinator refused this worker: " + refused->reason));
    } else if (auto* abort = std::get_if<Abort>(&message)) {
      fail(Error(ErrorKind::network, "the run cannot go on: " + abort->reason));
    } else if (!std::holds_alternative<HeartbeatReply>(message)) {
      throw Error(ErrorKind::network, "it sent a message that is a member's to send");
    }
  }

  void begin_view(NewView message) {
    const auto& members = message.view.members;
    const auto me = std::find_if(members.begin(), members.end(),
                                 [&](const auto& member) { return member.name == name_; });
    const bool sound = me != members.end() && member_ && message.view.number > member_->view().number &&
                       message.view.owners.size() == layout_.chunk_count() &&
                       std::all_of(message.view.owners.begin(), message.view.owners.end(),
                                   [&](MemberIndex owner) { return owner < members.size(); });
    if (!sound) throw Error(ErrorKind::network, "it announced a view that does not fit this member");
    self_ = static_cast<MemberIndex>(me - members.begin());
    member_->activate(message.view, self_);
    meet_peers(message);
    meet_.update([&] { meet_.view = std::move(message); });
  }

  void meet_peers(const NewView& message) {
    std::vector<PeerInfo> peers;
    for (const auto& member : message.view.members) {
      ids_.push_back(id_of(member));
      if (member.name != name_) peers.push_back({ids_.back(), member.name, member.address});
    }
    mesh_.begin(ids_[self_], name_, message.token, largest_frame(layout_, codecs_), reducer_.buffers());
    mesh_.set_peers(peers);
  }

  asio::awaitable<void> heartbeat_loop() {
    for (;;) {
      heartbeat_timer_.expires_after(to_duration(network_.heartbeat));
      co_await heartbeat_timer_.async_wait(use_awaitable);
      send_control(heartbeat());
      const auto limit = to_duration(network_.detect_timeout) + 2 * link_.hold;
      if (clock_.now() - heard_ > limit) {
        fail(Error(ErrorKind::network, "the coordinator at " + network_.coordinator +
                                           " is silent for longer than network.detect_timeout"));
      }
      for (const auto peer : mesh_.lost(limit)) {
        const auto& info = member_->view().members[index_of(peer)];
        fail(Error(ErrorKind::network,
                   "no connection to " + info.name + " at " + info.address +
                       " for longer than network.detect_timeout; is the address reachable from here?"));
      }
    }
  }

  Heartbeat heartbeat() {
    Heartbeat beat;
    {
      const std::lock_guard lock(meet_.mutex);
      beat.step = meet_.report.step;
      beat.loss = meet_.report.loss;
      beat.tokens_per_second = meet_.report.tokens_per_second;
      beat.utilization = meet_.report.utilization;
      beat.bytes_sent = meet_.report.other_bytes;
    }
    beat.bytes_sent += counters_.total;
    for (const auto& fragment : chains_)
      beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
    return beat;
  }

  NetworkConfig network_;
  const FragmentLayout& layout_;
  CodecPlan codecs_;
  Trace& trace_;
  Reducer reducer_;
  ChunkPacker contribution_packer_;  ///< of the trainer's thread
  ChunkPacker result_packer_;        ///< of the codec thread
  ChunkUnpacker unpacker_;           ///< of the io thread
  std::vector<MemberIndex> owners_;  ///< of each chunk; of the trainer's thread
  LinkOptions link_;
  std::string name_;
  asio::io_context io_;
  Address advertised_;
  AwakeClock clock_;
  PeerMesh mesh_;
  asio::steady_timer heartbeat_timer_;
  std::vector<ReplicaId> ids_;  ///< of each member
  ConnectionPtr control_;
  Clock::duration heard_{};  ///< by clock_
  std::optional<Member> member_;
  std::vector<FragmentState> chains_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::thread_pool codec_pool_;
  std::thread io_thread_;
};

MemberNode::MemberNode(const NetworkConfig& network, const FragmentLayout& layout, CodecPlan codecs,
                       Trace& trace, quant::Lossless lossless)
    : impl_(std::make_unique<Impl>(network, layout, codecs, trace, lossless)) {}
MemberNode::~MemberNode() = default;

std::string MemberNode::advertised() const { return impl_->advertised(); }
std::uint64_t MemberNode::join(Hello hello) { return impl_->join(std::move(hello)); }
View MemberNode::activate(const std::vector<FragmentState>& fragments, const Digest& parameters) {
  return impl_->activate(fragments, parameters);
}
MemberIndex MemberNode::self() const { return impl_->self_; }
void MemberNode::announce(std::string text) { impl_->post_control(Announce{std::move(text)}); }
std::string MemberNode::announced() {
  std::unique_lock lock(impl_->meet_.mutex);
  impl_->meet_.wait_for(lock, [&] { return impl_->meet_.announced.has_value(); });
  return *impl_->meet_.announced;
}
bool MemberNode::may_begin(std::uint64_t step) { return impl_->may_begin(step); }
void MemberNode::report(const StepReport& report) {
  const std::lock_guard lock(impl_->meet_.mutex);
  impl_->meet_.report = report;
}
void MemberNode::report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens) {
  impl_->post_control(EvalReport{step, sum_nats, tokens});
}
void MemberNode::request_stop(const std::string& reason) { impl_->post_control(StopRequest{reason}); }
bool MemberNode::stopped_early() const {
  const std::lock_guard lock(impl_->meet_.mutex);
  return impl_->meet_.stopped;
}
std::string MemberNode::done(std::string summary, const Digest& global_hash) {
  return impl_->done({std::move(summary), global_hash});
}
void MemberNode::leave(const std::string& reason) noexcept {
  try {
    impl_->leave(reason);
  } catch (const std::exception&) {
    // Leaving politely is best effort: the coordinator notices a closed connection too.
  }
}
void MemberNode::contribute(ChunkId chunk, Round round, SharedBytes bytes) {
  impl_->contribute(chunk, round, std::move(bytes));
}
std::vector<SharedBytes> MemberNode::wait(FragmentId fragment, Round round) {
  return impl_->wait(fragment, round);
}
void MemberNode::applied(FragmentId fragment, Round round, const Digest& chain) {
  impl_->applied(fragment, round, chain);
}
Reducer& MemberNode::reducer() { return impl_->reducer_; }
MemberNode::Wire MemberNode::wire() const { return {impl_->counters_.payload, impl_->counters_.total}; }

}  // namespace isthmus::outer_sync
