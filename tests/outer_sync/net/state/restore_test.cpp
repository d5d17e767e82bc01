// A replica restores a checkpoint for the first view and loses its connection meanwhile. The test plays the
// coordinator.

#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <optional>

#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class Restoring : public testing::Test {
 protected:
  /// The coordinator asks the replica to restore the checkpoint of this step, and the connection ends.
  void begin_to_restore(std::uint64_t step) {
    auto joined = std::async(std::launch::async, [&] { return node_.join(run_.hello(0)); });
    RawPeer coordinator(listener_);
    coordinator.receive_control<protocol::Hello>();
    coordinator.say(protocol::Seal{5, step});
    const auto admission = joined.get();
    EXPECT_EQ(admission.how, Admission::How::resumes);
    EXPECT_EQ(admission.step, step);
  }
  void come_back() {
    coordinator_.emplace(listener_);
    coordinator_->receive_control<protocol::Hello>();
  }
  /// Reports on another thread that the checkpoint is restored.
  std::future<void> activate() {
    return std::async(std::launch::async, [&] {
      node_.activate({.fragments = std::vector<protocol::FragmentState>(run_.layout().fragment_count())});
    });
  }
  void let_go_if_it_waits(const std::future<void>& activated) {
    if (activated.wait_for(20s) == std::future_status::ready) return;
    ADD_FAILURE() << "it waits for a view that does not come";
    coordinator_->say(protocol::Abort{"the test is over"});
  }

  void end(std::future<void>& activated) {
    coordinator_->say(protocol::Abort{"the test is over"});
    EXPECT_THROW(activated.get(), Error);
  }

  NetworkConfig network() const {
    auto network = run_.network(0);
    network.coordinator = listener_.address();
    return network;
  }

  RawListener listener_;
  NetworkRun run_{NetworkRun::Options()};  // for the settings of a member
  Trace trace_;
  MemberNode node_{network(), run_.layout(), run_.codecs(), {}, trace_};
  std::optional<RawPeer> coordinator_;
};

TEST_F(Restoring, ItAnswersTheSealThatComesAfterwards) {
  begin_to_restore(8);
  come_back();
  auto activated = activate();
  coordinator_->say(protocol::Seal{6, 8});
  EXPECT_EQ(coordinator_->receive_control<protocol::Sealed>().view, 6U);
  end(activated);
}

/// The coordinator was restarted and continues from the view number that it stored last.
TEST_F(Restoring, ItAnswersTheSealOfALowerView) {
  begin_to_restore(8);
  come_back();
  coordinator_->say(protocol::Seal{9, 8});
  auto activated = activate();
  EXPECT_EQ(coordinator_->receive_control<protocol::Sealed>().view, 9U);
  coordinator_.reset();
  come_back();
  coordinator_->say(protocol::Seal{6, 8});
  EXPECT_EQ(coordinator_->receive_control<protocol::Sealed>().view, 6U)
      << "otherwise all would wait for ever";
  end(activated);
}

TEST_F(Restoring, ASecondCheckpointIsRefused) {
  begin_to_restore(8);
  come_back();
  coordinator_->say(protocol::Seal{6, 4});
  auto activated = activate();
  let_go_if_it_waits(activated);
  try {
    activated.get();
    ADD_FAILURE() << "it would begin at step 8, and the others at step 4";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("begins at another checkpoint now; start again, with --resume"));
  }
}

TEST_F(Restoring, OneThatIsLetInMeanwhileTakesTheStateFromTheOthers) {
  begin_to_restore(8);
  come_back();
  RawListener donor;
  protocol::Admitted admitted;
  admitted.token.bytes.fill(7);
  admitted.donors.push_back({"r1", 2, donor.address()});
  coordinator_->say(admitted);
  const RawPeer asked(donor);
  auto activated = activate();
  let_go_if_it_waits(activated);
  EXPECT_THROW(activated.get(), Evicted);
}

}  // namespace
}  // namespace isthmus::outer_sync
