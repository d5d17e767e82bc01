#include "net/state_transfer/state_fetcher.h"

#include <algorithm>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "net/link/control_link.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using protocol::Round;

namespace {
constexpr std::size_t max_failures = 3;
/// A member may have applied a round before a donor has its results. So a round counts as gone only after
/// every donor has reported it missing this many times, with pauses in between; the newest round never does.
constexpr std::size_t max_refusals = 3;
}  // namespace

StateFetcher::StateFetcher(asio::io_context& io, const FragmentLayout& layout, protocol::CodecPlan codecs,
                           LinkOptions link, WireCounters& counters, Trace& trace, const BufferPool& buffers,
                           Handler& handler, StatePatience limits)
    : io_(io),
      layout_(layout),
      codecs_(codecs),
      link_(std::move(link)),
      counters_(counters),
      trace_(trace),
      buffers_(buffers),
      handler_(handler),
      patience_(limits),
      fragments_(layout.fragment_count()) {}

void StateFetcher::start(const std::vector<PeerInfo>& donors, std::vector<PeerInfo> bridges,
                         protocol::ReplicaId self, const Digest& token, StateParts parts) {
  if (donors.empty())
    throw Error(ErrorKind::network, "the coordinator named no member to copy the state from");
  stop();
  bridges_ = std::move(bridges);
  self_ = self;
  token_ = token;
  parts_ = parts;
  for (const auto& donor : donors) donors_.push_back(std::make_shared<Donor>(io_, donor));
  // Posted, so that the handler is not called from within start().
  for (const auto& donor : donors_) {
    asio::post(io_, [this, donor] {
      if (!donor->gone)
        spawn(io_.get_executor(), "copying the state from " + donor->info.name, learn_from(donor));
    });
  }
}

void StateFetcher::newest(const std::vector<Round>& rounds) {
  if (rounds.size() != fragments_.size()) {
    throw Error(ErrorKind::network, "received the newest rounds of " + std::to_string(rounds.size()) +
                                        " fragments; expected " + std::to_string(fragments_.size()));
  }
  newest_ = rounds;
  wake_all();
}

bool StateFetcher::caught_up() const {
  if (newest_.empty()) return false;
  for (FragmentId f = 0; f < fragments_.size(); ++f) {
    if (!is_near(f)) return false;
  }
  return true;
}

bool StateFetcher::is_near(FragmentId fragment) const {
  const auto& at = fragments_[fragment];
  return at.whole && (at.round >= newest_[fragment] || newest_[fragment] - at.round == 1);
}

void StateFetcher::stop() {
  for (const auto& donor : donors_) {
    donor->gone = true;
    donor->wake.cancel();
    if (donor->connection) donor->connection->close();
  }
  donors_.clear();
}

// ---- one donor ----

/// After every wait and every call of the handler, the fetcher may only be touched if the donor is not
/// `gone`.
asio::awaitable<void> StateFetcher::learn_from(DonorPtr donor) {
  while (!donor->gone && !donor->given_up) {
    std::string why;
    bool lost = false;
    try {
      co_await work(donor);
    } catch (const DonorLost& error) {
      why = error.what();
      lost = true;
    } catch (const Error& error) {
      why = error.what();
    } catch (const std::exception& error) {  // e.g. out of memory, which may be temporary
      why = error.what();
      lost = true;
    }
    if (donor->gone || why.empty()) continue;
    if (lost) {
      failed(*donor, why);
    } else {
      misfit(*donor, why);
    }
  }
}

asio::awaitable<void> StateFetcher::work(DonorPtr donor) {
  donor->task.reset();
  if (Clock::now() >= donor->rest_until) donor->task = next_task(*donor);
  if (!donor->task) {
    co_await rest(donor);
  } else if (!donor->connection || donor->connection->hung_up()) {
    donor->task.reset();  // an unreachable donor must not block a fragment
    co_await connect(donor);
  } else if (donor->task->follow) {
    co_await follow(donor);
  } else {
    co_await fetch(donor);
  }
}

/// Waits until there may be something to do.
asio::awaitable<void> StateFetcher::rest(DonorPtr donor) {
  auto until = Clock::time_point::max();
  for (const auto& [fragment, then] : donor->lacking) until = std::min(until, then);
  if (donor->rest_until > Clock::now()) until = donor->rest_until;
  donor->wake.expires_at(until);
  asio::error_code woken;
  co_await donor->wake.async_wait(asio::redirect_error(use_awaitable, woken));
}

/// A donor with an address is dialled directly at first, and through a bridge every other time. Donors begin
/// with different bridges.
std::optional<PeerInfo> StateFetcher::bridge_to(Donor& donor) const {
  if (!donor.info.address.empty() && donor.failures % 2 == 0) return std::nullopt;
  for (std::size_t tried = 0; tried < bridges_.size(); ++tried) {
    const auto& bridge = bridges_[(donor.info.id + donor.dials++) % bridges_.size()];
    if (bridge.id != donor.info.id) return bridge;
  }
  return std::nullopt;
}

