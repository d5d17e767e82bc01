// Members that open no port and have a mailbox use a relay while there is one, and else the mailbox.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "forwarder.h"
#include "mesh_node.h"
#include "temporary_folder.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::IsEmpty;

/// Two members, a and b, that only the mailbox and a relay connect. A relayed path counts as lost soon.
class RelayedOrMailed : public testing::Test {
 protected:
  static LinkOptions impatient() {
    LinkOptions link;
    link.give_up = 8s;
    return link;
  }
  void form_view() {
    auto behind_forwarder = r.info();
    behind_forwarder.address = to_r.address();
    a.set_peers({b.info(), behind_forwarder, s.info()});
    b.set_peers({a.info(), r.info(), s.info()});
    r.set_peers({a.info(), b.info(), s.info()});
    s.set_peers({a.info(), b.info(), r.info()});
  }
  protocol::Relays by(const Node& relay) { return {++number, {{a.info().id, b.info().id, relay.info().id}}}; }
  void tell_all(const protocol::Relays& relays) {
    for (auto* node : {&r, &s, &a, &b}) node->set_relays(relays);
  }
  void expect_traffic(std::uint64_t round) {
    a.send_to(b.info().id, round);
    b.send_to(a.info().id, round);
    EXPECT_TRUE(b.hears(a.info().id, round) && a.hears(b.info().id, round)) << "round " << round;
  }
  /// Waits until both use the relay, or both the mailbox.
  [[nodiscard]] bool both_are_relayed(bool relayed) {
    const auto is_so = [&](Node& node, const Node& other) {
      const auto peers = node.relayed();
      const bool waits = std::ranges::count(peers, other.info().id) > 0;
      return node.sees({other.info()}) && waits == relayed;
    };
    for (const auto end = std::chrono::steady_clock::now() + patience;
         std::chrono::steady_clock::now() < end;) {
      if (is_so(a, b) && is_so(b, a)) return true;
      if (!a.ticks(1)) return false;
    }
    return false;
  }
  void expect_nothing_wrong() {
    for (auto* node : {&a, &b, &r, &s}) EXPECT_THAT(node->wrong(), IsEmpty()) << node->info().name;
  }

  TemporaryFolder folder{memory()};
  std::string store = (folder / "store").string();
  std::uint64_t number = 0;
  Node a{"a", 1, impatient(), NetworkConfig::no_port, store},
      b{"b", 1, impatient(), NetworkConfig::no_port, store};
  Node r{"r"}, s{"s"};
  Forwarder to_r{r.info().address};
};

TEST_F(RelayedOrMailed, RelaysThatOnlyOneEndKnowsLeaveThemTheMailbox) {
  a.set_relays(by(r));
  b.set_relays(by(s));
  form_view();
  ASSERT_TRUE(both_are_relayed(false));
  expect_traffic(1);
  const auto downs = a.downs(b.info().id) + b.downs(a.info().id);
  ASSERT_TRUE(a.ticks(100)) << "a hails b without an answer";
  expect_traffic(2);
  EXPECT_EQ(a.downs(b.info().id) + b.downs(a.info().id), downs) << "the mailbox was given up for nothing";
  tell_all(by(s));
  ASSERT_TRUE(both_are_relayed(true));
  expect_traffic(3);
  expect_nothing_wrong();
}

TEST_F(RelayedOrMailed, TheyGetBackToARelayThatIsBack) {
  form_view();
  tell_all(by(r));
  ASSERT_TRUE(both_are_relayed(true));
  expect_traffic(1);
  to_r.cut_off();
  ASSERT_TRUE(both_are_relayed(false));
  expect_traffic(2);
  to_r.refuse(false);
  ASSERT_TRUE(both_are_relayed(true));
  expect_traffic(3);
  expect_nothing_wrong();
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
