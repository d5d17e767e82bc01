#include "transport/learner.h"
namespace isthmus::outer_sync::transport {
Learner::Learner(asio::io_context&, const FragmentLayout&, protocol::CodecPlan, LinkOptions, WireCounters&, Trace&, const BufferPool&, Handler&) {}
void Learner::start(std::vector<PeerInfo>, protocol::ReplicaId, const Digest&, StateParts) {}
void Learner::newest(const std::vector<protocol::Round>&) {}
bool Learner::caught_up() const { return false; }
void Learner::stop() {}
asio::awaitable<void> serve_learner(ConnectionPtr connection, const FragmentLayout& layout, std::shared_ptr<Pacer> pacer, SnapshotSource source, RoundSource) {
  return serve_learner(std::move(connection), layout, std::move(pacer), std::move(source));
}
}
