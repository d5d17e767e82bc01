#include "transport/trainer_side.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "transport/duration.h"

namespace isthmus::outer_sync::transport {

using namespace protocol;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {
constexpr auto farewell_limit = 1s;
constexpr auto longest_service = 1min;  ///< of learners, by one that has nothing else to do any more
/// Who asks for results that do not come, and has no step to make meanwhile, asks again that often.
constexpr auto ask_again_after = 20ms;
}  // namespace

TrainerSide::TrainerSide(const NetworkConfig& network, bool reject, Rendezvous& meet, NetworkSide& side)
    : network_(network), reject_(reject), meet_(meet), side_(side) {}

void TrainerSide::throw_if_ended() const {
  if (meet_.failure) throw *meet_.failure;
  if (meet_.displaced) throw outer_sync::Displaced(*meet_.displaced);
}

// ---- the run ----

void TrainerSide::say_hello(Hello hello) {
  name_ = hello.member.name;
  side_.say_hello(std::move(hello));
}

Admission TrainerSide::admission() {
  Lock lock(meet_.mutex);
  meet_.wait_for(lock, [&] { return meet_.seal || meet_.admitted || meet_.finished; });
  if (!meet_.seal) return {.how = Admission::How::joins, .step = 0};
  const auto step = meet_.seal->resume_step;
  return {.how = step > 0 ? Admission::How::resumes : Admission::How::begins, .step = step};
}

void TrainerSide::activate(const std::vector<FragmentState>& fragments, const Digest& parameters,
                           const Ledger& ledger, SampleSet trained, const Settings& settings) {
  meet_.update([&] { meet_.order.restore(std::move(trained)); });
  side_.activate(fragments, parameters, ledger, settings);
  Lock lock(meet_.mutex);
  meet_.wait_for(lock, [&] { return meet_.view || meet_.displaced; });
  throw_if_ended();
}

/// Serves those who take the state meanwhile, and looks up now and then: a signal may want it to leave.
bool TrainerSide::is_paused(std::uint64_t step) {
  Lock lock(meet_.mutex);
  throw_if_ended();
  const auto paused = [&] { return meet_.settings && step > meet_.settings->pause_after && !meet_.hold; };
  if (!paused()) return false;
  serve_requests(lock);
  meet_.changed.wait_for(lock, Rendezvous::look_up_every, [&] {
    return !paused() || meet_.failure || meet_.displaced || meet_.drain || !meet_.state_requests.empty();
  });
  meet_.look_up(lock);
  return true;
}

bool TrainerSide::may_begin(std::uint64_t step, std::uint64_t end, std::uint64_t reach) {
  Lock lock(meet_.mutex);
  throw_if_ended();
  if (meet_.hold) meet_.wait_for(lock, [&] { return meet_.stop_at || !meet_.commits || meet_.displaced; });
  // Where rounds do not commit, the step that all share cannot be reached either.
  if (meet_.hold && (!meet_.commits || (meet_.stop_at && step > *meet_.stop_at))) {
    meet_.stopped = true;
    return false;
  }
  meet_.begun = end;
  // One that is about to leap to where the others are is not where it says.
  meet_.reach = meet_.agreed_step > end ? Settings::never : reach;
  return true;
}

bool TrainerSide::checkpoint_due(std::uint64_t step) {
  const std::lock_guard lock(meet_.mutex);
  meet_.step_done = step;
  return meet_.checkpoint_at == step;
}

void TrainerSide::report_checkpoints(std::vector<CheckpointId> checkpoints) {
  constexpr std::size_t most_said = 16;
  if (checkpoints.size() > most_said) checkpoints.erase(checkpoints.begin(), checkpoints.end() - most_said);
  const std::lock_guard lock(meet_.mutex);
  meet_.checkpoints = std::move(checkpoints);
}

/// While the coordinator is away they are not kept for ever: later rounds are audited too.
void TrainerSide::audited(const Audit& audit) {
  const std::lock_guard lock(meet_.mutex);
  if (meet_.audits.size() < most_audits) meet_.audits.push_back(audit);
}

std::string TrainerSide::announced() {
  Lock lock(meet_.mutex);
  meet_.wait_for(lock, [&] { return meet_.announced.has_value(); });
  return *meet_.announced;
}

void TrainerSide::report(const StepReport& report) {
  const std::lock_guard lock(meet_.mutex);
  meet_.report = report;
}

std::string TrainerSide::done(std::string summary, const Digest& global_hash) {
  side_.done({std::move(summary), global_hash});
  Lock lock(meet_.mutex);
  while (!meet_.finished) {
    serve_requests(lock);
    meet_.sleep_until(lock, [&] { return meet_.failure || meet_.finished || !meet_.state_requests.empty(); });
    if (meet_.failure && !meet_.finished) throw *meet_.failure;
  }
  serve_the_last(lock);
  return meet_.finished->problem;
}

void TrainerSide::leave(const std::string& reason) {
  side_.leave(reason);
  Lock lock(meet_.mutex);
  meet_.changed.wait_for(lock, farewell_limit, [&] { return meet_.gone; });
  meet_.gone = true;
  meet_.changed.notify_all();
}

// ---- what is known of it ----

View TrainerSide::view() const {
  const std::lock_guard lock(meet_.mutex);
  return meet_.view ? meet_.view->view : View{};
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
  const std::lock_guard lock(meet_.mutex);
  auto seen = meet_.participation;
  if (!meet_.commits) seen.participating = 0;
  return seen;
}

std::optional<Finished> TrainerSide::finished() const { return read(&Rendezvous::finished); }
std::optional<std::uint64_t> TrainerSide::stops_at() const { return read(&Rendezvous::stop_at); }
double TrainerSide::reference_speed() const { return read(&Rendezvous::reference_speed); }
std::uint64_t TrainerSide::common_checkpoint() const { return read(&Rendezvous::common_checkpoint); }
bool TrainerSide::reaches_coordinator() const { return read(&Rendezvous::reaches_coordinator); }
bool TrainerSide::stopped_early() const { return read(&Rendezvous::stopped); }
std::shared_ptr<const Settings> TrainerSide::settings() const { return read(&Rendezvous::settings); }
std::optional<std::string> TrainerSide::drains() const { return read(&Rendezvous::drain); }

void TrainerSide::give_up(const std::string& reason) {
  side_.give_up(reason);
  Lock lock(meet_.mutex);
  meet_.wait_for(lock, [&] { return meet_.displaced.has_value(); });
  throw outer_sync::Displaced(reason);
}

std::uint64_t TrainerSide::agreed_step() const { return read(&Rendezvous::agreed_step); }

// ---- rounds ----

SampleRange TrainerSide::next_samples(std::uint64_t most) {
  const std::lock_guard lock(meet_.mutex);
  return meet_.order.next(most);
}

void TrainerSide::contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight,
                             const SampleSet& samples) {
  auto& workshop = side_.workshop();
  auto packed = workshop.contribution_packer.pack(chunk, round, *bytes);
  const double squares = reject_ ? workshop.reducer.squares(chunk, round, *bytes) : 0;
  side_.contribute(chunk, round, std::move(bytes), std::move(packed), weight, squares, samples);
}

