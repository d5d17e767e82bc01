#pragma once
// A member's side of the state transfer: gives the run's state, fragment by fragment, to those who take it.
// Everything here runs on the io thread; the values themselves come from the trainer's thread.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"
#include "net/member/shared_state.h"
#include "net/state_transfer/state_stream.h"

namespace isthmus::outer_sync::transport {

/// Serves any number of fetchers, all together at no more than `network.join_rate`, and tells the trainer's
/// thread how long they may still need.
class StateServer {
 public:
  using LedgerSource = std::function<protocol::FragmentLedger(FragmentId)>;

  /// All must outlive the io context's last run. `rounds` says which results are here, `ledgers` what has
  /// been trained on, up to the rounds that are applied.
  StateServer(asio::io_context& io, const NetworkConfig& network, const FragmentLayout& layout,
              SharedState& meet, RoundSource rounds, LedgerSource ledgers);

  /// Until the fetcher's connection ends. Throws as `serve_fetcher`.
  [[nodiscard]] asio::awaitable<void> serve(ConnectionPtr fetcher);

 private:
  [[nodiscard]] asio::awaitable<std::optional<FragmentSnapshot>> snapshot(StateRequest request);
  [[nodiscard]] std::vector<protocol::SharedBytes> round(FragmentId fragment, protocol::Round round);

  asio::io_context& io_;
  const NetworkConfig& network_;
  const FragmentLayout& layout_;
  SharedState& shared_;
  RoundSource rounds_;
  LedgerSource ledgers_;
  std::shared_ptr<Pacer> pacer_;
};

}  // namespace isthmus::outer_sync::transport
