#include "isthmus/base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace isthmus {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

ProgressState usual() {
  ProgressState state;
  state.step = 120;
  state.steps = 400;
  state.loss = 1.234;
  state.tokens_per_second = 21'300;
  state.utilization = 0.94;
  state.wire_mbit_per_second = 3.1;
  state.eta_seconds = 83;
  return state;
}

std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Captures the output to a stream.
class Capture {
 public:
  Capture() : file_(open_memstream(&data_, &size_)) {}
  ~Capture() {
    std::fclose(file_);
    std::free(data_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  [[nodiscard]] std::FILE* file() const { return file_; }
  [[nodiscard]] std::string text() const {
    std::fflush(file_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

TEST(Progress, ReadsWell) {
  EXPECT_EQ(format_progress(usual()),
            "[####----------] 120/400 loss 1.234 21.3k tok/s util 94% 3.1 Mbit/s ETA 1:23");
}

TEST(Progress, TheBarGivesWayToLongNumbersAndANote) {
  auto state = usual();
  state.step = 120'000;
  state.steps = 400'000;
  state.eta_seconds = 3 * 3600;
  state.note = "2/2 live";
  const auto line = format_progress(state);
  EXPECT_THAT(line,
              EndsWith("120000/400000 loss 1.234 21.3k tok/s util 94% 3.1 Mbit/s ETA 3:00:00 2/2 live"));
  EXPECT_LE(columns_of(line), 79U) << line;
}

TEST(Progress, TheBarGoesFromEmptyToFull) {
  auto state = usual();
  state.step = 0;
  EXPECT_THAT(format_progress(state), StartsWith("[--------------] 0/400"));
  state.step = 400;
  EXPECT_THAT(format_progress(state), StartsWith("[##############] 400/400"));
  state.step = 500;
  EXPECT_THAT(format_progress(state), StartsWith("[##############] 500/400"));
  state.steps = 0;
  EXPECT_THAT(format_progress(state), StartsWith("500 loss")) << "without a known end there must be no bar";
}

RC_GTEST_PROP(Progress, FitsTheTerminalWhateverTheNumbers, ()) {
  const auto any_double = [] {
    constexpr auto most = std::numeric_limits<double>::max();
    constexpr auto inf = std::numeric_limits<double>::infinity();
    const std::vector<double> extremes = {
        0,      -0.0,   most, -most, inf,    -inf, std::numeric_limits<double>::quiet_NaN(),
        5e-324, 999.96, 9999, -1e9,  0.99999};
    return *rc::gen::oneOf(rc::gen::elementOf(extremes), rc::gen::arbitrary<double>());
  };
  const auto any_count = [] {
    return *rc::gen::oneOf(rc::gen::arbitrary<std::uint64_t>(),
                           rc::gen::just(std::numeric_limits<std::uint64_t>::max()));
  };
  ProgressState state;
  state.step = any_count();
  state.steps = any_count();
  state.loss = any_double();
  state.tokens_per_second = any_double();
  state.utilization = any_double();
  state.wire_mbit_per_second = any_double();
  state.eta_seconds = any_double();
  state.note = *rc::gen::arbitrary<std::string>();
  const auto line = format_progress(state);
  RC_ASSERT(columns_of(line) <= 79U);
  RC_ASSERT(std::none_of(line.begin(), line.end(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }));
}

TEST(Progress, ANoteIsCutBetweenCharactersAndCannotMoveTheCursor) {
  auto state = usual();
  state.steps = 0;
  state.note = "\x1b[2J";
  for (int i = 0; i < 100; ++i) state.note += "\u00e9";
  const auto line = format_progress(state);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(columns_of(line), 79U);
  EXPECT_THAT(line, EndsWith("\u00e9"));
}

TEST(Progress, ATerminalLineIsRedrawnInPlace) {
  Capture out;
  Progress progress(out.file(), true);
  auto state = usual();
  progress.update(state);
  state.step = 400;
  progress.update(state);
  progress.finish();
  progress.finish();
  const auto text = out.text();
  EXPECT_THAT(text, StartsWith("\r\x1b[K[####---"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << "finish ends the line once";
  EXPECT_THAT(text, HasSubstr("400/400")) << "the last state must be drawn, even if it comes early";
  EXPECT_THAT(text, EndsWith("\n"));
}

TEST(Progress, AMessageStandsAboveTheBar) {
  Capture out;
  Progress progress(out.file(), true);
  progress.update(usual());
  progress.message("lyon joined");
  EXPECT_THAT(out.text(), EndsWith("\r\x1b[Klyon joined\n" + format_progress(usual())));
}

TEST(Progress, PlainOutputHasTheFirstAndTheLastLine) {
  Capture out;
  {
    Progress progress(out.file(), false, std::chrono::hours(1));
    auto state = usual();
    for (state.step = 1; state.step <= 400; ++state.step) progress.update(state);
    progress.message("done");
  }
  const auto text = out.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_THAT(text, HasSubstr(" 1/400"));
  EXPECT_THAT(text, HasSubstr(" 400/400"));
}

TEST(Progress, PlainLinesAreNotRepeated) {
  Capture out;
  {
    Progress progress(out.file(), false, std::chrono::milliseconds(0));
    progress.update(usual());
  }
  EXPECT_EQ(out.text(), format_progress(usual()) + "\n");
}

TEST(Progress, NothingIsPrintedWithoutAnUpdate) {
  Capture out;
  { Progress progress(out.file(), true); }
  EXPECT_EQ(out.text(), "");
}

TEST(Progress, BarsStandBeforeAnyText) {
  EXPECT_EQ(format_bar(0.5, "half"), "[#######-------] half");
  EXPECT_EQ(format_bar(2, "more than all"), "[##############] more than all");
  EXPECT_EQ(format_bar(-1, "unknown length"), "unknown length");
  const std::string longest(79, 'x');
  EXPECT_EQ(format_bar(0.5, longest + "y"), longest);
  EXPECT_EQ(format_bar(0.5, std::string(70, 'x')).size(), 79U);
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(65536), "65.5k");
  EXPECT_EQ(format_count(1.2e9), "1.2G");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.0 kB");
  EXPECT_EQ(format_bytes(34'100), "34.1 kB");
  EXPECT_EQ(format_bytes(999'960), "1.0 MB") << "rounding must not print 1000.0 kB";
  EXPECT_EQ(format_bytes(1.2e9), "1.2 GB");
  EXPECT_EQ(format_bytes(std::numeric_limits<double>::infinity()), "? B");
}

TEST(Format, Rate) {
  EXPECT_EQ(format_rate(0), "0 bit/s");
  EXPECT_EQ(format_rate(250'000), "250 kbit/s");
  EXPECT_EQ(format_rate(8e6), "8 Mbit/s");
  EXPECT_EQ(format_rate(999.6e6), "1 Gbit/s") << "rounding must not print 1e+03 Mbit/s";
  EXPECT_EQ(format_rate(1.98e9), "1.98 Gbit/s");
  EXPECT_EQ(format_rate(std::numeric_limits<double>::quiet_NaN()), "? bit/s");
}

TEST(Format, Duration) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(123), "2:03");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(360'000), "100:00:00");
  EXPECT_EQ(format_duration(1e300), ">9999h");
  EXPECT_EQ(format_duration(-1), "?");
}

}  // namespace
}  // namespace isthmus
