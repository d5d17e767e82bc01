// Validation of received chunks. Any problem means that the sender has broken the protocol.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync::protocol {

std::optional<std::string> Member::check(MemberIndex from, const ChunkMessage& message) const {
  const auto& [round, chunk, sender, kind] = message.key;
  if (sender != from) return "a chunk sent in the name of member " + std::to_string(sender);
  if (chunk >= layout_.chunk_count()) {
    return "chunk " + std::to_string(chunk) + " of " + std::to_string(layout_.chunk_count());
  }
  if (round == 0) return "a chunk of round 0";
  const auto owner = view_.owners[chunk];
  const bool decided = fixed_.contains({round, chunk});
  if (kind != ChunkKind::contribution && kind != ChunkKind::result) return "a chunk of unknown kind";
  if (kind == ChunkKind::contribution && owner != self_)
    return "a contribution to a chunk that is not owned here";
  if (kind == ChunkKind::contribution && !trains(view_.members[from])) return "a contribution of a reducer";
  if (kind == ChunkKind::result && owner != from && !decided)
    return "a result of a chunk that it does not own";
  const auto size = quant::encoded_size(codecs_.of(round), layout_.chunk(chunk).size);
  if (message.bytes->size() != size) {
    return "a chunk of " + std::to_string(message.bytes->size()) + " bytes; expected " + std::to_string(size);
  }
  if (const auto* mine = held(message.key); mine != nullptr && **mine != *message.bytes) {
    return "two versions of one chunk in one round";
  }
  if (kind == ChunkKind::result) {
    if (auto problem = check_result(message, decided)) return problem;
  }
  return check_trained_on(message, decided);
}

namespace {

std::vector<ReplicaId> replicas_of(const std::vector<SquaredNorm>& norms) {
  std::vector<ReplicaId> out;
  out.reserve(norms.size());
  for (const auto& norm : norms) out.push_back(norm.replica);
  return out;
}

}  // namespace

/// A decided result of an older view may contain contributions of members that are gone.
std::optional<std::string> Member::check_result(const ChunkMessage& message, bool decided) const {
  if (!decided) {
    if (auto problem = check_contributors(message)) return problem;
  }
  if (closing_.reject > 0) return check_rejection(message);
  if (!message.norms.empty()) return "norms in a run without outer.reject";
  return std::nullopt;
}

bool Member::are_trainers_of_the_view(const std::vector<ReplicaId>& listed) const {
  auto rest = trainers_.begin();
  for (const auto id : listed) {
    rest = std::find(rest, trainers_.end(), id);
    if (rest == trainers_.end()) return false;
    ++rest;
  }
  return true;
}

/// For a result made in this view: its contributors must be trainers of the view in member order, and enough
/// for the owner to close the chunk.
std::optional<std::string> Member::check_contributors(const ChunkMessage& message) const {
  const auto there = closing_.reject > 0 ? replicas_of(message.norms) : message.contributors;
  if (!are_trainers_of_the_view(there) || !are_trainers_of_the_view(message.contributors))
    return "a result with contributors that are not trainers of the view, in member order";
  const auto needed = closing_.quorum == 0 ? trainers_.size() : std::max(closing_.quorum, closing_.least);
  const bool are_all = there.size() == trainers_.size() || (there.empty() && closing_.reject == 0);
  if (are_all || there.size() >= needed) return std::nullopt;
  return "a result of " + std::to_string(there.size()) + " contributions; at least " +
         std::to_string(needed) + " are needed";
}

/// Rejection is a function of the norms, and every member knows one of these: its own.
std::optional<std::string> Member::check_rejection(const ChunkMessage& message) const {
  std::vector<double> squares;
  for (const auto& norm : message.norms) {
    if (!(norm.value >= 0)) return "an invalid sum of squares (negative or NaN)";
    squares.push_back(norm.value);
  }
  const auto stays = kept(reject_rule(), squares);
  std::vector<ReplicaId> expected;
  for (std::size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) expected.push_back(message.norms[i].replica);
  }
  if (expected != (message.contributors.empty() ? trainers_ : message.contributors))
    return "a result with other contributors than outer.reject keeps by its norms";
  return check_own_norm(message);
}

std::optional<std::string> Member::check_own_norm(const ChunkMessage& message) const {
  const auto& [round, chunk, sender, kind] = message.key;
  const auto listed = std::ranges::find(message.norms, ids_[self_], &SquaredNorm::replica);
  if (listed == message.norms.end() || round <= applied_[layout_.fragment_of(chunk)].round)
    return std::nullopt;
  const auto own = own_.find({round, chunk});
  if (own == own_.end()) return "a norm of a contribution that this replica has not sent";
  if (own->second.squares == listed->value) return std::nullopt;
  return "a sum of squares of this replica's contribution to chunk " + std::to_string(chunk) + " that is " +
         std::to_string(listed->value) + "; it is " + std::to_string(own->second.squares);
}

/// A contribution lists its sender's samples. A result lists its contributors' samples in member order; the
/// samples of this member must be the ones it sent.
std::optional<std::string> Member::check_trained_on(const ChunkMessage& message, bool decided) const {
  const auto& [round, chunk, sender, kind] = message.key;
  const auto& rows = message.trained_on;
  if (!begins_fragment(chunk)) {
    if (rows.empty()) return std::nullopt;
    return "training samples with a chunk that is not the first of its fragment";
  }
  const bool is_result = kind == ChunkKind::result;
  if (!are_sound(rows, is_result ? view_.members.size() : 1)) return "invalid training samples";
  if (!is_result) {
    const bool own =
        std::ranges::all_of(rows, [id = ids_[sender]](const auto& row) { return row.replica == id; });
    return own ? std::nullopt : std::optional<std::string>("samples that another member was trained on");
  }
  if (!decided) {
    std::vector<ReplicaId> who;
    for (const auto& row : rows) {
      if (who.empty() || who.back() != row.replica) who.push_back(row.replica);
    }
    if (!are_trainers_of_the_view(who))
      return "samples of replicas that are not trainers of the view, in member order";
  }
  const auto own = own_.find({round, chunk});
  const auto me = ids_[self_];
  const bool is_in = message.contributors.empty()
                         ? !decided || std::ranges::find(rows, me, &TrainedOn::replica) != rows.end()
                         : std::ranges::find(message.contributors, me) != message.contributors.end();
  if (own == own_.end() || !is_in) return std::nullopt;
  std::vector<TrainedOn> listed;
  std::ranges::copy_if(rows, std::back_inserter(listed), [&](const auto& row) { return row.replica == me; });
  if (listed == own->second.trained_on) return std::nullopt;
  return "other samples for this replica's contribution than the ones it sent";
}

}  // namespace isthmus::outer_sync::protocol
