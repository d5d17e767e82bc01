// Certificates that are revoked, replaced or unreadable in mid-run.

#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "forwarder.h"
#include "isthmus/base/archive.h"
#include "isthmus/base/text_file.h"
#include "raw_tls.h"
#include "tls_support.h"

namespace isthmus::outer_sync {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A run of two with the information that a test needs to connect as a third.
struct Visited {
  explicit Visited(NetworkRun& run) : run_(run) {
    run.before_step = [this](std::size_t m, MemberNode& node, std::uint64_t step) {
      if (m != 0) return;
      if (step == 8) begun_.set_value({*node.status().view, node.advertised()});
      if (over && run_.last_step == for_ever) run_.last_step = step + 20;
    };
  }
  /// The view of r0 and r0's address.
  std::pair<protocol::View, std::string> begun() { return begun_.get_future().get(); }
  std::atomic<bool> over = false;

 private:
  NetworkRun& run_;
  std::promise<std::pair<protocol::View, std::string>> begun_;
};

TEST_F(Tls, WhoIsRevokedIsCutOffInMidRun) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = options(3);
  lively.pace = 0.02;
  lively.steps = 1'000'000;
  lively.detect_timeout = 1;
  lively.join_timeout = 2;
  lively.closing.least = 2;
  NetworkRun run(lively);
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 8) made.revoke("r2");
    if (m == 0 && node.status().view->members.size() == 2 && run.last_step == lively.steps)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("r2 is lost"));
}

TEST_F(Tls, RevocationReachesWhoIsGivenTheState) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = NetworkRun::Options::lively(2);
  lively.certs = of("");
  NetworkRun run(lively);
  Visited visited(run);
  testing::internal::CaptureStderr();
  run.start();
  const auto [view, donor] = visited.begun();
  RawTls fetcher(donor, of("r2"));
  const transport::PeerHello hello{run.stored().token, 77, protocol::id_of(view.members.at(0)), 0,
                                   transport::PeerRole::fetcher};
  fetcher.say(transport::Frame{transport::FrameType::peer_hello, to_bytes(hello), nullptr});
  EXPECT_TRUE(fetcher.receive()) << "the fetcher was not accepted";
  made.revoke("r2");
  EXPECT_TRUE(fetcher.is_dropped());
  visited.over = true;
  run.expect_one_end({0, 1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("dropped a fetcher at .*: its certificate has been revoked"));
}

/// Otherwise observers could keep out members that are to train.
TEST_F(Tls, OneCertificateIsGivenTheStateTwiceAtATime) {
  const auto made = authority({"coordinator", "r0", "r1", "r2", "r3"});
  auto lively = NetworkRun::Options::lively(2);
  lively.certs = of("");
  NetworkRun run(lively);
  Visited visited(run);
  testing::internal::CaptureStderr();
  run.start();
  const auto [view, donor] = visited.begun();
  std::vector<std::unique_ptr<RawTls>> fetchers;
  const auto learn = [&, donor = donor, to = protocol::id_of(view.members.at(0))](const std::string& name) {
    auto& fetcher = *fetchers.emplace_back(std::make_unique<RawTls>(donor, of(name)));
    const transport::PeerHello hello{run.stored().token, 77 + fetchers.size(), to, 0,
                                     transport::PeerRole::fetcher};
    fetcher.say(transport::Frame{transport::FrameType::peer_hello, to_bytes(hello), nullptr});
    return fetcher.receive();
  };
  EXPECT_TRUE(learn("r2"));
  EXPECT_TRUE(learn("r2")) << "it has dialled again, and the old connection may be dead";
  EXPECT_FALSE(learn("r2"));
  EXPECT_TRUE(learn("r3"));
  fetchers.clear();
  visited.over = true;
  run.expect_one_end({0, 1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("no place: r2 copies the state here already"));
}

TEST_F(Tls, AHandshakeThatEndsAfterTheRevocationIsNoGood) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = NetworkRun::Options::lively(2);
  lively.certs = of("");
  NetworkRun run(lively);
  Visited visited(run);
  run.start();
  (void)visited.begun();
  Forwarder far(run.coordinator_address(), std::chrono::seconds(1));
  auto coming =
      std::async(std::launch::async, [&] { return std::make_unique<RawTls>(far.address(), of("r2")); });
  while (far.connections() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  // The connection was accepted with the current certificates; the client's certificate arrives two seconds
  // later.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  made.revoke("r2");
  run.wait_until_said("reloaded the certificates");
  const auto late = coming.get();
  late->say(transport::control_frame(run.hello(2)));
  EXPECT_FALSE(late->receive()) << "it was accepted";
  visited.over = true;
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("its certificate has been revoked"));
}

/// A symbolic link to itself plays a failing file system: not even root can read through it.
TEST_F(Tls, CertificatesThatCannotBeReadForAWhileEndNothing) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = options(3);
  lively.pace = 0.02;
  lively.steps = 1'000'000;
  lively.detect_timeout = 1;
  lively.closing.least = 2;
  (void)made.issue("r9", 10);
  made.revoke("r9");  // so that there is a list that can disappear
  NetworkRun run(lively);
  const auto looped = {of("coordinator"), of("r0")};
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0) return;
    if (step == 8) {
      for (const auto& folder : looped) {
        fs::remove(folder / "ca.crl");
        fs::create_symlink("ca.crl", folder / "ca.crl");
      }
      fs::rename(of("r1"), of("r1 elsewhere"));
      std::ofstream(of("r1")) << "no folder";
    }
    if (step == 120) {  // two seconds later, which is longer than any silence limit
      for (const auto& folder : looped) fs::remove(folder / "ca.crl");
      fs::remove(of("r1"));
      fs::rename(of("r1 elsewhere"), of("r1"));
      made.revoke("r2");
    }
    if (run.last_step == lively.steps && (node.status().view->members.size() == 2 || step == 600))
      run.last_step = step + 20;
  };
  testing::internal::CaptureStderr();
  run.start();
  run.expect_one_end({0, 1});
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(run.said(), HasSubstr("keeps its old certificates: cannot look for "));
  EXPECT_THAT(said, HasSubstr("r1: keeps its old certificates: "));
  EXPECT_THAT(run.said(), testing::Not(testing::ContainsRegex("r[01] is lost")));
  EXPECT_THAT(run.said(), HasSubstr("r2 is lost"));
}

TEST_F(Tls, ANewCertificateIsTakenUpInMidRun) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = options(3);
  lively.pace = 0.02;
  lively.steps = 1'000'000;
  lively.detect_timeout = 5;
  lively.closing.least = 2;
  NetworkRun run(lively);
  const auto before = read_text(of("r2") / "cert.pem");
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0) return;
    if (step == 8) {  // for example, because its key leaked
      made.revoke("r2");
      (void)made.issue("r2", 10);
    }
    const auto view = *node.status().view;  // the second view is without r2
    if (view.number >= 3 && view.members.size() == 3 && run.last_step == lively.steps)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_NE(read_text(of("r2") / "cert.pem"), before);
}

}  // namespace
}  // namespace isthmus::outer_sync
