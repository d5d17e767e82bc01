// report.html: foreign text stays text, and a browser draws the report's figures.

#include "compare/report/page.h"

#include <algorithm>

#include "browser.h"
#include "compare/report/columns.h"
#include "recorded.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* hostile = R"(</script><script>alert(1)</script><img src=x onerror=alert(2)>"' &)";

class Page : public ::testing::Test {
 protected:
  Page() {
    folder.write("theirs.csv", "tokens,loss,seconds,bytes\n0,3,0,0\n5120,1.9,3,500\n10240,1.3,6,1000\n");
    auto text = std::string(R"(
base: base.yaml
seeds: [1, 2]
arms:
  data_parallel: {outer.method: data_parallel}
  four_bits: {inner.lr: 0.5, about: 'HOSTILE', data.tokenizer: 'HOSTILE'}
  theirs: {curve: theirs.csv}
gates:
  parity: {arm: four_bits, bits: 0.44}
)");
    for (std::size_t at = 0; (at = text.find("HOSTILE")) != text.npos;) text.replace(at, 7, yaml_quoted());
    const auto comparison = folder.comparison(text);
    folder.finish_arm(comparison, 0, {1.0, 1.1}, 1'000'000);
    folder.finish_arm(comparison, 1, {1.01, 1.12}, 10'000);
    report = app::report_json(comparison, records_of(comparison));
    page = app::report_page(report);
  }
  static std::string yaml_quoted() {
    std::string text = hostile;
    for (std::size_t at = 0; (at = text.find('\'', at)) != text.npos; at += 2) text.insert(at, 1, '\'');
    return text;
  }

  Recorded folder;
  nlohmann::ordered_json report;
  std::string page;
};

/// Number of times a tag begins.
std::ptrdiff_t count(const std::string& text, const std::string& what) {
  std::ptrdiff_t n = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST_F(Page, WhatStrangersWroteStaysText) {
  ASSERT_EQ(report["arms"][1]["about"], hostile);
  EXPECT_EQ(count(page, "<script>alert"), 0);
  EXPECT_EQ(count(page, "<img"), 0);
  EXPECT_EQ(count(page, "</script>"), 3) << "the report, Chart.js, and the page's own script";
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(1)"));
  EXPECT_EQ(app::html_text("a<b>&\"'\x01"), "a&lt;b&gt;&amp;&quot;&#39; ");
}

TEST_F(Page, LoadsNothingAndKeepsTheLicence) {
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("Chart.js v3"));
  EXPECT_THAT(page, HasSubstr("Released under the MIT License"));
  const auto own = page.substr(0, page.find("<script type"));
  for (const auto* loads : {" src=\"", " href=\"", "@import", "url("})
    EXPECT_THAT(own, Not(HasSubstr(loads)));
}

/// Inspects the finished page from inside.
constexpr const char* probe = R"(
addEventListener("load", () => {
  const seen = {charts: []};
  for (const chart of Object.values(Chart.instances)) {
    const canvas = chart.canvas;
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let drawn = 0;
    for (let i = 3; i < pixels.length; i += 4) if (pixels[i] > 0) ++drawn;
    seen.charts.push({id: canvas.id, drawn, sets: chart.data.datasets.map((set) =>
      ({role: set.role, label: set.label, data: set.data}))});
  }
  seen.verdicts = [...document.querySelectorAll(".verdict")].map((e) => e.textContent);
  seen.abouts = [...document.querySelectorAll(".verdicts small")].map((e) => e.textContent);
  seen.rows = [...document.querySelectorAll("#arms tbody tr")].map((r) => [...r.children].map((c) => c.textContent));
  seen.wide = document.documentElement.scrollWidth > innerWidth;
  report(seen);
});)";

/// The probe's report in a window of this width.
nlohmann::json seen_at(const TemporaryFolder& folder, std::string page, int width) {
  page.insert(page.rfind("</body>"), "<script>" + std::string(report_function) + probe + "</script>");
  return seen_in_browser(folder, "file://" + folder.write("page.html", page).string(), width);
}

TEST_F(Page, ABrowserDrawsTheFiguresOfTheReport) {
  const TemporaryFolder work;
  const auto seen = seen_at(work, page, 1280);
  ASSERT_TRUE(seen.is_object());
  ASSERT_EQ(seen["charts"].size(), 4U);
  for (const auto& chart : seen["charts"]) EXPECT_GT(chart["drawn"], 1000) << chart["id"] << " is empty";
  const auto points_of = [&](const char* id, const std::string& label) {
    for (const auto& chart : seen["charts"])
      for (const auto& set : chart["sets"])
        if (chart["id"] == id && set["label"] == label) return set["data"];
    ADD_FAILURE() << "no curve of " << label << " in " << id;
    return nlohmann::json();
  };
  for (const auto& arm : report["arms"]) {
    const auto points = points_of("by-tokens", arm["name"]);
    ASSERT_EQ(points.size(), arm["band"].size());
    for (std::size_t i = 0; i < points.size(); ++i) {
      EXPECT_EQ(points[i]["x"], arm["band"][i]["tokens"]);
      EXPECT_EQ(points[i]["y"], arm["band"][i]["loss"]);
    }
    EXPECT_EQ(points_of("by-bytes", arm["name"]).back()["x"], arm["bytes"]);
    EXPECT_EQ(points_of("by-seconds", arm["name"]).back()["x"], arm["seconds"]);
  }
  const auto means = points_of("by-arm", "mean"), intervals = points_of("by-arm", "interval");
  const auto& difference = report["arms"][1]["difference"];
  EXPECT_NEAR(means[0], 100 * difference["relative"].get<double>(), 1e-9);
  EXPECT_NEAR(intervals[0][1],
              100 * (difference["relative"].get<double>() + difference["noise"].get<double>()), 1e-9);
  for (std::size_t i = 0; i < report["arms"].size(); ++i) {
    EXPECT_EQ(seen["verdicts"][i], report["arms"][i]["verdict"]);
    EXPECT_EQ(seen["rows"][i][0], report["arms"][i]["name"]);
    const auto columns = app::columns();
    ASSERT_EQ(seen["rows"][i].size(), 1 + columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c)
      EXPECT_EQ(seen["rows"][i][1 + c], columns[c].cell(report["arms"][i])) << columns[c].key;
  }
  EXPECT_EQ(seen["abouts"][0], hostile);
  EXPECT_FALSE(seen["wide"]) << "the page itself must not scroll sideways";
}

TEST_F(Page, EveryoneCanUseIt) {
  const TemporaryFolder work;
  expect_usable_by_everyone(work, "file://" + work.write("page.html", page).string());
}

TEST_F(Page, ChartsAreDescribedByTheirFinalFigures) {
  EXPECT_THAT(page, HasSubstr("At the end: data_parallel 1.0500 after "));
  EXPECT_THAT(page, HasSubstr("theirs 1.3000 after 10.2k tokens."));
  EXPECT_THAT(page, HasSubstr("theirs 1.3000 after 6.0 s."));
  EXPECT_THAT(page, HasSubstr("theirs 1.3000 after 1.0 kB."));
}

TEST_F(Page, ANarrowScreenDoesNotScrollSideways) {
  const TemporaryFolder work;
  const auto seen = seen_at(work, page, 500);  // the narrowest possible headless window
  ASSERT_TRUE(seen.is_object());
  EXPECT_FALSE(seen["wide"]);
  for (const auto& chart : seen["charts"]) EXPECT_GT(chart["drawn"], 1000) << chart["id"] << " is empty";
}

}  // namespace
}  // namespace isthmus
