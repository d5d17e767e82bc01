// Sites that cannot be reached or cannot start: launch names the site and the reason, and starts nothing.

#include <gmock/gmock.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>

#include "reserved_port.h"
#include "sshd.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* experiment = R"(
run: {name: refused, out: runs}
device: cpu
data: {path: none.txt}
sites:
  eu: {SITE}
)";

/// A full disk of 4 kB.
class FullDisk {
 public:
  explicit FullDisk(std::filesystem::path at) : at_(std::move(at)) {
    std::filesystem::create_directories(at_);
    is_there_ = mount("tmpfs", at_.c_str(), "tmpfs", 0, "size=4k") == 0;
    if (is_there_) std::ofstream(at_ / "fill") << std::string(4096, 'x');
  }
  ~FullDisk() {
    if (is_there_) umount2(at_.c_str(), MNT_DETACH);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  [[nodiscard]] bool is_there() const { return is_there_; }

 private:
  std::filesystem::path at_;
  bool is_there_;
};

class RefusedSites : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    sshd_ = shared_sshd(why);
    if (sshd_ == nullptr) GTEST_SKIP() << why;
  }
  void TearDown() override { EXPECT_THAT(processes_with(folder_.path().string()), IsEmpty()); }

  [[nodiscard]] std::filesystem::path there() const { return folder_ / "there"; }
  Result launch(const std::string& site, const std::vector<std::string>& settings = {}) {
    std::string text = experiment;
    text.replace(text.find("SITE"), 4, site);
    std::vector<std::string> words = {coordinator_program, "launch",
                                      folder_.write("run.yaml", text).string()};
    for (const auto& setting : settings) words.insert(words.end(), {"--set", setting});
    return run_command(std::move(words), folder_ / "launch.log");
  }
  [[nodiscard]] std::string good_site(const std::string& program = coordinator_program,
                                      const std::string& more = {}) const {
    return sshd_->launcher(program, there(), more);
  }
  void expect_refused(const Result& result, int status, const std::string& words) {
    EXPECT_EQ(result.status, status) << result.report();
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("nothing was started: eu (" + sshd_->user_at_host()), HasSubstr(words)));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"))
        << "a launch that starts nothing must leave no files";
  }

  TemporaryFolder folder_;
  const Sshd* sshd_ = nullptr;
};

TEST_F(RefusedSites, ANameThatDoesNotResolve) {
  const auto result =
      launch(good_site(), {"sites.eu.launch.ssh=me@nowhere.invalid",
                           "network.coordinator=\"third.example:7000\"", "network.insecure=true"});
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("nothing was started: eu (me@nowhere.invalid): "),
                                   HasSubstr("Could not resolve hostname nowhere.invalid")));
}

TEST_F(RefusedSites, AMachineThatRefuses) {
  const ReservedPort unused;
  expect_refused(launch(good_site(), {"sites.eu.launch.port=" + std::to_string(unused.number())}), 4,
                 "Connection refused");
}

TEST_F(RefusedSites, AHostKeyThatHasChanged) {
  expect_refused(
      launch(good_site(), {"sites.eu.launch.options=[\"UserKnownHostsFile=" +
                           sshd_->wrong_known_hosts().string() + "\", GlobalKnownHostsFile=/dev/null]"}),
      4, "Host key verification failed");
}

TEST_F(RefusedSites, AnOptionThatWouldTrustAnybody) {
  expect_refused(launch(good_site(), {"sites.eu.launch.options=[StrictHostKeyChecking=no, "
                                      "UserKnownHostsFile=/dev/null, GlobalKnownHostsFile=/dev/null]"}),
                 4, "Host key verification failed");
}

TEST_F(RefusedSites, AKeyThatIsNotLetIn) {
  expect_refused(launch(good_site(), {"sites.eu.launch.identity=/dev/null"}), 4, "Permission denied");
}

TEST_F(RefusedSites, AProgramThatIsNotThere) {
  expect_refused(launch(good_site("/opt/none/isthmus")), 3, "there is no program /opt/none/isthmus");
}

TEST_F(RefusedSites, AProgramThatIsAnother) {
  expect_refused(launch(good_site("/bin/false")), 3, "ended with status 1");
}

TEST_F(RefusedSites, ASetUpLineThatFails) {
  expect_refused(launch(good_site(coordinator_program, "setup: [\"true\", \"test -d /none\"]")), 3,
                 "this set-up line failed: test -d /none");
}

TEST_F(RefusedSites, ADiskThatIsFull) {
  const FullDisk disk(there());
  if (!disk.is_there()) GTEST_SKIP() << "mounting a tmpfs needs root";
  expect_refused(launch(good_site()), 3, "No space left on device");
}

TEST_F(RefusedSites, AFolderThatCannotBeMade) {
  expect_refused(launch(good_site(), {"sites.eu.launch.folder=/proc/none"}), 3, "/proc/none");
}

TEST_F(RefusedSites, ACertificateThatIsNotHere) {
  expect_refused(launch(good_site(), {"network.certs=certs/refused"}), 3, "cannot read the certificate");
}

TEST_F(RefusedSites, HalfOfThemAreNamedAndTheOthersEnd) {
  const ReservedPort unused;
  const auto result =
      launch(good_site() + "}\n  us: {" + sshd_->launcher("/opt/none", folder_ / "us") +
             "}\n  ap: {launch: {ssh: me@127.0.0.1, port: " + std::to_string(unused.number()) +
             "}}\n  sa: {" + sshd_->launcher(coordinator_program, folder_ / "sa"));
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("us (" + sshd_->user_at_host() + "): there is no program /opt/none"),
                    HasSubstr("ap (me@127.0.0.1): ")));
  const auto verdict = result.output.substr(result.output.find("nothing was started"));
  EXPECT_THAT(verdict, Not(HasSubstr("eu (")));
  EXPECT_NE(result.status, 0);
}

TEST_F(RefusedSites, ACoordinatorThatTheyCouldNotReach) {
  const auto result = launch(good_site(), {"sites.eu.launch.ssh=me@eu.example"});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output,
              HasSubstr("network.coordinator is '127.0.0.1:0', and site eu is on another machine "
                        "(me@eu.example); expected a HOST:PORT at which"));
}

TEST_F(RefusedSites, AWorkerThatFailsAtItsBeginEndsTheRunWithItsStatus) {
  const auto result = launch(good_site());  // this binary has no trainer
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("eu | isthmus: this binary cannot train"),
                                   HasSubstr("eu failed with exit status 2")));
  EXPECT_TRUE(std::filesystem::exists(there() / "refused/eu/worker.log"));
}

TEST_F(RefusedSites, ADetachedLaunchThatFailsSaysSoHere) {
  std::string text = experiment;
  text.replace(text.find("SITE"), 4, good_site("/opt/none"));
  const auto result =
      run_command({coordinator_program, "launch", "--detach", folder_.write("run.yaml", text).string()},
                  folder_ / "launch.log");
  EXPECT_EQ(result.status, 3) << result.report();
  EXPECT_THAT(result.output, HasSubstr("there is no program /opt/none"));
}

}  // namespace
}  // namespace isthmus
