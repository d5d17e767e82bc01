#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <map>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "net/coordinator/preflight.h"
#include "net/coordinator/unguessable.h"
#include "net/link/listen.h"
#include "net/link/spawn.h"
#include "net/mailbox/mailbox.h"

namespace isthmus::outer_sync {

using asio::use_awaitable;
using namespace transport;
using namespace std::chrono_literals;
using Kind = PreflightMessage::Kind;
using Clock = Connection::Clock;

namespace {

constexpr int clock_readings = 5;
constexpr auto look_again = 50ms;
constexpr auto answer_limit = 10s;
constexpr auto farewell = 2s;
constexpr std::size_t max_guests = 1024;

}  // namespace

class PreflightHub::Impl {
 public:
  Impl(const NetworkConfig& network, Options options)
      : options_(std::move(options)),
        link_(preflight_link(network)),
        acceptor_(listen_at(io_, network.coordinator, "network.coordinator")) {
    if (options_.mailbox) link_.mailbox = std::make_shared<Mailbox>(io_, *options_.mailbox);
  }
  ~Impl() {
    if (link_.mailbox) link_.mailbox->end();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] std::uint16_t port() const { return bound_address(acceptor_).port; }

  std::string run(const Judge& judge) {
    spawn(io_.get_executor(), "accepting connections",
          accept_all(
              acceptor_, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); }, options_.say));
    if (link_.mailbox)
      link_.mailbox->begin(
          tls::coordinator_name, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); },
          options_.say);
    return run_preflight(io_, examine(judge));
  }

 private:
  struct Guest {
    PreflightGuest known;
    ConnectionPtr connection;
  };

  // ---- arriving guests ----

  void accept(asio::ip::tcp::socket socket) {
    const auto connection = start_connection(std::move(socket), counters_, link_, trace_, {});
    spawn(io_.get_executor(), "the connection with " + connection->remote(), welcome(connection));
  }

  asio::awaitable<void> welcome(ConnectionPtr connection) {
    const UnknownConnections::Guest stranger(unknown_, connection);
    const Watchdog watchdog(connection, link_.hello_limit);
    try {
      auto said = co_await handle_preflight(connection);
      const auto shown = connection->peer_name();
      if (said.kind != Kind::here || said.text.size() > longest_preflight_report)
        throw Error(ErrorKind::network, "its first message is invalid");
      if (!shown.empty() && shown != said.name)
        throw Error(ErrorKind::network,
                    "its certificate is for '" + shown + "', but it claims to be '" + said.name + "'");
      if (begun_) throw Error(ErrorKind::network, "it came too late: the tests have begun");
      if (guests_.size() >= max_guests)
        throw Error(ErrorKind::network, "the doctor already has " + std::to_string(max_guests) +
                                            " machines, as many as it can check");
      const auto from = parse_address(connection->remote(), "its address").host;
      options_.say(said.name + " has connected from " + from);
      guests_[said.name] = {.known = {.name = said.name,
                                      .address = std::move(said.address),
                                      .report = std::move(said.text),
                                      .from = from},
                            .connection = connection};
      co_return;
    } catch (const asio::system_error&) {
    } catch (const std::exception& error) {
      options_.say("dropped a connection from " + connection->remote() + ": " + error.what());
    }
    connection->close();
  }

  [[nodiscard]] bool all_there() const {
    return std::ranges::all_of(options_.expected, [&](const auto& name) { return guests_.contains(name); });
  }

  // ---- testing ----

  asio::awaitable<std::string> examine(const Judge& judge) {
    const auto until = Clock::now() + options_.wait;
    while (!all_there() && Clock::now() < until) {
      asio::steady_timer pause(io_, look_again);
      co_await pause.async_wait(use_awaitable);
    }
    begun_ = true;
    for (auto& [name, guest] : guests_) co_await read_clock(guest);
    for (auto& [name, from] : guests_) {
      for (auto& [other, to] : guests_) {
        if (&from == &to) continue;
        co_await test(from, to);
        for (auto& [each, guest] : guests_) guest.connection->send(message({.kind = Kind::going_on}));
      }
    }
    std::vector<PreflightGuest> known;
    for (const auto& [name, guest] : guests_) known.push_back(guest.known);
    auto verdict = judge(known, tests_);
    for (auto& [name, guest] : guests_) {
      guest.connection->send(message({.kind = Kind::verdict, .text = verdict}));
      guest.connection->close_when_sent();
    }
    co_await see_off();
    co_return verdict;
  }

  /// Waits until the guests have read the verdict and closed.
  asio::awaitable<void> see_off() {
    const auto until = Clock::now() + farewell;
    const auto open = [](const auto& entry) { return entry.second.connection->open(); };
    while (std::ranges::any_of(guests_, open) && Clock::now() < until) {
      for (auto& [name, guest] : guests_) {
        if (guest.connection->open() && guest.connection->hung_up()) guest.connection->close();
      }
      asio::steady_timer pause(io_, look_again);
      co_await pause.async_wait(use_awaitable);
    }
  }

  [[nodiscard]] Frame message(PreflightMessage message) const {
    message.session = session_;
    return preflight_frame(message);
  }

  /// Returns the guest's next answer; nullopt if it has failed, and from then on.
  asio::awaitable<std::optional<PreflightMessage>> ask(Guest& guest, PreflightMessage question,
                                                       std::chrono::seconds limit) {
    if (!guest.known.lost.empty()) co_return std::nullopt;
    try {
      const Watchdog watchdog(guest.connection, limit);
      guest.connection->send(message(std::move(question)));
      co_return co_await handle_preflight(guest.connection);
    } catch (const std::exception& error) {
      guest.known.lost =
          guest.connection->open() ? error.what() : std::string("connection lost: ") + error.what();
    }
    guest.connection->close();
    options_.say(guest.known.name + ": " + guest.known.lost);
    co_return std::nullopt;
  }

  /// Uses the reading with the shortest round trip.
  asio::awaitable<void> read_clock(Guest& guest) {
    auto shortest = std::chrono::nanoseconds::max();
    for (int i = 0; i < clock_readings; ++i) {
      const auto begin = std::chrono::system_clock::now();
      PreflightMessage question{.kind = Kind::clock};
      const auto answer = co_await ask(guest, std::move(question), answer_limit);
      if (!answer) co_return;
      const std::chrono::nanoseconds took = std::chrono::system_clock::now() - begin;
      if (took >= shortest) continue;
      shortest = took;
      const std::chrono::duration<double> middle = begin.time_since_epoch() + took / 2;
      guest.known.clock_offset = 1e-9 * static_cast<double>(answer->number) - middle.count();
    }
    guest.known.round_trip_ms = std::chrono::duration<double, std::milli>(shortest).count();
  }

  asio::awaitable<void> test(Guest& from, Guest& to) {
    if (!from.known.lost.empty() || !to.known.lost.empty()) co_return;
    PathTest result{.from = from.known.name, .to = to.known.name};
    if (to.known.address.empty()) {
      if (from.known.address.empty()) result.problem = "neither has an open port";
      tests_.push_back(result);
      co_return;
    }
    options_.say(from.known.name + " dials " + to.known.name + " at " + to.known.address);
    PreflightMessage order{.kind = Kind::dial,
                           .number = from.known.address.empty() ? 1U : 0U,
                           .name = to.known.name,
                           .address = to.known.address};
    const auto limit = pair_limit(parse_address(to.known.address, "the address of " + to.known.name));
    const auto answer = co_await ask(from, std::move(order), limit + answer_limit);
    if (!answer || answer->kind != Kind::dialled) co_return;  // a lost guest is reported by `lost`
    result = answer->test;
    result.from = from.known.name;
    result.to = to.known.name;
    result.address = to.known.address;
    tests_.push_back(std::move(result));
  }

  Options options_;
  asio::io_context io_;
  LinkOptions link_;
  asio::ip::tcp::acceptor acceptor_;
  WireCounters counters_;
  Trace trace_;
  std::shared_ptr<UnknownConnections> unknown_ = std::make_shared<UnknownConnections>();
  Digest session_ = unguessable_digest();
  bool begun_ = false;
  std::map<std::string, Guest> guests_;
  std::vector<PathTest> tests_;
};

PreflightHub::PreflightHub(const NetworkConfig& network, Options options)
    : impl_(std::make_unique<Impl>(network, std::move(options))) {}
PreflightHub::~PreflightHub() = default;
std::uint16_t PreflightHub::port() const { return impl_->port(); }
std::string PreflightHub::run(const Judge& judge) { return impl_->run(judge); }

}  // namespace isthmus::outer_sync
