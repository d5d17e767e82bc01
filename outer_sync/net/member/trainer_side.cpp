#include "net/member/trainer_side.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "config/duration.h"

namespace isthmus::outer_sync::transport {

using namespace protocol;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {
constexpr auto farewell_limit = 1s;
constexpr auto longest_service = 1min;  ///< limit for serving fetchers after the run's end
/// How long wait() pauses when rounds do not commit, before the trainer may ask again.
constexpr auto ask_again_after = 20ms;
}  // namespace

TrainerSide::TrainerSide(const NetworkConfig& network, bool reject, SharedState& meet, NetworkSide& side)
    : network_(network), reject_(reject), shared_(meet), side_(side) {}

void TrainerSide::throw_if_ended() const {
  if (shared_.failure) throw *shared_.failure;
  if (shared_.evicted) throw outer_sync::Evicted(*shared_.evicted);
}

// ---- the run ----

void TrainerSide::say_hello(Hello hello) {
  name_ = hello.member.name;
  side_.say_hello(std::move(hello));
}

Admission TrainerSide::admission() {
  Lock lock(shared_.mutex);
  shared_.wait_for(lock, [&] { return shared_.seal || shared_.admitted || shared_.finished; });
  if (!shared_.seal) return {.how = Admission::How::joins, .step = 0};
  const auto step = shared_.seal->resume_step;
  return {.how = step > 0 ? Admission::How::resumes : Admission::How::begins, .step = step};
}

void TrainerSide::activate(const std::vector<FragmentState>& fragments, const Digest& parameters,
                           const Ledger& ledger, SampleSet trained, const Settings& settings) {
  shared_.update([&] { shared_.order.restore(std::move(trained)); });
  side_.activate(fragments, parameters, ledger, settings);
  Lock lock(shared_.mutex);
  shared_.wait_for(lock, [&] { return shared_.view || shared_.evicted; });
  throw_if_ended();
}

/// Serves fetchers meanwhile, and calls `while_waiting`: a signal may ask this process to leave.
bool TrainerSide::is_paused(std::uint64_t step) {
  Lock lock(shared_.mutex);
  throw_if_ended();
  const auto paused = [&] {
    return shared_.settings && step > shared_.settings->pause_after && !shared_.hold;
  };
  if (!paused()) return false;
  serve_requests(lock);
  shared_.changed.wait_for(lock, SharedState::look_up_every, [&] {
    return !paused() || shared_.failure || shared_.evicted || shared_.drain ||
           !shared_.state_requests.empty();
  });
  shared_.look_up(lock);
  return true;
}

bool TrainerSide::may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach) {
  Lock lock(shared_.mutex);
  throw_if_ended();
  if (shared_.hold)
    shared_.wait_for(lock, [&] { return shared_.stop_at || !shared_.commits || shared_.evicted; });
  // While rounds do not commit, the step at which all stop cannot be reached.
  if (shared_.hold && (!shared_.commits || (shared_.stop_at && step > *shared_.stop_at))) {
    shared_.stopped = true;
    return false;
  }
  shared_.begun = end;
  // A replica that is about to jump to the agreed step is not at `end`, so it reports no reach.
  shared_.reach = shared_.agreed_step > end ? Settings::never : reach;
  return true;
}

bool TrainerSide::checkpoint_due(std::uint64_t step) {
  const std::lock_guard lock(shared_.mutex);
  shared_.step_done = step;
  return shared_.checkpoint_at == step;
}

void TrainerSide::report_checkpoints(std::vector<CheckpointId> checkpoints) {
  constexpr std::size_t max_reported = 16;
  if (checkpoints.size() > max_reported)
    checkpoints.erase(checkpoints.begin(), checkpoints.end() - max_reported);
  const std::lock_guard lock(shared_.mutex);
  shared_.checkpoints = std::move(checkpoints);
}

/// Bounded while the coordinator is away; later rounds are audited too.
void TrainerSide::audited(const Audit& audit) {
  const std::lock_guard lock(shared_.mutex);
  if (shared_.audits.size() < max_audits) shared_.audits.push_back(audit);
}

std::string TrainerSide::announced() {
  Lock lock(shared_.mutex);
  shared_.wait_for(lock, [&] { return shared_.announced.has_value(); });
  return *shared_.announced;
}

void TrainerSide::report(const StepReport& report) {
  const std::lock_guard lock(shared_.mutex);
  shared_.report = report;
}

std::string TrainerSide::done(std::string summary, const Digest& global_hash) {
  side_.done({std::move(summary), global_hash});
  Lock lock(shared_.mutex);
  while (!shared_.finished) {
    serve_requests(lock);
    shared_.sleep_until(
        lock, [&] { return shared_.failure || shared_.finished || !shared_.state_requests.empty(); });
    if (shared_.failure && !shared_.finished) throw *shared_.failure;
  }
  serve_the_last(lock);
  return shared_.finished->problem;
}

