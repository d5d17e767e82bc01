// How the GPUs and cores of a machine are assigned to replicas.

#include "run/process/machine.h"

#include <gmock/gmock.h>

#include <cstdint>

#include "isthmus/base/error.h"

namespace isthmus::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;
using Ranks = std::vector<std::int64_t>;

TEST(Machine, TheProgramIsThisOne) {
  const auto program = own_program();
  EXPECT_TRUE(program.is_absolute());
  EXPECT_EQ(program.filename(), "test_launch");
  EXPECT_TRUE(std::filesystem::equivalent(program, "/proc/self/exe"));
}

TEST(Machine, EveryRankHasAGpuOfItsOwn) {
  EXPECT_THAT(assign_gpus(Names{"0", "1", "2", "3"}, Names{"a", "b"}, Ranks{1, 1}),
              ElementsAre(ElementsAre("0"), ElementsAre("1")));
  EXPECT_THAT(assign_gpus(Names{"0", "1", "2", "3"}, Names{"a", "b"}, Ranks{1, 3}),
              ElementsAre(ElementsAre("0"), ElementsAre("1", "2", "3")));
  EXPECT_THAT(assign_gpus(Names{"GPU-5", "MIG-7"}, Names{"a", "b"}, Ranks{1, 1}),
              ElementsAre(ElementsAre("GPU-5"), ElementsAre("MIG-7")));
}

TEST(Machine, WorkersOfOneRankShareTooFewGpusInTurn) {
  EXPECT_THAT(assign_gpus(Names{"2", "5"}, Names{"a", "b", "c"}, Ranks{1, 1, 1}),
              ElementsAre(ElementsAre("2"), ElementsAre("5"), ElementsAre("2")));
  EXPECT_THAT(assign_gpus(Names{}, Names{"a", "b"}, Ranks{1, 4}), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(Machine, RanksCannotShareAGpu) {
  try {
    static_cast<void>(assign_gpus(Names{"0", "1", "2"}, Names{"eu-1", "eu-2"}, Ranks{2, 2}));
    FAIL() << "expected an Error for four ranks on three GPUs";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(
        error.what(),
        HasSubstr(
            "replica.ranks of eu-1 puts 2 ranks on its machine, which has 3 GPUs for the 4 ranks of its 2"));
  }
}

TEST(Machine, AListOfGpusEndsWhereCudaEndsIt) {
  EXPECT_THAT(listed_gpus("3, 1"), ElementsAre("3", "1"));
  EXPECT_THAT(listed_gpus("0,-1,2"), ElementsAre("0"));
  EXPECT_THAT(listed_gpus(""), IsEmpty());
  EXPECT_THAT(listed_gpus("1,,2"), ElementsAre("1"));
}

TEST(Machine, GpusAreHandedOverByCudasVariable) {
  EXPECT_THAT(gpu_environment(Names{"2", "3"}), ElementsAre("CUDA_VISIBLE_DEVICES=2,3"));
  EXPECT_THAT(gpu_environment(Names{}), IsEmpty());
}

TEST(Machine, CoresAreSharedAndNobodyHasNone) {
  EXPECT_EQ(threads_each(2, 64), 32);
  EXPECT_EQ(threads_each(3, 8), 2);
  EXPECT_EQ(threads_each(8, 2), 1);
}

}  // namespace
}  // namespace isthmus::app
