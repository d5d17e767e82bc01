#include "isthmus/outer_sync/protocol/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"

namespace isthmus::outer_sync::protocol {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// The layout is a stranger's word until it is checked: sizes are bounded before any chunk is listed.
std::optional<FragmentLayout> layout_of(const Sealed& sealed) {
  constexpr std::uint64_t most_elements = 1ULL << 44;
  constexpr std::uint64_t most_chunks = 1ULL << 22;  // what a NewView lists fits into a control frame
  if (sealed.chunk_elements == 0) return std::nullopt;
  std::uint64_t chunks = 0;
  for (const auto& fragment : sealed.layout) {
    if (fragment.size > most_elements || fragment.begin > most_elements) return std::nullopt;
    chunks += fragment.size / sealed.chunk_elements + 1;
    if (chunks > most_chunks) return std::nullopt;
  }
  try {
    return FragmentLayout(sealed.layout, sealed.chunk_elements);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::uint64_t newest_common_checkpoint(const std::map<std::string, Coordinator::MemberStatus>& members) {
  auto common = members.begin()->second.hello.checkpoints;
  std::ranges::sort(common);
  for (const auto& [name, member] : members) {
    auto theirs = member.hello.checkpoints;
    std::ranges::sort(theirs);
    std::vector<std::uint64_t> both;
    std::ranges::set_intersection(common, theirs, std::back_inserter(both));
    common = std::move(both);
  }
  return common.empty() ? 0 : common.back();
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, Time started)
    : options_(std::move(options)), started_(started) {}

// ---- joining ----

std::string Coordinator::reason_to_refuse(const Hello& hello) const {
  const auto& name = hello.member.name;
  if (hello.protocol != protocol_version || hello.numerics != numerics_version) {
    return "protocol/numerics versions are " + std::to_string(protocol_version) + "/" +
           std::to_string(numerics_version) + " at the coordinator and " + std::to_string(hello.protocol) +
           "/" + std::to_string(hello.numerics) + " at " + name + " (build " + hello.build +
           "); use the same build";
  }
  if (hello.run != options_.run) return "this is run '" + options_.run + "', not '" + hello.run + "'";
  if (name.empty() || name.size() > 64) return "a replica's name has 1 to 64 characters";
  if (auto difference = config::first_difference(options_.config, "the coordinator", hello.config, name);
      !difference.empty()) {
    return difference + "; all replicas must share it";
  }
  if (phase_ != Phase::joining) return "the run has begun; members cannot join in mid-run yet";
  if (members_.contains(name))
    return "a replica named '" + name + "' is already here; give each its own --name";
  if (members_.empty()) return {};
  const auto& first = members_.begin()->second.hello;
  // Before the model: another vocabulary makes another model, and is what can be mended.
  if (hello.tokenizer != first.tokenizer)
    return "the tokenizer of " + name + " is not the tokenizer of " + first.member.name;
  if (hello.model != first.model) {
    return "the model of " + name + " is not the model of " + first.member.name +
           " (names, shapes or fragments differ)";
  }
  if (hello.resume != first.resume) {
    return (hello.resume ? "only " + name + " wants to resume"
                         : name + " does not want to resume, unlike the others") +
           "; all or none must";
  }
  return {};
}

void Coordinator::on_hello(ConnectionId from, Time now, const Hello& hello) {
  if (auto reason = reason_to_refuse(hello); !reason.empty()) {
    actions_.push_back(Say{"refused a worker: " + reason});
    actions_.push_back(SendControl{from, Refused{reason}});
    actions_.push_back(CloseConnection{from});
    return;
  }
  auto& member = members_[hello.member.name];
  member.connection = from;
  member.hello = hello;
  member.heard = now;
  actions_.push_back(Say{hello.member.name + " joined from " + hello.member.address + " (" +
                         std::to_string(members_.size()) + " of " + std::to_string(options_.replicas) + ")"});
  if (members_.size() == options_.replicas) seal();
}

void Coordinator::seal() {
  phase_ = Phase::sealing;
  const bool resume = members_.begin()->second.hello.resume;
  const auto step = resume ? newest_common_checkpoint(members_) : 0;
  if (resume && step == 0) {
    return end(Ended::How::failed,
               "no checkpoint is complete on all replicas; start without --resume, or bring them back");
  }
  if (step > 0) actions_.push_back(Say{"resuming from the checkpoint of step " + std::to_string(step)});
  broadcast(Seal{1, step});
}

void Coordinator::on_sealed(MemberStatus& member, const Sealed& sealed) {
  if (phase_ != Phase::sealing || sealed.view != 1) return;
  member.state = sealed;
  member.sealed = true;
  if (std::ranges::all_of(members_, [](const auto& entry) { return entry.second.sealed; })) begin_view();
}

std::string Coordinator::disagreement() const {
  const auto& [first_name, first] = *members_.begin();
  if (!layout_of(first.state)) return "the fragments of " + first_name + " are not a layout";
  for (const auto& [name, member] : members_) {
    if (member.state.layout != first.state.layout ||
        member.state.chunk_elements != first.state.chunk_elements) {
      return "the fragments of " + name + " and " + first_name + " differ";
    }
    if (member.state.parameters != first.state.parameters ||
        member.state.fragments != first.state.fragments) {
      return "global parameters of " + name + " and " + first_name +
             " differ before the first step; use the same build, seed and checkpoint";
    }
  }
  return {};
}

void Coordinator::begin_view() {
  if (auto difference = disagreement(); !difference.empty()) return end(Ended::How::diverged, difference);
  phase_ = Phase::running;
  View view{.number = 1, .members = {}, .owners = {}};
  for (const auto& [name, member] : members_) view.members.push_back(member.hello.member);
  view.owners = balanced_owners(*layout_of(members_.begin()->second.state), members_.size());
  actions_.push_back(Say{"view 1 begins with " + std::to_string(members_.size()) + " replicas"});
  broadcast(NewView{std::move(view), options_.token});
}

// ---- running ----

void Coordinator::on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat) {
  member.heartbeat = heartbeat;
  send(member, HeartbeatReply{1});
  if (phase_ != Phase::running) return;
  check_chains(member);
  actions_.push_back(MembersChanged{});
}

void Coordinator::check_chains(const MemberStatus& member) {
  constexpr std::size_t kept = 8;  // only the newest few rounds can be reported by somebody else too
  const auto& name = member.hello.member.name;
  const auto& fragments = member.heartbeat.fragments;
  if (fragments.size() > member.state.layout.size()) return;
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    const auto& [round, prefix] = fragments[p];
    auto& points = chains_[p];
    const auto [place, is_new] = points.try_emplace(round, ChainPoint{prefix, name});
    if (!is_new && place->second.prefix != prefix) {
      return end(Ended::How::diverged, "chain hashes of " + name + " and " + place->second.by +
                                           " differ at round " + std::to_string(round) + " of fragment " +
                                           std::to_string(p));
    }
    if (points.size() > kept) points.erase(points.begin());
  }
}

void Coordinator::on_eval(const EvalReport& report) {
  auto& evaluation = evaluations_[report.step];
  evaluation.sum_nats += report.sum_nats;
  evaluation.tokens += report.tokens;
  if (++evaluation.reports < members_.size()) return;
  actions_.push_back(Evaluated{
      report.step, evaluation.sum_nats / static_cast<double>(std::max<std::uint64_t>(evaluation.tokens, 1))});
  evaluations_.erase(report.step);
}

// ---- stopping ----

void Coordinator::request_stop(const std::string& reason) {
  if (stopping_ || phase_ == Phase::ended) return;
  stopping_ = true;
  actions_.push_back(Say{"stopping: " + reason});
  if (phase_ != Phase::running) return end(Ended::How::stopped, "stopped before the first step");
  broadcast(Hold{});
}

void Coordinator::on_held(MemberStatus& member, const Held& held) {
  if (!stopping_ || member.held) return;
  member.held = true;
  member.held_step = held.step;
  std::uint64_t last = 0;
  for (const auto& [name, other] : members_) {
    if (!other.held) return;  // one that is done answers too: its last step is the one that all must reach
    last = std::max(last, other.held_step);
  }
  broadcast(StopAt{last});
}

void Coordinator::on_done(MemberStatus& member, const Done& done) {
  if (phase_ != Phase::running) return;
  member.done = true;
  member.result = done;
  if (std::ranges::all_of(members_, [](const auto& entry) { return entry.second.done; })) finish();
}

void Coordinator::finish() {
  const auto& [first_name, first] = *members_.begin();
  std::string problem;
  for (const auto& [name, member] : members_) {
    if (member.result.global_hash != first.result.global_hash) {
      problem = "global hashes of " + name + " and " + first_name + " differ at the end";
    }
  }
  broadcast(Finished{problem});
  for (const auto& [name, member] : members_) actions_.push_back(CloseConnection{member.connection});
  phase_ = Phase::ended;
  actions_.push_back(Ended{problem.empty() ? Ended::How::finished : Ended::How::diverged, problem});
}

void Coordinator::end(Ended::How how, const std::string& reason) {
  if (phase_ == Phase::ended) return;
  broadcast(Abort{reason});
  for (const auto& [name, member] : members_) actions_.push_back(CloseConnection{member.connection});
  phase_ = Phase::ended;
  actions_.push_back(Ended{how, reason});
}

// ---- what comes in ----

void Coordinator::receive(ConnectionId from, Time now, const ControlMessage& message) {
  if (phase_ == Phase::ended) return;
  auto* member = find(from);
  if (member == nullptr) {
    if (const auto* hello = std::get_if<Hello>(&message)) return on_hello(from, now, *hello);
    actions_.push_back(Say{"dropped a connection that did not begin with a hello"});
    actions_.push_back(CloseConnection{from});
    return;
  }
  member->heard = now;
  on_message(*member, message);
}

void Coordinator::on_message(MemberStatus& member, const ControlMessage& message) {
  const auto& name = member.hello.member.name;
  std::visit(Overloaded{
                 [&](const Sealed& sealed) { on_sealed(member, sealed); },
                 [&](const Heartbeat& heartbeat) { on_heartbeat(member, heartbeat); },
                 [&](const EvalReport& report) { on_eval(report); },
                 [&](const Announce& announce) { broadcast(announce); },
                 [&](const StopRequest& request) { request_stop(request.reason + " (" + name + ")"); },
                 [&](const Held& held) { on_held(member, held); },
                 [&](const Done& done) { on_done(member, done); },
                 [&](const Leave& leave) { lose(member, "left: " + leave.reason); },
                 [&](const auto&) {
                   actions_.push_back(Say{name + " sent a message that is not a member's to send; dropped"});
                   actions_.push_back(CloseConnection{member.connection});
                 },
             },
             message);
}

void Coordinator::closed(ConnectionId connection) {
  auto* member = find(connection);
  if (member == nullptr || phase_ == Phase::ended) return;
  lose(*member, "is lost: its connection closed");
}

void Coordinator::lose(const MemberStatus& member, const std::string& how) {
  const auto name = member.hello.member.name;
  if (phase_ != Phase::joining) return end(Ended::How::failed, name + " " + how);
  actions_.push_back(CloseConnection{member.connection});
  actions_.push_back(Say{name + " " + how + "; its place is free again"});
  members_.erase(name);
}

void Coordinator::tick(Time now) {
  if (phase_ == Phase::ended) return;
  if (phase_ == Phase::joining && now - started_ > options_.join_timeout) {
    return end(Ended::How::failed, "only " + std::to_string(members_.size()) + " of " +
                                       std::to_string(options_.replicas) +
                                       " replicas joined within network.join_timeout");
  }
  const auto silent = std::ranges::find_if(
      members_, [&](const auto& entry) { return now - entry.second.heard > options_.detect_timeout; });
  if (silent != members_.end())
    lose(silent->second, "is lost: silent for longer than network.detect_timeout");
}

void Coordinator::send(const MemberStatus& member, ControlMessage message) {
  actions_.push_back(SendControl{member.connection, std::move(message)});
}

void Coordinator::broadcast(const ControlMessage& message) {
  for (const auto& [name, member] : members_) send(member, message);
}

Coordinator::MemberStatus* Coordinator::find(ConnectionId connection) {
  for (auto& [name, member] : members_) {
    if (member.connection == connection) return &member;
  }
  return nullptr;
}

}  // namespace isthmus::outer_sync::protocol