asio::awaitable<void> StateFetcher::connect(DonorPtr donor) {
  const auto bridge = bridge_to(*donor);
  auto connection = co_await dial_donor(io_, donor->info, bridge, self_, token_, link_, counters_, trace_);
  if (donor->gone) {
    connection->close();
  } else {
    donor->connection = std::move(connection);
  }
}

asio::awaitable<void> StateFetcher::fetch(DonorPtr donor) {
  const auto task = *donor->task;
  const StateRequest request{.fragment = task.fragment, .parts = parts_, .from = task.round};
  auto snapshot = co_await fetch_fragment(donor->connection, layout_, request, patience_);
  if (donor->gone) co_return;
  if (!snapshot) co_return lacks(*donor);
  fragments_[task.fragment] = {.whole = true, .round = snapshot->at.round};
  answered(*donor);
  handler_.on_fragment(std::move(*snapshot));
}

asio::awaitable<void> StateFetcher::follow(DonorPtr donor) {
  const auto task = *donor->task;
  const RoundRequest request{.fragment = task.fragment, .round = task.round};
  auto results = co_await fetch_round(donor->connection, layout_, codecs_, request, patience_, buffers_);
  if (donor->gone) co_return;
  if (!results) co_return lacks(*donor);
  fragments_[task.fragment] = {.whole = true, .round = task.round};
  answered(*donor);
  handler_.on_round(task.fragment, task.round, std::move(*results));
}

// ---- choosing tasks ----

/// Rounds first: donors keep them for a limited time.
std::optional<StateFetcher::Task> StateFetcher::next_task(Donor& donor) const {
  const auto now = Clock::now();
  std::erase_if(donor.lacking, [now](const auto& entry) { return entry.second <= now; });
  std::optional<Task> to_fetch;
  for (FragmentId f = 0; f < fragments_.size(); ++f) {
    const auto& at = fragments_[f];
    if (is_taken(f) || donor.lacking.contains(f)) continue;
    if (at.whole && !newest_.empty() && at.round < newest_[f]) return Task{f, true, at.round + 1};
    if (!at.whole && !to_fetch) to_fetch = Task{f, false, at.round};
  }
  return to_fetch;
}

bool StateFetcher::is_taken(FragmentId fragment) const {
  return std::any_of(donors_.begin(), donors_.end(), [fragment](const DonorPtr& donor) {
    return donor->task && donor->task->fragment == fragment;
  });
}

bool StateFetcher::is_left(const Donor& donor) const {
  return !donor.given_up && donor.failures < max_failures;
}

void StateFetcher::answered(Donor& donor) {
  donor.failures = 0;
  wake_all();  // the fragment may need another round, which any donor may send
}

/// The donor lacks the round or the state, either not yet or no longer. Others are asked, and this one again
/// after a pause.
void StateFetcher::lacks(Donor& donor) {
  donor.failures = 0;
  const auto task = *std::exchange(donor.task, std::nullopt);
  auto& at = fragments_[task.fragment];
  const auto left = static_cast<std::size_t>(std::count_if(
      donors_.begin(), donors_.end(), [this](const DonorPtr& other) { return is_left(*other); }));
  const auto pause = redial_pause(self_ + task.fragment, at.gone++ / left);
  donor.lacking[task.fragment] = Clock::now() + pause;
  if (task.follow && at.gone >= max_refusals * left && !is_near(task.fragment)) fetch_anew(task);
  wake_all();
}

void StateFetcher::fetch_anew(const Task& task) {
  if (task.follow) ++fetched_anew_;
  fragments_[task.fragment] = {.whole = false, .round = task.round};
  for (const auto& donor : donors_) donor->lacking.erase(task.fragment);
}

// ---- donors that fail ----

void StateFetcher::misfit(Donor& donor, const std::string& why) {
  donor.given_up = true;
  if (donor.connection) donor.connection->close();
  if (donor.task) fetch_anew(*donor.task);
  failed(donor, why);
}

void StateFetcher::failed(Donor& donor, const std::string& why) {
  donor.problem = why;
  donor.task.reset();
  donor.rest_until = Clock::now() + redial_pause(self_ + donor.info.id, donor.failures++);
  wake_all();
  end_unless_one_is_left();
}

void StateFetcher::end_unless_one_is_left() {
  std::string why;
  for (const auto& donor : donors_) {
    if (is_left(*donor)) return;
    why += (why.empty() ? "" : "; ") + donor->problem;
  }
  stop();
  handler_.on_failed(why);
}

void StateFetcher::wake_all() {
  for (const auto& donor : donors_) donor->wake.cancel();
}

}  // namespace isthmus::outer_sync::transport
