#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <map>
#include <optional>
#include <vector>

#include "isthmus/base/error.h"
#include "net/coordinator/unguessable.h"
#include "net/link/awake_clock.h"
#include "net/link/connection.h"
#include "net/link/line_limiter.h"
#include "net/link/listen.h"
#include "net/link/run_secret.h"
#include "net/link/spawn.h"
#include "net/mailbox/mailbox.h"
#include "tls/credentials.h"

namespace isthmus::outer_sync {

using asio::use_awaitable;
using namespace protocol;
using namespace transport;
using Clock = Connection::Clock;
using namespace std::chrono_literals;

namespace {

constexpr auto tick_every = 100ms;
constexpr auto farewell_time = 1s;
constexpr auto look_at_certificates_every = 1s;
/// Limits on what is queued for a member that does not read: one message of maximum size, and heartbeat
/// replies of some minutes.
constexpr std::size_t max_bytes_waiting = control_limit, max_frames_waiting = 4096;
constexpr auto refusal_takes = 1s;  // slows down guessing, yet keeps few strangers waiting

Time to_time(const config::Duration& duration) {
  return std::chrono::duration_cast<Time>(std::chrono::duration<double>(duration.seconds));
}

std::string word_of(MemberKind kind) {
  if (kind == MemberKind::trainer) return "a trainer";
  return kind == MemberKind::reducer ? "a reducer" : "an observer";
}

CoordinatorOptions complete(CoordinatorOptions options, const NetworkConfig& network) {
  if (!options.last) options.token = unguessable_digest();
  options.join_timeout = to_time(network.join_timeout);
  options.detect_timeout = to_time(network.detect_timeout) + to_time(network.emulate.rtt);
  return options;
}

}  // namespace

class CoordinatorNode::Impl {
 public:
  Impl(const NetworkConfig& network, CoordinatorOptions options, CoordinatorObserver& observer,
       std::unique_ptr<tls::EnrolmentDesk> desk, const std::optional<MailboxPlace>& mailbox)
      : observer_(observer),
        desk_(std::move(desk)),
        clock_(std::min<Clock::duration>(5 * tick_every, to_time(network.detect_timeout) / 2)),
        machine_(complete(std::move(options), network), now()),
        link_{.hold = to_time(network.emulate.rtt) / 2,
              .give_up = to_time(network.detect_timeout),
              .credentials = credentials_of(network),
              .secret = secret_of(network),
              .mailbox = mailbox ? std::make_shared<Mailbox>(io_, *mailbox) : nullptr},
        acceptor_(listen_at(io_, network.coordinator, "network.coordinator")),
        stranger_line_([&observer](const std::string& line) { observer.message(line); }) {
    if (link_.secret) link_.secret->answer_as(tls::coordinator_name);
  }

