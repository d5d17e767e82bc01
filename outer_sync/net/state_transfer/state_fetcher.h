#pragma once
// A joiner's side of the state transfer: takes all fragments from several donors at once and then follows the
// rounds that are committed meanwhile, until it is where the members are. Everything here runs on the io
// thread.

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

/// Takes a run's state from its members. One connection per donor; fragments are dealt out one at a time to
/// whichever donor is free, so that a fast one gives more of them. What a donor fails to give goes to
/// another.
class StateFetcher {
 public:
  /// Any of these may call `start`, `newest` and `stop`, and may destroy the fetcher. An Error that one of
  /// the first two throws says that what came does not fit: the donor is given up and the fragment fetched
  /// anew.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// A fragment as it is after some round. May come again, with a later round, when rounds were missed: it
    /// then takes the place of all that came before.
    virtual void on_fragment(FragmentSnapshot snapshot) = 0;
    /// The result bytes of the fragment's next round, each of its chunk's encoded size, in chunk order.
    virtual void on_round(FragmentId fragment, protocol::Round round,
                          std::vector<protocol::SharedBytes> results) = 0;
    /// None of the donors is left; nothing comes any more until `start` names others.
    virtual void on_failed(const std::string& why) = 0;
  };
  static constexpr StatePatience patience{.head = std::chrono::minutes(5), .frame = std::chrono::minutes(1)};

  /// All but the handler must outlive the io context's last run, and the io context the fetcher. Results are
  /// put into memory of `buffers`.
  StateFetcher(asio::io_context& io, const FragmentLayout& layout, protocol::CodecPlan codecs,
               LinkOptions link, WireCounters& counters, Trace& trace, const BufferPool& buffers,
               Handler& handler, StatePatience limits = patience);
  ~StateFetcher() { stop(); }
  StateFetcher(const StateFetcher&) = delete;
  StateFetcher& operator=(const StateFetcher&) = delete;

  /// Begins, or goes on with other donors: what is here stays, so `parts` must be those of the first call.
  /// Throws Error(network) when no donor is named.
  void start(const std::vector<PeerInfo>& donors, protocol::ReplicaId self, const Digest& token,
             StateParts parts);
  /// By fragment, the newest round that any member has applied. Throws Error(network) unless there is one for
  /// each.
  void newest(const std::vector<protocol::Round>& rounds);
  /// Every fragment is here and within one round of the newest. Not before `newest` was called.
  [[nodiscard]] bool caught_up() const;
  /// Nothing comes any more, until `start`. Also at destruction.
  void stop();

  /// How often a fragment had to be fetched anew since its rounds were gone, or did not fit.
  [[nodiscard]] std::size_t fetched_anew() const { return fetched_anew_; }

 private:
  using Clock = Connection::Clock;
  struct Progress {
    bool whole = false;
    protocol::Round round = 0;  ///< the last that was handed on; before it is whole, the first of use
    std::size_t gone = 0;       ///< answers that what it needs next is not there
  };
  struct Task {
    FragmentId fragment;
    bool follow;            ///< else fetch
    protocol::Round round;  ///< to be asked for; of a fetch, the first of use
  };
  /// Its coroutine shares it, and ends when it is `gone`.
  struct Donor {
    Donor(asio::io_context& io, PeerInfo who) : info(std::move(who)), wake(io) {}
    PeerInfo info;
    asio::steady_timer wake;  ///< while it rests; cancelled when there may be something to do
    ConnectionPtr connection;
    std::optional<Task> task;  ///< at which it is
    std::map<FragmentId, Clock::time_point>
        lacking;  ///< what it has said is gone is not asked for until then
    Clock::time_point rest_until{};
    std::size_t failures = 0;  ///< since it has last answered
    std::string problem;       ///< the last one
    bool given_up = false;     ///< what it sent did not fit
    bool gone = false;         ///< no donor any more: this fetcher may not even be there
  };
  using DonorPtr = std::shared_ptr<Donor>;

  [[nodiscard]] asio::awaitable<void> learn_from(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> rest(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> work(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> connect(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> fetch(DonorPtr donor);
  [[nodiscard]] asio::awaitable<void> follow(DonorPtr donor);

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
  std::vector<Progress> fragments_;
  std::vector<protocol::Round> newest_;  ///< empty before it was said
  std::size_t fetched_anew_ = 0;
};

}  // namespace isthmus::outer_sync::transport
