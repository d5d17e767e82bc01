#pragma once
#include "transport/state_stream.h"
namespace isthmus::outer_sync::transport {
class Learner {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void on_fragment(transport::FragmentSnapshot) = 0;
    virtual void on_round(FragmentId, protocol::Round, std::vector<protocol::SharedBytes>) = 0;
    virtual void on_failed(const std::string& why) = 0;
  };
  Learner(asio::io_context&, const FragmentLayout&, protocol::CodecPlan, LinkOptions, WireCounters&, Trace&, const BufferPool&, Handler&);
  void start(std::vector<PeerInfo> donors, protocol::ReplicaId self, const Digest& token, StateParts parts);
  void newest(const std::vector<protocol::Round>& rounds);
  [[nodiscard]] bool caught_up() const;
  void stop();
};
using RoundSource = std::function<std::vector<protocol::SharedBytes>(FragmentId, protocol::Round)>;
[[nodiscard]] asio::awaitable<void> serve_learner(ConnectionPtr connection, const FragmentLayout& layout, std::shared_ptr<Pacer> pacer, SnapshotSource source, RoundSource);
}