  ~Impl() {
    if (link_.mailbox) link_.mailbox->end();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Ended run() {
    // Started only here, because a thread inherits the signal mask of its creator.
    if (desk_) desk_thread_.emplace(1);
    const auto executor = io_.get_executor();
    spawn(executor, "accepting connections",
          accept_all(
              acceptor_, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); },
              [this](const std::string& line) { observer_.message(line); }));
    if (link_.mailbox)
      link_.mailbox->begin(
          tls::coordinator_name, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); },
          [this](const std::string& line) { observer_.message(line); });
    spawn(executor, "the coordinator's clock", tick_loop());
    spawn(executor, "watching the certificates", certificate_loop());
    io_.run();
    if (failure_) std::rethrow_exception(failure_);
    return *ended_;
  }

  std::uint16_t port() const { return bound_address(acceptor_).port; }
  void request_stop(const std::string& reason) {
    asio::post(io_, [this, reason] {
      machine_.request_stop(reason);
      act();
    });
  }
  void propose(const ConfigItems& items, const std::string& by, const std::string& why) {
    asio::post(io_, [this, items, by, why] {
      machine_.propose(items, by, why);
      act();
    });
  }
  const Coordinator& machine() const { return machine_; }

 private:
  void accept(asio::ip::tcp::socket socket) {
    OtherEnd other{.may_be_newcomer = desk_ && desk_->open(std::chrono::system_clock::now())};
    const auto connection = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
    spawn(io_.get_executor(), "the connection with " + connection->remote(), serve(connection));
  }

  asio::awaitable<void> serve(ConnectionPtr connection) {
    const auto id = next_id_++;
    try {
      connections_[id] = connection;
      co_await handle_hello(id, connection);
      for (;;) {
        // A connection that is being refused still counts as unauthenticated.
        const auto limit = connection->closing() ? unauthenticated_limit : control_limit;
        const auto frame = co_await connection->receive(limit);
        handle(id, frame);
      }
    } catch (const asio::system_error&) {
      // Closed or reset; the state machine decides what that means.
    } catch (const std::exception& error) {
      stranger_line_("dropped a connection from " + connection->remote() + ": " + error.what());
    }
    connection->close();
    connections_.erase(id);
    machine_.closed(id);
    act();
  }

  asio::awaitable<void> handle_hello(ConnectionId id, const ConnectionPtr& connection) {
    const UnknownConnections::Guest guest(unknown_, connection);
    const Watchdog watchdog(connection, link_.hello_limit + 2 * link_.hold);
    Connection::Received frame;
    try {
      frame = co_await connection->receive(unauthenticated_limit);
    } catch (const asio::system_error& error) {
      throw Error(ErrorKind::network, std::string("it ended before its hello: ") + error.what());
    }
    if (connection->newcomer()) {
      co_await enrol(connection, frame);
    } else {
      handle(id, frame);
    }
  }

  /// Answers a newcomer's one request and ignores everything else from it. Returns when the newcomer has
  /// closed the connection or its time is up.
  asio::awaitable<void> enrol(ConnectionPtr connection, Connection::Received frame) {
    if (frame.type != FrameType::enrolment)
      throw Error(ErrorKind::network, "it presented no certificate and does not request one");
    const auto from = parse_address(connection->remote(), "a newcomer's address").host;
    // On its own thread, since it reads, signs and writes files: heartbeats are answered meanwhile.
    auto reply = co_await asio::co_spawn(
        *desk_thread_,
        [&]() -> asio::awaitable<tls::EnrolmentDesk::Reply> {
          try {
            co_return desk_->answer(*frame.body, from, std::chrono::system_clock::now());
          } catch (const std::system_error& error) {  // a file error, not the end of the connection
            throw Error(ErrorKind::data, error.what());
          }
        },
        use_awaitable);
    if (reply.answer.accepted()) {
      observer_.message(reply.line);
    } else {
      stranger_line_(reply.line);
      asio::steady_timer pause(io_, refusal_takes);
      co_await pause.async_wait(use_awaitable);
    }
    connection->send({FrameType::enrolment, to_bytes(reply.answer), nullptr});
    connection->close_when_sent();
    try {
      (void)co_await connection->receive(0);
    } catch (const std::exception&) {  // it has closed the connection, as expected
    }
    connection->close();
  }

  Time now() { return std::chrono::duration_cast<Time>(clock_.now()); }

  void handle(ConnectionId id, const Connection::Received& frame) {
    if (connections_.at(id)->newcomer())
      throw Error(ErrorKind::network, "it presented no certificate, but sent more than an enrolment request");
    if (frame.type != FrameType::control)
      throw Error(ErrorKind::network, "it sent a frame that is not a control frame");
    auto message = decode_control(*frame.body);
    if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && !may_say(*hello, id)) return;
    if (auto* command = std::get_if<Command>(&message); command != nullptr && !may_say(*command, id)) return;
    machine_.receive(id, now(), message);
    act();
  }

  /// A hello must match the certificate's name and role.
  bool may_say(const Hello& hello, ConnectionId id) {
    const auto& connection = connections_.at(id);
    const auto shown = connection->peer_name();
    const auto role = connection->peer_role();
    if (!shown.empty() && shown != hello.member.name) {
      refuse(connection,
             "its certificate is for '" + shown + "', but it claims to be '" + hello.member.name + "'");
      return false;
    }
    if (!role || tls::entitles(*role, hello.member.kind)) return true;
    refuse(connection, "the certificate of '" + shown + "' has role " + tls::to_string(*role) +
                           ", but it joins as " + word_of(hello.member.kind) +
                           "; issue one with isthmus certs issue --role");
    return false;
  }

  /// Commands need an operator's certificate. In a run without certificates, anyone who reaches the port may
  /// send them.
  bool may_say(Command& command, ConnectionId id) {
    const auto& connection = connections_.at(id);
    const auto shown = connection->peer_name();
    if (!link_.credentials) return true;
    command.by = shown;
    if (is_operator(shown) && connection->peer_role() == tls::Role::steers) return true;
    refuse(connection,
           "commands need a certificate for the name 'operator' or a name that begins with "
           "'operator-'; this one is for '" +
               shown + "'");
    return false;
  }

  void refuse(const ConnectionPtr& connection, const std::string& why) {
    stranger_line_("refused " + connection->remote() + ": " + why);
    connection->send(control_frame(Refused{why}));
    connection->close_when_sent();
  }

  void decline_records_of(const std::string& member) {
    const auto known = machine_.members().find(member);
    if (known != machine_.members().end()) send(known->second.connection, RecordsTaken{no_records_wanted});
  }

  void send(ConnectionId to, const ControlMessage& message) {
    const auto at = connections_.find(to);
    if (at == connections_.end()) return;
    auto& connection = *at->second;
    if (connection.queued_bytes() > max_bytes_waiting || connection.queued_frames() > max_frames_waiting)
      return connection.drop("it does not read: " + std::to_string(connection.queued_frames()) +
                             " messages wait for it");
    connection.send(control_frame(message));
  }

  void answer_status(ConnectionId to) {
    const auto at = connections_.find(to);
    if (at == connections_.end()) return;
    at->second->send(control_frame(Answer{{}, observer_.status(machine_)}));
    at->second->close_when_sent();
  }

  asio::awaitable<void> certificate_loop() {
    while (link_.credentials && !ended_) {
      asio::steady_timer timer(io_, look_at_certificates_every);
      co_await timer.async_wait(use_awaitable);
      const auto news = link_.credentials->refresh();
      if (!news) continue;
      observer_.message(*news);
      link_.connections->drop_revoked();
    }
  }

  asio::awaitable<void> tick_loop() {
    while (!ended_) {
      asio::steady_timer timer(io_, tick_every);
      co_await timer.async_wait(use_awaitable);
      machine_.tick(now());
      machine_.follow_calendars(std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
      store_and_announce();
      act();
      observer_.ticked(machine_);
    }
    // The last messages must be sent before the process ends; members close once they have read them.
    const auto give_up = Clock::now() + farewell_time + 2 * link_.hold;
    while (!connections_.empty() && Clock::now() < give_up) {
      asio::steady_timer timer(io_, 10ms);
      co_await timer.async_wait(use_awaitable);
    }
    io_.stop();
  }

  /// A successor of this coordinator knows only the views on disk, so no other view is announced. While the
  /// disk is full, members wait, and no round commits once their leases have expired.
  void store_and_announce() {
    if (!unstored_) return;
    const auto view = "view " + std::to_string(unstored_->view.number);
    try {
      observer_.store(unstored_->view);
    } catch (const std::exception& error) {
      machine_.hold_back(view + " cannot be stored: " + error.what());
      if (!std::exchange(no_room_, true))
        observer_.message("NO ROOM: " + view +
                          " cannot be stored, so it is not announced to its members and no round commits: " +
                          error.what() + "; make room there, the coordinator keeps retrying");
      return;
    }
    machine_.hold_back({});
    if (std::exchange(no_room_, false)) observer_.message(view + " is stored and announced now");
    observer_.message(unstored_->line);
    unstored_.reset();
    for (const auto& [to, message] : std::exchange(unannounced_, {})) send(to, message);
  }

  /// The view itself is on disk. The additions only help a successor, so a failed write can wait for the next
  /// one.
  void store_again(const LastView& view) {
    if (unstored_) {
      unstored_->view = view;
      return;
    }
    try {
      observer_.store(view);
    } catch (const std::exception&) {
      return;
    }
  }

  /// A newer seal voids the waiting view, which is then neither stored nor announced.
  void send_once_stored(SendControl sent) {
    if (std::holds_alternative<Seal>(sent.message)) {
      unannounced_.clear();
      unstored_.reset();
    }
    if (unstored_ && std::holds_alternative<NewView>(sent.message)) {
      unannounced_.push_back(std::move(sent));
    } else {
      send(sent.to, sent.message);
    }
  }

  /// An exception from the observer ends the coordinator, except one from `store`.
  void act() {
    try {
      carry_out_actions();
    } catch (...) {
      failure_ = std::current_exception();
      io_.stop();
    }
  }

  void carry_out_actions() {
    for (auto& action : machine_.take_actions()) {
      if (auto* sent = std::get_if<SendControl>(&action)) {
        send_once_stored(std::move(*sent));
      } else if (auto* close = std::get_if<CloseConnection>(&action)) {
        if (const auto at = connections_.find(close->connection); at != connections_.end())
          at->second->close_when_sent();
      } else if (auto* store = std::get_if<Store>(&action); store != nullptr && store->again) {
        store_again(store->view);
      } else if (store != nullptr) {
        unannounced_.clear();
        unstored_ = std::move(*store);
        store_and_announce();
      } else if (auto* say = std::get_if<Say>(&action)) {
        if (say->of_stranger) {
          stranger_line_(say->text);
        } else {
          observer_.message(say->text);
        }
      } else if (auto* evaluated = std::get_if<Evaluated>(&action)) {
        observer_.evaluated(evaluated->step, evaluated->loss);
      } else if (auto* judged = std::get_if<RoundJudged>(&action)) {
        observer_.round_judged(*judged);
      } else if (const auto* asked = std::get_if<StatusAsked>(&action)) {
        answer_status(asked->from);
      } else if (const auto* gathered = std::get_if<Gathered>(&action)) {
        if (!observer_.gathered(*gathered)) decline_records_of(gathered->member);
      } else if (std::holds_alternative<MembersChanged>(action)) {
        observer_.members_changed(machine_);
      } else if (auto* ended = std::get_if<Ended>(&action)) {
        ended_ = *ended;
      }
    }
  }

  CoordinatorObserver& observer_;
  std::unique_ptr<tls::EnrolmentDesk> desk_;  ///< null: no enrolment by invitation
  AwakeClock clock_;
  Coordinator machine_;
  asio::io_context io_;
  LinkOptions link_;
  asio::ip::tcp::acceptor acceptor_;
  WireCounters counters_;
  Trace trace_;
  LineLimiter stranger_line_;
  std::shared_ptr<UnknownConnections> unknown_ = std::make_shared<UnknownConnections>();
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, ConnectionPtr> connections_;
  std::optional<Ended> ended_;
  std::exception_ptr failure_;                    ///< exception from the observer
  std::optional<Store> unstored_;                 ///< newest view, while it is not on disk
  std::vector<SendControl> unannounced_;          ///< messages that wait until it is on disk
  bool no_room_ = false;                          ///< that `unstored_` cannot be stored was reported
  std::optional<asio::thread_pool> desk_thread_;  ///< last member, so that it ends before what it uses
};

CoordinatorNode::CoordinatorNode(const NetworkConfig& network, CoordinatorOptions options,
                                 CoordinatorObserver& observer, std::unique_ptr<tls::EnrolmentDesk> desk,
                                 const std::optional<MailboxPlace>& mailbox)
    : impl_(std::make_unique<Impl>(network, std::move(options), observer, std::move(desk), mailbox)) {}
CoordinatorNode::~CoordinatorNode() = default;
std::uint16_t CoordinatorNode::port() const { return impl_->port(); }
Ended CoordinatorNode::run() { return impl_->run(); }
void CoordinatorNode::request_stop(const std::string& reason) { impl_->request_stop(reason); }
void CoordinatorNode::propose(const ConfigItems& items, const std::string& by, const std::string& why) {
  impl_->propose(items, by, why);
}
const Coordinator& CoordinatorNode::coordinator() const { return impl_->machine(); }

}  // namespace isthmus::outer_sync
