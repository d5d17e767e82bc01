// summary.json, from the members' final reports.

#include "run/metrics/summary.h"

#include <gtest/gtest.h>

namespace isthmus::app {
namespace {

MemberReport report(const std::string& name, std::uint64_t first_step, std::uint64_t payload) {
  MemberReport out;
  out.name = name;
  out.parameters = 1000;
  out.first_step = first_step;
  out.last_step = 100;
  out.payload_bytes = payload;
  return out;
}

TEST(Summary, BitsAreThoseOfWorkersThatSentFromTheFirstStepOn) {
  Experiment experiment;
  RunReport run;
  run.members = {report("eu", 0, 50'000), report("us", 0, 25'000)};
  EXPECT_DOUBLE_EQ(summary_json(experiment, run)["bits_per_parameter_per_step"], 3);
  run.members.push_back(report("restarted", 90, 2'000));
  EXPECT_DOUBLE_EQ(summary_json(experiment, run)["bits_per_parameter_per_step"], 3);
}

}  // namespace
}  // namespace isthmus::app
