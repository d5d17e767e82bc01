#include "isthmus/base/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> lines_of(const std::filesystem::path& file) {
  std::vector<Json> lines;
  std::istringstream in(read_all(file));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(Metrics, ALineIsReadableAsSoonAsItIsWritten) {
  const TemporaryFolder folder;
  Metrics metrics(folder / "metrics.jsonl");
  metrics.write({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(read_all(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
}

TEST(Metrics, NonFiniteNumbersBecomeWordsAtAnyDepth) {
  const TemporaryFolder folder;
  constexpr double inf = std::numeric_limits<double>::infinity();
  Metrics(folder / "m").write({{"a", std::nan("")}, {"b", {{"c", {1.0, inf}}, {"d", -inf}}}});
  EXPECT_EQ(read_all(folder / "m"), "{\"a\":\"nan\",\"b\":{\"c\":[1.0,\"inf\"],\"d\":\"-inf\"}}\n");
}

TEST(Metrics, BytesThatAreNotUtf8AreReplaced) {
  const TemporaryFolder folder;
  Metrics(folder / "m").write({{"host", "a\xff"}});
  EXPECT_EQ(lines_of(folder / "m").at(0)["host"], "a\xef\xbf\xbd");
}

TEST(Metrics, AppendsAndMendsALineThatWasCutOff) {
  const TemporaryFolder folder;
  folder.write("m", "{\"step\":1}\n{\"st");
  Metrics(folder / "m").write({{"step", 2}});
  EXPECT_EQ(read_all(folder / "m"), "{\"step\":1}\n{\"st\n{\"step\":2}\n");
  Metrics(folder / "m").write({{"step", 3}});
  EXPECT_TRUE(read_all(folder / "m").ends_with("{\"step\":2}\n{\"step\":3}\n"));
}

TEST(Metrics, LinesOfManyThreadsStayWhole) {
  const TemporaryFolder folder;
  {
    Metrics metrics(folder / "m");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) metrics.write({{"thread", t}, {"i", i}});
      });
    }
    for (auto& thread : threads) thread.join();
  }
  std::vector<int> next(4, 0);
  for (const auto& line : lines_of(folder / "m")) {
    EXPECT_EQ(line["i"], next[line["thread"].get<std::size_t>()]++) << "a thread's lines are out of order";
  }
  EXPECT_EQ(next, std::vector<int>(4, 200));
}

TEST(Metrics, ADefaultOneRecordsNothing) {
  Metrics metrics;
  EXPECT_NO_THROW(metrics.write({{"step", 1}}));
}

TEST(Metrics, NamesTheFileThatCannotBeOpened) {
  const TemporaryFolder folder;
  try {
    Metrics metrics(folder / "missing/metrics.jsonl");
    FAIL() << "a file in a missing folder was opened";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_NE(std::string(e.what()).find("missing/metrics.jsonl"), std::string::npos) << e.what();
  }
}

TEST(Metrics, SaysThatTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  Metrics metrics("/dev/full");
  EXPECT_THROW(metrics.write({{"step", 1}}), Error);
}

}  // namespace
}  // namespace isthmus