void TrainerSide::leave(const std::string& reason) {
  side_.leave(reason);
  Lock lock(shared_.mutex);
  shared_.changed.wait_for(lock, farewell_limit, [&] { return shared_.gone; });
  shared_.gone = true;
  shared_.changed.notify_all();
}

// ---- queries ----

View TrainerSide::view() const {
  const std::lock_guard lock(shared_.mutex);
  return shared_.view ? shared_.view->view : View{};
}

MemberIndex TrainerSide::self() const {
  const auto members = view().members;
  const auto me = std::ranges::find(members, name_, &MemberInfo::name);
  return static_cast<MemberIndex>(me - members.begin());
}

Rank TrainerSide::rank() const {
  const auto members = view().members;
  Rank rank;
  for (const auto& member : members) {
    if (!trains(member)) continue;
    rank.index += member.name < name_ ? 1 : 0;
    ++rank.of;
  }
  return rank;
}

Participation TrainerSide::participation() const {
  const std::lock_guard lock(shared_.mutex);
  auto seen = shared_.participation;
  if (!shared_.commits) seen.participating = 0;
  return seen;
}

std::optional<Finished> TrainerSide::finished() const { return read(&SharedState::finished); }
std::optional<std::uint64_t> TrainerSide::stops_at() const { return read(&SharedState::stop_at); }
double TrainerSide::reference_speed() const { return read(&SharedState::reference_speed); }
std::uint64_t TrainerSide::common_checkpoint() const { return read(&SharedState::common_checkpoint); }
bool TrainerSide::reaches_coordinator() const { return read(&SharedState::reaches_coordinator); }
bool TrainerSide::stopped_early() const { return read(&SharedState::stopped); }
std::shared_ptr<const Settings> TrainerSide::settings() const { return read(&SharedState::settings); }
std::optional<std::string> TrainerSide::drains() const { return read(&SharedState::drain); }

void TrainerSide::give_up(const std::string& reason) {
  side_.give_up(reason);
  Lock lock(shared_.mutex);
  shared_.wait_for(lock, [&] { return shared_.evicted.has_value(); });
  throw outer_sync::Evicted(reason);
}

std::uint64_t TrainerSide::agreed_step() const { return read(&SharedState::agreed_step); }

// ---- rounds ----

SampleRange TrainerSide::next_samples(std::uint64_t most) {
  const std::lock_guard lock(shared_.mutex);
  return shared_.order.next(most);
}

void TrainerSide::contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight,
                             const SampleSet& samples) {
  auto& codec_context = side_.codec_context();
  auto packed = codec_context.contribution_packer.pack(chunk, round, *bytes);
  const double squares = reject_ ? codec_context.reducer.squares(chunk, round, *bytes) : 0;
  side_.contribute(chunk, round, std::move(bytes), std::move(packed), weight, squares, samples);
}

Awaited TrainerSide::wait(FragmentId fragment, Round round, bool can_train_on) {
  const SharedState::Place place{fragment, round};
  Lock lock(shared_.mutex);
  for (;;) {
    throw_if_ended();
    if (auto found = shared_.results.extract(place)) {
      shared_.taken.insert(place);
      return {std::move(found.mapped())};
    }
    serve_requests(lock);
    if (!shared_.commits) {
      shared_.stuck = shared_.unanswered == place;
      shared_.changed.wait_for(lock, ask_again_after);
      shared_.look_up(lock);
      if (shared_.commits || shared_.results.contains(place)) continue;
      shared_.unanswered = place;
      return {std::nullopt, false};
    }
    if (can_train_on && shared_.forms_without_a_trainer()) return {};
    shared_.sleep_until(lock, [&] {
      return shared_.failure || shared_.evicted || shared_.results.contains(place) || !shared_.commits ||
             (can_train_on && shared_.forms_without_a_trainer()) || !shared_.state_requests.empty();
    });
  }
}

// ---- serving the state ----

void TrainerSide::serve_state_from(RoundExchange::StateSource source) {
  const std::lock_guard lock(shared_.mutex);
  state_source_ = std::move(source);
}

void TrainerSide::serve() {
  Lock lock(shared_.mutex);
  throw_if_ended();
  shared_.unanswered.reset();
  shared_.stuck = false;
  serve_requests(lock);
}

void TrainerSide::serve_requests(Lock& lock) {
  while (!shared_.state_requests.empty() && state_source_) {
    const auto question = std::move(shared_.state_requests.front());
    shared_.state_requests.pop_front();
    const auto source = state_source_;
    lock.unlock();
    question.answer(source(question.fragment, question.moments));
    lock.lock();
  }
}

/// Observers fetch the run's last rounds after its end.
void TrainerSide::serve_the_last(Lock& lock) {
  const auto begin = Clock::now();
  shared_.served_until = std::max(shared_.served_until, begin + to_duration(network_.detect_timeout));
  while (shared_.fetchers > 0 && Clock::now() < std::min(shared_.served_until, begin + longest_service)) {
    serve_requests(lock);
    shared_.await_change(lock, std::min(shared_.served_until, begin + longest_service));
  }
}

}  // namespace isthmus::outer_sync::transport