Awaited TrainerSide::wait(FragmentId fragment, Round round, bool can_train_on) {
  const Rendezvous::Place place{fragment, round};
  Lock lock(meet_.mutex);
  for (;;) {
    throw_if_ended();
    if (auto found = meet_.results.extract(place)) {
      meet_.taken.insert(place);
      return {std::move(found.mapped())};
    }
    serve_requests(lock);
    if (!meet_.commits) {
      meet_.stuck = meet_.unanswered == place;
      meet_.changed.wait_for(lock, ask_again_after);
      meet_.look_up(lock);
      if (meet_.commits || meet_.results.contains(place)) continue;
      meet_.unanswered = place;
      return {std::nullopt, false};
    }
    if (can_train_on && meet_.forms_without_a_trainer()) return {};
    meet_.sleep_until(lock, [&] {
      return meet_.failure || meet_.displaced || meet_.results.contains(place) || !meet_.commits ||
             (can_train_on && meet_.forms_without_a_trainer()) || !meet_.state_requests.empty();
    });
  }
}

// ---- the state, for others ----

void TrainerSide::serve_state_from(RoundExchange::StateSource source) {
  const std::lock_guard lock(meet_.mutex);
  state_source_ = std::move(source);
}

void TrainerSide::serve() {
  Lock lock(meet_.mutex);
  throw_if_ended();
  meet_.unanswered.reset();
  meet_.stuck = false;
  serve_requests(lock);
}

void TrainerSide::serve_requests(Lock& lock) {
  while (!meet_.state_requests.empty() && state_source_) {
    const auto question = std::move(meet_.state_requests.front());
    meet_.state_requests.pop_front();
    const auto source = state_source_;
    lock.unlock();
    question.answer(source(question.fragment, question.moments));
    lock.lock();
  }
}

/// Observers hear of the run's last rounds when it is over.
void TrainerSide::serve_the_last(Lock& lock) {
  const auto begin = Clock::now();
  meet_.served_until = std::max(meet_.served_until, begin + to_duration(network_.detect_timeout));
  while (meet_.learners > 0 && Clock::now() < std::min(meet_.served_until, begin + longest_service)) {
    serve_requests(lock);
    meet_.await_change(lock, std::min(meet_.served_until, begin + longest_service));
  }
}

}  // namespace isthmus::outer_sync::transport
