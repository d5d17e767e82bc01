#pragma once
// The fetcher's side of the state transfer: fetches all fragments from several donors at once, then follows
// the rounds committed meanwhile until it has caught up with the members. All functions run on the io thread.

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/state_transfer/state_stream.h"

namespace isthmus::outer_sync::transport {

/// Copies a run's state from its members. It has one connection per donor and gives each free donor one
/// fragment at a time, so that fast donors serve more. Another donor takes over what one fails to send.
class StateFetcher {
 public:
  /// Each callback may call `start`, `newest` and `stop`, and may destroy the fetcher. An Error from one of
  /// the first two means that the data does not fit: the donor is given up and the fragment fetched again.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// A fragment's state after some round. It may arrive again with a later round if rounds were missed, and
    /// then replaces all that came before.
    virtual void on_fragment(FragmentSnapshot snapshot) = 0;
    /// The result bytes of the fragment's next round in chunk order, each of the chunk's encoded size.
    virtual void on_round(FragmentId fragment, protocol::Round round,
                          std::vector<protocol::SharedBytes> results) = 0;
    /// No donor is left; nothing more arrives until `start` names others.
    virtual void on_failed(const std::string& why) = 0;
  };
  static constexpr StatePatience patience{.head = std::chrono::minutes(5), .frame = std::chrono::minutes(1)};

  /// All arguments except the handler must outlive the io context's last run, and the io context the fetcher.
  /// Results are stored in memory of `buffers`.
  StateFetcher(asio::io_context& io, const FragmentLayout& layout, protocol::CodecPlan codecs,
               LinkOptions link, WireCounters& counters, Trace& trace, const BufferPool& buffers,
               Handler& handler, StatePatience limits = patience);
  ~StateFetcher() { stop(); }
  StateFetcher(const StateFetcher&) = delete;
  StateFetcher& operator=(const StateFetcher&) = delete;

  /// Starts, or continues with other donors and keeps what has arrived, so `parts` must be those of the first
  /// call. Donors that have no address, or do not answer there, are dialled through `bridges`. Throws
  /// Error(network) if `donors` is empty.
  void start(const std::vector<PeerInfo>& donors, std::vector<PeerInfo> bridges, protocol::ReplicaId self,
             const Digest& token, StateParts parts);
  /// Sets by fragment the newest round that any member has applied. Throws Error(network) unless there is one
  /// for each fragment.
  void newest(const std::vector<protocol::Round>& rounds);
  /// Whether every fragment has arrived and is at most one round behind the newest; false before `newest` was
  /// called.
  [[nodiscard]] bool caught_up() const;
  /// Ends all transfers until `start`; also called at destruction.
  void stop();

  /// How often a fragment was fetched again because its rounds were gone or did not fit.
  [[nodiscard]] std::size_t fetched_anew() const { return fetched_anew_; }

 private:
  using Clock = Connection::Clock;
  struct Progress {
    bool whole = false;
    protocol::Round round = 0;  ///< last round passed on; before it is whole, the first useful one
    std::size_t gone = 0;       ///< answers that the next round needed is not there
  };
  struct Task {
    FragmentId fragment;
    bool follow;            ///< false: fetch
    protocol::Round round;  ///< round to request; for a fetch, the first useful one
  };
  /// Shared by its coroutine, which ends when it is `gone`.
  struct Donor {
    Donor(asio::io_context& io, PeerInfo who) : info(std::move(who)), wake(io) {}
    PeerInfo info;
    asio::steady_timer wake;  ///< waits for work; cancelled when there may be some
    ConnectionPtr connection;
    std::optional<Task> task;  ///< current task
    std::map<FragmentId, Clock::time_point>
        lacking;  ///< fragments that it lacks, not requested before this time
    Clock::time_point rest_until{};
    std::size_t failures = 0;  ///< since its last answer
    std::size_t dials = 0;     ///< through bridges
    std::string problem;       ///< last failure
    bool given_up = false;     ///< its data did not fit
    bool gone = false;         ///< no longer a donor: the fetcher itself may be destroyed
  };
  using DonorPtr = std::shared_ptr<Donor>;

  [[nodiscard]] asio::awaitable<void> learn_from(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> rest(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> work(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> connect(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> fetch(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> follow(DonorPtr donor);

  [[nodiscard]] std::optional<PeerInfo> bridge_to(Donor& donor) const;
  [[nodiscard]] std::optional<Task> next_task(Donor& donor) const;
  [[nodiscard]] bool is_taken(FragmentId fragment) const;
  [[nodiscard]] bool is_near(FragmentId fragment) const;
  [[nodiscard]] bool is_left(const Donor& donor) const;
  void answered(Donor& donor);
  void lacks(Donor& donor);
  void fetch_anew(const Task& task);
  void misfit(Donor& donor, const std::string& why);
  void failed(Donor& donor, const std::string& why);
  void end_unless_one_is_left();
  void wake_all();

  asio::io_context& io_;
  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  LinkOptions link_;
  WireCounters& counters_;
  Trace& trace_;
  BufferPool buffers_;
  Handler& handler_;
  StatePatience patience_;

  protocol::ReplicaId self_ = 0;
  Digest token_;
  StateParts parts_ = 0;
  std::vector<DonorPtr> donors_;
  std::vector<PeerInfo> bridges_;
  std::vector<Progress> fragments_;
  std::vector<protocol::Round> newest_;  ///< empty before the first call of newest()
  std::size_t fetched_anew_ = 0;
};

}  // namespace isthmus::outer_sync::transport
