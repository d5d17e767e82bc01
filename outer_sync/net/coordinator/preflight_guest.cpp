#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "net/coordinator/preflight.h"
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

constexpr int echoes = 5;
constexpr std::size_t longest_verdict = std::size_t{4} << 20;
constexpr auto redial_after = 500ms;
constexpr auto silence_limit = 60s;

class Guest {
 public:
  Guest(const NetworkConfig& network, const PreflightGuestOptions& options)
      : network_(network), options_(options), link_(preflight_link(network)) {
    if (options.mailbox) {
      link_.mailbox = std::make_shared<Mailbox>(io_, *options.mailbox);
      address_ = Address{mailbox_host(options.name), mailbox_port}.to_string();
    }
    if (!network.listens()) return;
    acceptor_.emplace(listen_at(io_, network.listen, "network.listen"));
    address_ = advertised_address(network.advertise, bound_address(*acceptor_)).to_string();
  }

  ~Guest() {
    if (link_.mailbox) link_.mailbox->end();
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  std::string run() {
    if (link_.mailbox)
      link_.mailbox->begin(
          options_.name, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); },
          [](const std::string& line) { say_error(line); });
    if (acceptor_) {
      spawn(io_.get_executor(), "accepting connections",
            accept_all(
                *acceptor_, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); },
                [](const std::string&) {}));  // the dialling guest reports errors
    }
    return run_preflight(io_, take_part());
  }

 private:
  // ---- with the hub ----

  asio::awaitable<std::string> take_part() {
    const auto hub = co_await find_hub();
    try {
      co_return co_await serve(hub);
    } catch (const asio::system_error& error) {
      throw Error(
          ErrorKind::network,
          std::string("lost the connection to `isthmus doctor` in the coordinator's place: ") + error.what());
    }
  }

  asio::awaitable<ConnectionPtr> find_hub() {
    const auto until = Clock::now() + options_.wait;
    const auto addresses = parse_addresses(network_.coordinator, "network.coordinator");
    for (std::size_t turn = 0;; ++turn) {
      const auto& address = addresses[turn % addresses.size()];
      std::string why;
      asio::ip::tcp::socket socket(io_);
      if (const auto failed = co_await dial(socket, address, preflight_dial_limit, link_.mailbox)) {
        why = failed.message();
      } else {
        OtherEnd other{.dialled = true, .name = tls::coordinator_name};
        auto hub = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
        try {
          co_await hub->introduced();
          co_return hub;
        } catch (const Error& error) {
          why = error.what();
        }
      }
      if (Clock::now() > until) {
        throw Error(ErrorKind::network, "cannot connect to " + address.to_string() + ": " + why +
                                            "; start `isthmus doctor CONFIG --listen ADDRESS:PORT` there");
      }
      asio::steady_timer pause(io_, redial_after);
      co_await pause.async_wait(use_awaitable);
    }
  }

  asio::awaitable<std::string> serve(ConnectionPtr hub) {
    hub->send(preflight_frame(
        {.kind = Kind::here, .name = options_.name, .address = address_, .text = options_.report}));
    for (;;) {
      const Watchdog watchdog(hub, options_.wait + silence_limit);
      const auto order = co_await handle_preflight(hub, longest_verdict);
      PreflightMessage answer;
      session_ = order.session;
      switch (order.kind) {
        case Kind::clock:
          hub->send(preflight_frame({.kind = Kind::clock, .number = now()}));
          break;
        case Kind::dial:
          answer = {.kind = Kind::dialled};
          answer.test = co_await test_path(order);
          hub->send(preflight_frame(answer));
          break;
        case Kind::verdict:
          hub->close();
          co_return order.text;
        default:
          break;
      }
    }
  }

  static std::uint64_t now() {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  }

  // ---- as the dialling guest ----

  asio::awaitable<PathTest> test_path(const PreflightMessage& order) {
    PathTest test{.from = options_.name, .to = order.name, .address = order.address};
    try {
      asio::ip::tcp::socket socket(io_);
      const auto address = parse_address(order.address, "the address of " + order.name);
      const auto failed = co_await dial(socket, address, preflight_dial_limit, link_.mailbox);
      if (failed) throw Error(ErrorKind::network, "cannot connect: " + failed.message());
      OtherEnd other{.dialled = true, .name = order.name};
      const auto peer = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
      const Watchdog watchdog(peer, pair_limit(address) - preflight_dial_limit);
      co_await measure(peer, order, test);
      peer->close_when_sent();
    } catch (const Error& error) {
      test.problem = error.what();
    } catch (const asio::system_error& error) {
      test.problem = std::string("the connection ended: ") + error.what();
    }
    co_return test;
  }

  asio::awaitable<void> measure(ConnectionPtr peer, PreflightMessage order, PathTest& test) {
    peer->send(preflight_frame({.kind = Kind::probe, .name = order.name, .session = session_}));
    const auto answer = co_await handle_preflight(peer);
    if (answer.kind != Kind::probe) throw Error(ErrorKind::network, "the process there is not " + order.name);
    auto shortest = Clock::duration::max();
    for (int i = 0; i < echoes; ++i) {
      const auto begin = Clock::now();
      peer->send(preflight_frame({.kind = Kind::echo}));
      (void)co_await handle_preflight(peer);
      shortest = std::min(shortest, Clock::now() - begin);
    }
    test.round_trip_ms = std::chrono::duration<double, std::milli>(shortest).count();
    co_await send_probe(peer);
    const auto received = co_await handle_preflight(peer);
    test.bytes_per_second = static_cast<double>(received.number);
    if (order.number == 0) co_return;
    peer->send(preflight_frame({.kind = Kind::data_please}));
    ProbeMeter meter;
    for (;;) {
      const auto message = co_await handle_preflight(peer);
      if (message.kind != Kind::data) break;
      meter.count(message.text.size());
    }
    test.back_bytes_per_second = meter.bytes_per_second();
  }

  // ---- as the dialled guest ----

  void accept(asio::ip::tcp::socket socket) {
    const auto connection = start_connection(std::move(socket), counters_, link_, trace_, {});
    spawn(io_.get_executor(), "the connection with " + connection->remote(), answer(connection));
  }

  asio::awaitable<void> answer(ConnectionPtr peer) {
    const Watchdog watchdog(peer, link_.mailbox ? mailbox_pair_limit : direct_pair_limit);
    try {
      {
        const UnknownConnections::Guest guest(unknown_, peer);
        const Watchdog hello(peer, link_.hello_limit);
        const auto probe = co_await handle_preflight(peer);
        if (probe.kind != Kind::probe || session_ == Digest() || probe.session != session_ ||
            probe.name != options_.name)
          throw Error(ErrorKind::network, "unknown peer");
      }
      peer->send(preflight_frame({.kind = Kind::probe, .name = options_.name}));
      co_await answer_all(peer);
    } catch (const std::exception&) {  // the dialling guest reports the error
    }
    peer->close();
  }

  static asio::awaitable<void> answer_all(ConnectionPtr peer) {
    ProbeMeter meter;
    for (;;) {
      const auto message = co_await handle_preflight(peer);
      if (message.kind == Kind::echo) {
        peer->send(preflight_frame({.kind = Kind::echo}));
      } else if (message.kind == Kind::data) {
        meter.count(message.text.size());
      } else if (message.kind == Kind::data_end) {
        const auto rate = static_cast<std::uint64_t>(meter.bytes_per_second());
        peer->send(preflight_frame({.kind = Kind::data_end, .number = rate}));
      } else if (message.kind == Kind::data_please) {
        co_await send_probe(peer);
      } else {
        throw Error(ErrorKind::network, "unexpected message");
      }
    }
  }

  const NetworkConfig& network_;
  const PreflightGuestOptions& options_;
  asio::io_context io_;
  LinkOptions link_;
  std::optional<asio::ip::tcp::acceptor> acceptor_;
  std::string address_;  ///< HOST:PORT that others dial; empty: no open port
  Digest session_;       ///< zeros: unknown yet
  WireCounters counters_;
  Trace trace_;
  std::shared_ptr<UnknownConnections> unknown_ = std::make_shared<UnknownConnections>();
};

}  // namespace

std::string be_preflight_guest(const NetworkConfig& network, const PreflightGuestOptions& options) {
  return Guest(network, options).run();
}

}  // namespace isthmus::outer_sync
