#include "net/member/io/state_server.h"

#include <algorithm>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <optional>
#include <utility>

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using protocol::Round;
using protocol::SharedBytes;
using Clock = Connection::Clock;

namespace {

/// Counts a fetcher while it is served.
class Served {
 public:
  explicit Served(IoEnd shared) : shared_(shared) {
    shared_.update([](IoView now) { ++now.run.serving.fetchers; });
  }
  ~Served() {
    shared_.update([](IoView now) { --now.run.serving.fetchers; });
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

 private:
  const IoEnd shared_;
};

/// The trainer thread's answer; cancelling `there` signals that it has arrived.
struct Answer {
  explicit Answer(asio::io_context& io) : there(io, Clock::time_point::max()) {}
  asio::steady_timer there;
  std::optional<outer_sync::FragmentSnapshot> snapshot;
};

/// The requested parts that exist.
FragmentSnapshot parts_of(const outer_sync::FragmentSnapshot& given, StateRequest request) {
  FragmentSnapshot out{
      .fragment = request.fragment, .at = given.state, .values = {}, .inner_steps = given.inner_steps};
  const auto add = [&](StatePart part, const SharedFloats& values) {
    if ((request.parts & set_of(part)) != 0) out.values[static_cast<std::size_t>(part)] = values;
  };
  add(StatePart::theta, given.theta);
  add(StatePart::velocity, given.velocity);
  add(StatePart::first_moment, given.first_moment);
  add(StatePart::second_moment, given.second_moment);
  return out;
}

}  // namespace

StateServer::StateServer(asio::io_context& io, const NetworkConfig& network, const FragmentLayout& layout,
                         IoEnd shared, RoundSource rounds, LedgerSource ledgers)
    : io_(io),
      network_(network),
      layout_(layout),
      shared_(shared),
      rounds_(std::move(rounds)),
      ledgers_(std::move(ledgers)),
      pacer_(std::make_shared<Pacer>(static_cast<std::uint64_t>(network.join_rate))) {}

void StateServer::send_at_most(std::uint64_t bytes_per_second) {
  pacer_->set_rate(std::min(bytes_per_second, static_cast<std::uint64_t>(network_.join_rate)));
}

void StateServer::close(bool closed) {
  if (std::exchange(closed_, closed) == closed || !closed) return;
  for (const auto& fetcher : std::exchange(fetchers_, {})) {
    if (const auto connection = fetcher.lock()) connection->close();
  }
}

asio::awaitable<void> StateServer::serve(ConnectionPtr fetcher) {
  if (closed_) throw Error(ErrorKind::network, "it wants the state, and network.calendar closes the link");
  std::erase_if(fetchers_, [](const auto& other) { return other.expired(); });
  fetchers_.emplace_back(fetcher);
  const Served served(shared_);
  co_await serve_fetcher(
      fetcher, layout_, pacer_, [this](StateRequest request) { return snapshot(request); },
      [this](FragmentId p, Round r) { return round(p, r); });
}

/// Throws Error(network), which ends the fetcher's connection, if it asks for moments and this replica shares
/// none.
asio::awaitable<std::optional<FragmentSnapshot>> StateServer::snapshot(StateRequest request) {
  // Do not let the trainer's thread copy the fragment for nothing. That thread may be one round ahead of the
  // ledger.
  if (request.from > ledgers_(request.fragment).round() + 1) co_return std::nullopt;
  const auto answer = std::make_shared<Answer>(io_);
  shared_.update([&](IoView now) {
    const auto hand_over = [this, answer](outer_sync::FragmentSnapshot snapshot) {
      asio::post(io_, [answer, snapshot = std::move(snapshot)]() mutable {
        answer->snapshot = std::move(snapshot);
        answer->there.cancel();
      });
    };
    now.both.state_requests.push_back({request.fragment, (request.parts & moment_parts) != 0, hand_over});
  });
  asio::error_code woken;
  while (!answer->snapshot) {
    co_await answer->there.async_wait(asio::redirect_error(use_awaitable, woken));
  }
  auto out = parts_of(*answer->snapshot, request);
  if (out.parts() != request.parts)
    throw Error(ErrorKind::network,
                "it asked for the inner optimizer's moments, which this replica does not share");
  // Rounds may have been applied since the trainer's thread answered. (If the ledger cannot be cut to the
  // snapshot's round, it counts as unknown.)
  out.ledger = ledgers_(request.fragment);
  static_cast<void>(out.ledger.cut(out.at.round));
  co_return out;
}

std::vector<SharedBytes> StateServer::round(FragmentId fragment, Round round) {
  auto results = rounds_(fragment, round);
  double bytes = 0;
  for (const auto& result : results) bytes += result ? static_cast<double>(result->size()) : 0;
  const auto takes = std::chrono::duration<double>(bytes / static_cast<double>(network_.join_rate)) +
                     std::chrono::duration<double>(network_.detect_timeout.seconds);
  shared_.update([&](IoView now) {
    auto& until = now.run.serving.until;
    until = std::max(until, Clock::now() + std::chrono::duration_cast<Clock::duration>(takes));
  });
  return results;
}

}  // namespace isthmus::outer_sync::transport
