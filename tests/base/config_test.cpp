// Reading configs, precedence of their sources, and writing them.

#include "isthmus/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "config_sample.h"
#include "temporary_folder.h"

namespace isthmus::config {
namespace {

using testing::HasSubstr;

TEST(Config, KeysAbsentFromTheFileKeepTheirDefaults) {
  EXPECT_EQ(read_sample(""), Sample());
  EXPECT_EQ(read_sample("# nothing but a comment\n"), Sample());
}

TEST(Config, SectionsMayBeNestedDottedOrBoth) {
  Sample expected;
  expected.outer.sync_every = 60;
  expected.outer.optimizer.lr = 0.5;
  for (const auto* text : {
           "outer:\n  sync_every: 60\n  optimizer:\n    lr: 0.5\n",
           "outer.sync_every: 60\nouter.optimizer.lr: 0.5\n",
           "outer:\n  sync_every: 60\n  optimizer.lr: 0.5\n",
           "outer.sync_every: 60\nouter: {optimizer: {lr: 0.5}}\n",
       }) {
    EXPECT_EQ(read_sample(text), expected) << text;
  }
}

TEST(Config, EveryTypeIsRead) {
  const auto sample = read_sample(
      "name: 'a: b'\n"
      "outer:\n"
      "  sync_every: 9223372036854775807\n"
      "  offset: -9223372036854775808\n"
      "  deadline: 1.5s\n"
      "  ranks: [3, 1, 2]\n"
      "  optimizer: {lr: 1e-3, nesterov: false, method: adam}\n");
  EXPECT_EQ(sample.name, "a: b");
  EXPECT_EQ(sample.outer.sync_every, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(sample.outer.offset, std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(sample.outer.deadline.seconds, 1.5);
  EXPECT_EQ(sample.outer.ranks, (std::vector<std::int64_t>{3, 1, 2}));
  EXPECT_EQ(sample.outer.optimizer.lr, 1e-3);
  EXPECT_FALSE(sample.outer.optimizer.nesterov);
  EXPECT_EQ(sample.outer.optimizer.method, "adam");
  EXPECT_TRUE(read_sample("outer.ranks: []").outer.ranks.empty());
}

TEST(Config, AliasesMayShareASection) {
  struct Two {
    SampleOptimizer a, b;
    void serialize(Archive& ar) {
      ar.section("a", a);
      ar.section("b", b);
    }
  };
  const auto two = read<Two>(Source::from_text("a: &x {lr: 0.25}\nb: *x\n", "a.yaml"));
  EXPECT_EQ(two.a.lr, 0.25);
  EXPECT_EQ(two.b.lr, 0.25);
}

TEST(Config, DurationsHaveUnits) {
  const auto seconds = [](const std::string& text) {
    return read_sample("outer.deadline: " + text).outer.deadline.seconds;
  };
  EXPECT_EQ(seconds("400ms"), 0.4);
  EXPECT_EQ(seconds("5s"), 5);
  EXPECT_EQ(seconds("2min"), 120);
  EXPECT_EQ(seconds("1h"), 3600);
  EXPECT_EQ(seconds("0.5h"), 1800);
}

std::string value_of(Sample sample, std::string_view key) {
  for (const auto& item : list(sample)) {
    if (item.key == key) return item.value;
  }
  return "there is no such key";
}

struct Amounts {
  Stepped every = 30;
  Size budget{20'000'000'000};
  Rate uplink;
  friend bool operator==(const Amounts&, const Amounts&) = default;
  void serialize(Archive& ar) {
    ar({"every", &every, Scope::agreed, "steps between two", 1, 1000});
    ar({"budget", &budget, Scope::per_site, "most that it takes", 1e6, 1e18});
    ar({"uplink", &uplink, Scope::per_site, "what the line carries", 1e3, 1e13});
  }
};
Amounts read_amounts(std::string_view yaml) { return read<Amounts>(Source::from_text(yaml, "a.yaml")); }

TEST(Config, NumbersMayChangeWithTheStep) {
  EXPECT_EQ(read_amounts("every: 7").every, Stepped(7));
  const auto amounts = read_amounts("every: {0: 5, 200: 20}");
  EXPECT_EQ(amounts.every.parts, (std::vector<Stepped::Part>{{0, 5}, {200, 20}}));
  EXPECT_EQ(read_amounts("every:\n  0: 5\n  200: 20\n"), amounts);
  auto source = Source::from_text("every: {0: 5, 200: 20}", "a.yaml");
  source.set("every={0: 6, 100: 9}");
  EXPECT_EQ(read<Amounts>(source).every.parts, (std::vector<Stepped::Part>{{0, 6}, {100, 9}}))
      << "the value must be replaced as a whole";
  source.set("every=8");
  EXPECT_EQ(read<Amounts>(source).every, Stepped(8));
  for (auto config : {amounts, read_amounts("every: 7")}) EXPECT_EQ(read_amounts(to_yaml(config)), config);
  auto config = amounts;
  EXPECT_EQ(list(config)[0].value, "{0: 5, 200: 20}");
  EXPECT_EQ(list(config)[0].expected,
            "integer from 1 to 1000, or several from a step on like {0: 5, 200: 20}");
}

TEST(Config, NumbersThatChangeInAnImpossibleWayAreRefused) {
  const auto why = [](std::string_view yaml) { return complaint([&] { (void)read_amounts(yaml); }); };
  EXPECT_EQ(why("every: {0: 5, 200: 0}"),
            "every is {0: 5, 200: 0} (a.yaml:1); expected an integer from 1 to 1000, or several from a step "
            "on like "
            "{0: 5, 200: 20}");
  for (const auto* yaml :
       {"every: {1: 5}", "every: {0: 5, 200: 2, 100: 3}", "every: {0: 5, 0: 6}", "every: {00: 5}",
        "every: {0: x}", "every: [1, 2]", "every: {0: 5, 99999999999999999999: 6}"}) {
    EXPECT_THAT(why(yaml), testing::HasSubstr("expected an integer from 1")) << yaml;
  }
  EXPECT_THAT(why("every: {0: 5, x: 6}"), testing::HasSubstr("every is a section"));
  EXPECT_THAT(why("budget: {0: 5MB}"), testing::HasSubstr("expected a size in bytes"));
}

TEST(Config, SizesHaveUnits) {
  EXPECT_EQ(read_amounts("budget: 20GB").budget.bytes, 20'000'000'000);
  EXPECT_EQ(read_amounts("budget: 1500kB").budget.bytes, 1'500'000);
  EXPECT_EQ(read_amounts("budget: 1234567").budget.bytes, 1'234'567);
  EXPECT_EQ(read_amounts("budget: 3TB").budget.bytes, 3'000'000'000'000);
  for (const auto* text : {"64MB", "20GB", "1500kB", "1234567"}) {
    auto amounts = read_amounts(std::string("budget: ") + text);
    EXPECT_EQ(list(amounts)[1].value, text);
  }
  for (const auto* text : {"20gb", "20 GB", "1.5GB", "GB", "-5MB", "99999999999TB", "1kB", "020MB", "[1]"}) {
    EXPECT_THAT(complaint([&] { (void)read_amounts(std::string("budget: ") + text); }),
                testing::HasSubstr("expected a size in bytes like 64MB or 20GB, from 1MB to 1000000TB"))
        << text;
  }
}

TEST(Config, RatesHaveUnitsOrAreToBeMeasured) {
  EXPECT_EQ(read_amounts("uplink: 50Mbps").uplink.bits_per_second, 5e7);
  EXPECT_EQ(read_amounts("uplink: 50Mbps").uplink.bytes_per_second(), 6'250'000U);
  EXPECT_EQ(read_amounts("uplink: auto").uplink.bytes_per_second(), 0U);
  EXPECT_EQ(read_amounts("").uplink, Rate{});
  for (const auto* text : {"auto", "50Mbps", "2.5Gbps", "64kbps", "1.1Mbps", "10Gbps"}) {
    auto amounts = read_amounts(std::string("uplink: ") + text);
    EXPECT_EQ(list(amounts)[2].value, text);
    EXPECT_EQ(read_amounts(to_yaml(amounts)), amounts);
  }
  for (const auto* text : {"50", "0", "50mbps", "50 Mbps", "-5Mbps", "0Mbps", "1e3Mbps", "Mbps", "50MB",
                           "0.5kbps", "99999Gbps", "[1]", "{0: 5Mbps}"}) {
    EXPECT_THAT(complaint([&] { (void)read_amounts(std::string("uplink: ") + text); }),
                testing::HasSubstr("expected auto, or a rate like 50Mbps or 1Gbps, from 1kbps to 10000Gbps"))
        << text;
  }
}

TEST(Config, TheCanonicalTextIsTheShortest) {
  Sample sample;
  const auto duration = [&](double seconds) {
    sample.outer.deadline.seconds = seconds;
    return value_of(sample, "outer.deadline");
  };
  EXPECT_EQ(duration(0), "0");
  EXPECT_EQ(duration(0.4), "400ms");
  EXPECT_EQ(duration(1.5), "1500ms");
  EXPECT_EQ(duration(5), "5s");
  EXPECT_EQ(duration(90), "90s");
  EXPECT_EQ(duration(120), "2min");
  EXPECT_EQ(duration(7200), "2h");
  EXPECT_EQ(duration(0.0001), "1e-04s");
  EXPECT_EQ(value_of(sample, "outer.ranks"), "[0, 1]");
  EXPECT_EQ(value_of(sample, "outer.optimizer.lr"), "0.7");
  EXPECT_EQ(value_of(sample, "outer.optimizer.nesterov"), "true");
  sample.outer.ranks.clear();
  EXPECT_EQ(value_of(sample, "outer.ranks"), "[]");
  sample.outer.optimizer.lr = -0.0;
  EXPECT_EQ(value_of(sample, "outer.optimizer.lr"), "0")
      << "equal values need equal text, because the text is hashed";
}

TEST(Config, TheWrittenYamlIsNestedAndQuotedWhereNeeded) {
  Sample sample;
  EXPECT_EQ(to_yaml(sample),
            "name: \"first run\"\n"
            "listen: \"127.0.0.1:7000\"\n"
            "outer:\n"
            "  sync_every: 30\n"
            "  offset: 0\n"
            "  deadline: 400ms\n"
            "  ranks: [0, 1]\n"
            "  optimizer:\n"
            "    lr: 0.7\n"
            "    nesterov: true\n"
            "    method: sgd\n");
}

TEST(Config, ASectionVisitedInPartsIsWrittenOnce) {
  struct Parts {
    bool a = false, b = false, c = true;
    void serialize(Archive& ar) {
      ar({"s.a", &a, Scope::agreed, ""});
      ar({"b", &b, Scope::agreed, ""});
      ar({"s.c", &c, Scope::agreed, ""});
    }
  } parts;
  EXPECT_EQ(to_yaml(parts), "s:\n  a: false\n  c: true\nb: false\n");
}

TEST(Config, AwkwardStringsComeBack) {
  for (const std::string text : {"",     " ",           "true",         "False",    "null",
                                 "~",    "12",          "-1.5",         "1e3",      ".inf",
                                 "0x10", "a: b",        "a:",           ":a",       "#x",
                                 "a #x", "a#x",         "[1, 2]",       "{a: b}",   "*x",
                                 "&x",   "!x",          "- a",          "---",      "...",
                                 "? x",  "'",           "\"",           "\\",       "\\n",
                                 "a\nb", "\n",          "a\r\nb",       "\t",       " a ",
                                 "yes",  "caf\xc3\xa9", "\xef\xbb\xbf", "\xc2\x85", "\xe2\x80\xa8",
                                 "\x7f", "\x04",        "%x",           "@x",       "`x",
                                 ",",    "a,b",         "host:7000",    "/data/x",  "<<",
                                 "="}) {
    Sample sample;
    sample.name = text;
    EXPECT_EQ(read_sample(to_yaml(sample)).name, text) << "written as:\n" << to_yaml(sample);
  }
}

RC_GTEST_PROP(Config, WhatIsWrittenReadsBackEqual, ()) {
  const auto finite =
      rc::gen::suchThat(rc::gen::map(rc::gen::arbitrary<std::uint64_t>(),
                                     [](std::uint64_t bits) { return std::bit_cast<double>(bits); }),
                        [](double value) { return std::isfinite(value); });
  Sample sample;
  sample.name = *rc::gen::arbitrary<std::string>();
  sample.listen =
      *rc::gen::container<std::string>(rc::gen::elementOf(std::string(" :#'\"\\\n\t-[]{}ab1,&*!|>%@`")));
  sample.outer.offset = *rc::gen::arbitrary<std::int64_t>();
  sample.outer.ranks = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 8));
  sample.outer.deadline.seconds = std::clamp(std::abs(*finite), 0.001, 3600.0);
  sample.outer.optimizer.lr = std::fmod(std::abs(*finite), 10.0);
  sample.outer.optimizer.nesterov = *rc::gen::arbitrary<bool>();
  auto back = read_sample(to_yaml(sample));
  RC_ASSERT(back == sample);
  RC_ASSERT(to_yaml(back) == to_yaml(sample));
  RC_ASSERT(fingerprint(back) == fingerprint(sample));
}

TEST(Config, AnExtendingFileWins) {
  const TemporaryFolder folder;
  folder.write("base/common.yaml", "name: common\nouter: {sync_every: 10, offset: 1}\n");
  folder.write("base/fast.yaml", "extends: common.yaml\nouter.sync_every: 20\n");
  folder.write("wan.yaml", "outer.offset: 5\n");
  // `extends` comes last here: its position in the file does not matter.
  const auto file = folder.write("run.yaml", "name: mine\nextends: [base/fast.yaml, wan.yaml]\n");
  const auto source = Source::from_file(file);
  const auto sample = read<Sample>(source);
  EXPECT_EQ(sample.name, "mine");
  EXPECT_EQ(sample.outer.sync_every, 20) << "a file takes precedence over the files it extends";
  EXPECT_EQ(sample.outer.offset, 5) << "of several extended files the last takes precedence";
  for (const auto& entry : source.entries()) {
    if (entry.key != "outer.sync_every") continue;
    EXPECT_EQ(entry.place, (folder / "base/fast.yaml").string() + ":2");
    EXPECT_EQ(entry.base, folder / "base");
  }
}

TEST(Config, AFileMayBeExtendedTwice) {
  const TemporaryFolder folder;
  folder.write("common.yaml", "outer.offset: 3\n");
  folder.write("b.yaml", "extends: common.yaml\n");
  const auto file = folder.write("a.yaml", "extends: [common.yaml, b.yaml]\n");
  EXPECT_EQ(read<Sample>(Source::from_file(file)).outer.offset, 3);
}

TEST(Config, LaterSettingsWin) {
  auto source = Source::from_text("outer.sync_every: 10\nname: a\n", "a.yaml");
  source.set("outer.sync_every=20");
  source.set("outer.sync_every=40");
  source.set("outer.ranks=[1,2]");
  source.set("outer.optimizer={lr: 0.5, method: adam}");
  source.set("name='x=y: 1'");
  const auto sample = read<Sample>(source);
  EXPECT_EQ(sample.outer.sync_every, 40);
  EXPECT_EQ(sample.outer.ranks, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(sample.outer.optimizer.lr, 0.5);
  EXPECT_EQ(sample.outer.optimizer.method, "adam");
  EXPECT_EQ(sample.name, "x=y: 1");
}

TEST(Config, TheFingerprintCoversWhatMustBeEqual) {
  Sample a, b;
  b.listen = "10.0.0.1:7000";
  b.outer.deadline.seconds = 9;
  EXPECT_EQ(fingerprint(a), fingerprint(b)) << "a site's own keys must not count";
  b.outer.optimizer.lr = 0.8;
  EXPECT_NE(fingerprint(a), fingerprint(b)) << "live keys must agree too";
}

TEST(Config, AValueCannotPassForAFurtherKeyInTheFingerprint) {
  struct Pair {
    std::string a, b;
    void serialize(Archive& ar) {
      ar({"a", &a, Scope::agreed, ""});
      ar({"b", &b, Scope::agreed, ""});
    }
  };
  Pair one{"x\nb=y", ""}, two{"x", "y"};
  EXPECT_NE(fingerprint(one), fingerprint(two));
}

TEST(Config, TheReferenceIsAMarkdownTable) {
  Sample sample;
  const auto text = reference(sample);
  EXPECT_THAT(text, HasSubstr("| key | class | default | expected | meaning |\n| --- |"));
  EXPECT_THAT(
      text,
      HasSubstr("| `outer.sync_every` | agreed | `30` | integer >= 1 | inner steps between two syncs |\n"));
  EXPECT_THAT(text, HasSubstr("| `outer.optimizer.lr` | live | `0.7` | number from 0 to 10 | step size |\n"));
  EXPECT_THAT(text, HasSubstr("| `outer.optimizer.method` | agreed | `sgd` | one of sgd, adam | rule |\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "| `outer.deadline` | per_site | `400ms` | duration like 400ms, 5s, 2min or 1h, from 1ms to 1h |"));
  EXPECT_THAT(text, HasSubstr("who \\| takes part")) << "a bar must not split a cell";
}

TEST(Config, TheFirstDifferenceIsNamed) {
  Sample ours, theirs;
  theirs.listen = "elsewhere";
  const auto difference = [&](const SharedItems& items) {
    return first_difference(shared_items(ours), "the coordinator", items, "eu-1");
  };
  EXPECT_EQ(difference(shared_items(theirs)), "") << "keys of a site need not agree";
  ours.outer.sync_every = 60;
  EXPECT_EQ(difference(shared_items(theirs)), "outer.sync_every is 60 at the coordinator and 30 at eu-1");
  EXPECT_EQ(difference({{"name", "first run"}}),
            "outer.sync_every is 60 at the coordinator and unknown at eu-1");
  auto more = shared_items(ours);
  more.emplace_back("outer.new", "1");
  EXPECT_EQ(difference(more), "outer.new is unknown at the coordinator and 1 at eu-1");
}

TEST(Config, ASectionCanBeTakenOutAndPutOverTheRest) {
  auto source = Source::from_text(
      "outer: {sync_every: 10, offset: 1}\nextra:\n  outer.offset: 5\n  name: b\n", "a.yaml");
  source.set("extra.name=c");
  EXPECT_THAT(complaint([&] { static_cast<void>(read<Sample>(source)); }),
              testing::HasSubstr("unknown key extra."));
  const auto taken = source.take_section("extra");
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].key, "extra.outer.offset");
  EXPECT_EQ(taken[0].place, "a.yaml:3");
  EXPECT_FALSE(taken[0].assigned());
  EXPECT_TRUE(taken[1].assigned());
  EXPECT_EQ(read<Sample>(source).outer.offset, 1) << "the rest must stay unchanged";
  EXPECT_EQ(source.find("extra.name"), nullptr);
  for (auto entry : taken) {
    entry.key.erase(0, std::string("extra.").size());
    source.put(std::move(entry));
  }
  EXPECT_EQ(read<Sample>(source).outer.offset, 5);
  EXPECT_EQ(read<Sample>(source).outer.sync_every, 10);
  EXPECT_EQ(read<Sample>(source).name, "c");
  EXPECT_TRUE(source.take_section("none").empty());
  EXPECT_THAT(complaint([&] { static_cast<void>(source.take_section("name")); }),
              testing::HasSubstr("name is a plain value (--set); expected a section"));
}

TEST(Config, TheNearestKey) {
  const std::vector<std::string> valid = {"outer.lr", "inner.lr", "outer.sync_every", "trainer.save_every"};
  EXPECT_EQ(nearest("outr.lr", valid), "outer.lr");
  EXPECT_EQ(nearest("iner.lr", valid), "inner.lr");
  EXPECT_EQ(nearest("sync_every", valid), "outer.sync_every");
  EXPECT_EQ(nearest("trainer.sync_every", valid), "outer.sync_every");
  EXPECT_EQ(nearest(std::string(1'000'000, 'x'), valid), "outer.lr") << "any result is fine, but at once";
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace
}  // namespace isthmus::config
