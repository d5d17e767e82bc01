// Deliberate faults, on processes that play a run's workers.

#include "compare/arms/faults.h"

#include <unistd.h>

#include <csignal>
#include <fstream>

#include "command.h"
#include "recorded.h"

namespace isthmus {
namespace {

using app::parse_fault;
using app::process_of;
using app::Saboteur;
using ::testing::SizeIs;

/// State of a process; 'T' if it is suspended.
char state_of(pid_t pid) {
  const auto stat = read_all("/proc/" + std::to_string(pid) + "/stat");
  const auto end = stat.rfind(") ");
  return end == std::string::npos ? '-' : stat[end + 2];
}

/// Runs `bash -c CODE worker --name NAME`; the words after the code only name the process.
Command worker(const TemporaryFolder& folder, const std::string& name) {
  return {{"/bin/bash", "-c", "while :; do sleep 1; done", "worker", "--name", name},
          folder / (name + ".log")};
}

TEST(Faults, AreReadAsTheyAreWritten) {
  const auto fault = parse_fault("suspend eu-1 at step 300 for 1500ms", "here");
  EXPECT_EQ(fault.what, app::Fault::What::suspend);
  EXPECT_EQ(fault.worker, "eu-1");
  EXPECT_EQ(fault.step, 300U);
  EXPECT_EQ(fault.time.seconds, 1.5);
  EXPECT_EQ(parse_fault("leave eu-1 at step 3", "here").what, app::Fault::What::leave);
  for (const auto* bad :
       {"", "kill", "kill eu-1 at 3", "kill eu-1 at step -3", "kill eu-1 at step 3 for 1s",
        "suspend eu-1 at step 3", "suspend eu-1 at step 3 for ever", "kill eu-1 at step 9999999999999"})
    EXPECT_FALSE(error_of([&] { static_cast<void>(parse_fault(bad, "here")); }).empty()) << bad;
}

TEST(Faults, StrikeTheChildOfThatNameAtItsStep) {
  const TemporaryFolder folder;
  auto eu = worker(folder, "eu-1"), us = worker(folder, "us-1");
  ASSERT_TRUE(eventually([&] { return process_of("eu-1", getpid()) == eu.pid(); }));
  ASSERT_TRUE(eventually([&] { return process_of("us-1", getpid()) == us.pid(); }));
  EXPECT_EQ(process_of("eu", getpid()), std::nullopt);
  EXPECT_EQ(process_of("eu-1", us.pid()), std::nullopt) << "a child of another process";

  Saboteur saboteur(
      {parse_fault("suspend us-1 at step 5 for 200ms", ""), parse_fault("kill eu-1 at step 10", "")});
  EXPECT_THAT(saboteur.strike(4, getpid()), SizeIs(0));
  EXPECT_THAT(saboteur.strike(5, getpid()), SizeIs(1));
  EXPECT_TRUE(eventually([&] { return state_of(us.pid()) == 'T'; }));
  EXPECT_TRUE(eventually([&] {
    EXPECT_THAT(saboteur.strike(6, getpid()), SizeIs(0));
    return state_of(us.pid()) != 'T';
  }));
  EXPECT_THAT(saboteur.left(), SizeIs(1));
  EXPECT_THAT(saboteur.strike(12, getpid()), SizeIs(1));
  EXPECT_EQ(eu.wait().status, 128 + SIGKILL);
  EXPECT_THAT(saboteur.left(), SizeIs(0));
  EXPECT_TRUE(us.running());
}

}  // namespace
}  // namespace isthmus
