// Exchanges in pairs between two rounds of a fragment, in worlds that have them (docs/protocol.md, I14).

#include <algorithm>
#include <tuple>
#include <utility>

#include "world.h"

namespace isthmus::outer_sync::protocol {

namespace {

/// In a world a round is a step of the schedule, so the exchange after round r belongs to step 2 r + 1.
std::uint64_t step_after(Round round) { return 2 * round + 1; }

}  // namespace

/// Like the outer loop: only while no round of the fragment is in flight.
void World::exchange(NodeId m, FragmentId p) {
  auto& process = processes_[m];
  if (!process.exchanges || !process.in_run || m == reducer_) return;
  const auto last = process.member->fragments()[p].round;
  const auto step = step_after(last);
  if (process.contributed[p] > last || process.exchanging[p] >= step) return;
  const auto& view = process.member->view();
  const auto partner = partner_of(view, process.member->self(), p, step);
  if (!partner) return count("exchange without a partner");
  process.exchanging[p] = step;
  const auto chunks = layout_.chunks_of(p);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto bytes = std::make_shared<const Bytes>(
        quant::encoded_size(codecs_.codec, layout_.chunk(k).size), std::byte(k));
    kept_.push_back(bytes);
    exchanged_[bytes.get()] = {process.replica, id_of(view.members[*partner]), view.number, p, step, k};
    process.exchanges->send(k, step, bytes, 1);
  }
  count("exchange begun");
  act(m);
}

/// A round of the fragment is sent.
void World::end_exchange(Process& process, FragmentId p) {
  if (process.exchanges && process.exchanging[p] > 0)
    process.exchanges->end(p, std::exchange(process.exchanging[p], 0));
}

void World::carry_out(NodeId m, const Exchanged& exchanged) {
  auto& process = processes_[m];
  const auto& [p, step, chunks, weight] = exchanged;
  count("exchange complete");
  if (step != process.exchanging[p]) fail("an exchange is complete that is over (I14)");
  if (!completed_.insert({process.replica, process.member->view().number, p, step}).second)
    fail("an exchange is complete twice (I14)");
  auto k = layout_.chunks_of(p).first;
  if (chunks.size() != layout_.chunks_of(p).size()) fail("an exchange without some of its chunks (I14)");
  for (const auto& bytes : chunks) {
    const auto sent = exchanged_.find(bytes.get());
    if (sent == exchanged_.end()) return fail("an exchanged chunk that no member has sent (I14)");
    const auto& of = sent->second;
    if (of.to != process.replica || of.from == process.replica)
      fail("an exchanged chunk of a member that is not its receiver's partner (I14)");
    if (of.view != process.member->view().number || of.fragment != p || of.step != step || of.chunk != k++)
      fail("an exchanged chunk in another place than its sender's (I14)");
  }
}

/// The outbox of a simulated link is empty: what was sent is on its way.
void World::carry_out(NodeId, const DropUnsent&) {}

}  // namespace isthmus::outer_sync::protocol
