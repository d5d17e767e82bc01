#pragma once
// A donor's side of the state transfer: serves the run's state to fetchers, fragment by fragment. The
// values come from the trainer's thread.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"
#include "net/member/io/crossing.h"
#include "net/state_transfer/state_stream.h"

namespace isthmus::outer_sync::transport {

/// Serves any number of fetchers, together at no more than `network.join_rate`, and reports to the trainer's
/// thread how long they may still need.
class StateServer {
 public:
  using LedgerSource = std::function<protocol::FragmentLedger(FragmentId)>;

  /// All arguments must outlive the io context's last run. `rounds`: the results that are here; `ledgers`:
  /// the samples of the applied rounds.
  StateServer(asio::io_context& io, const NetworkConfig& network, const FragmentLayout& layout, IoEnd shared,
              RoundSource rounds, LedgerSource ledgers);

  /// Sets the maximum rate for all fetchers together, at most `network.join_rate`. Requires a rate > 0.
  void send_at_most(std::uint64_t bytes_per_second);
  /// Ends the connections of all fetchers, which then try other donors, and refuses new ones until it opens
  /// again.
  void close(bool closed);
  /// Runs until the fetcher's connection ends. Throws like `serve_fetcher`.
  [[nodiscard]] asio::awaitable<void> serve(ConnectionPtr fetcher);

 private:
  [[nodiscard]] asio::awaitable<std::optional<FragmentSnapshot>> snapshot(StateRequest request);
  [[nodiscard]] std::vector<protocol::SharedBytes> round(FragmentId fragment, protocol::Round round);

  asio::io_context& io_;
  const NetworkConfig& network_;
  const FragmentLayout& layout_;
  const IoEnd shared_;
  RoundSource rounds_;
  LedgerSource ledgers_;
  std::shared_ptr<Pacer> pacer_;
  bool closed_ = false;  ///< by the calendar
  std::vector<std::weak_ptr<Connection>> fetchers_;
};

}  // namespace isthmus::outer_sync::transport
