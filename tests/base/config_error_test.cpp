// Rejected configs and their error messages: the message is all the help a user has at three in the morning.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config_sample.h"
#include "temporary_folder.h"

namespace isthmus::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string complaint_about(std::string_view yaml) {
  return complaint([&] { (void)read_sample(yaml); });
}

std::string complaint_about_file(const std::filesystem::path& file) {
  return complaint([&] { (void)read<Sample>(Source::from_file(file)); });
}

std::string complaint_about_set(std::string_view assignment) {
  return complaint([&] {
    Source source;
    source.set(assignment);
    (void)read<Sample>(source);
  });
}

TEST(ConfigError, NamesPlaceValueAndWhatWasExpected) {
  EXPECT_EQ(complaint_about("\n\nouter.sync_every: 0"),
            "outer.sync_every is 0 (a.yaml:3); expected an integer >= 1");
  EXPECT_EQ(complaint_about("outer: {sync_every: 1.5}"),
            "outer.sync_every is 1.5 (a.yaml:1); expected an integer >= 1");
  EXPECT_EQ(complaint_about("outer.sync_every: 12abc"),
            "outer.sync_every is \"12abc\" (a.yaml:1); expected an integer >= 1");
  EXPECT_EQ(complaint_about("outer.offset: 010"),
            "outer.offset is 010 (a.yaml:1); expected an integer without leading zeros");
  EXPECT_EQ(complaint_about("outer.offset: 9223372036854775808"),
            "outer.offset is 9223372036854775808 (a.yaml:1); expected an integer that fits in 64 bits");
  EXPECT_EQ(complaint_about("outer.optimizer.lr: 11"),
            "outer.optimizer.lr is 11 (a.yaml:1); expected a number from 0 to 10");
  EXPECT_EQ(complaint_about("outer.optimizer.nesterov: yes"),
            "outer.optimizer.nesterov is \"yes\" (a.yaml:1); expected true or false");
  EXPECT_EQ(complaint_about("outer.optimizer.method: dilco"),
            "outer.optimizer.method is dilco (a.yaml:1); expected one of sgd, adam");
  EXPECT_EQ(complaint_about("outer.deadline: 5"),
            "outer.deadline is 5 (a.yaml:1); expected a duration like 400ms, 5s, 2min or 1h, from 1ms to 1h");
  EXPECT_EQ(complaint_about("outer.ranks: [1, 8]"),
            "outer.ranks is [1, 8] (a.yaml:1); expected a list of integers like [1, 2], each from 0 to 7");
  EXPECT_EQ(complaint_about("outer.ranks: 1"),
            "outer.ranks is 1 (a.yaml:1); expected a list of integers like [1, 2], each from 0 to 7");
  EXPECT_EQ(complaint_about("outer.sync_every: [1, 2]"),
            "outer.sync_every is [1, 2] (a.yaml:1); expected an integer >= 1");
}

TEST(ConfigError, NumbersAreStrict) {
  for (const auto* text : {"1e3", "0x10", "+1", "1_000", "' 1'", "--1", "''", "-", "1.0", "inf"}) {
    EXPECT_NE(complaint_about(std::string("outer.offset: ") + text), "")
        << text << " was accepted as an integer";
  }
  for (const auto* text :
       {"nan", "inf", ".inf", ".nan", "-inf", "1e999", "0x1p3", "1,5", "1.5x", "''", "-0.1"}) {
    EXPECT_NE(complaint_about(std::string("outer.optimizer.lr: ") + text), "")
        << text << " was accepted as a number";
  }
  for (const auto* text :
       {"5", "s", "5m", "5 s", "-5s", "5sec", "1h30min", "infs", "nans", "1e999s", "0", "''", "ms"}) {
    EXPECT_NE(complaint_about(std::string("outer.deadline: ") + text), "")
        << text << " was accepted as a duration";
  }
  for (const auto* text : {"True", "1", "on", "''"}) {
    EXPECT_NE(complaint_about(std::string("outer.optimizer.nesterov: ") + text), "")
        << text << " was accepted as a bool";
  }
}

TEST(ConfigError, AnUnknownKeyComesWithTheNearestValidOne) {
  EXPECT_EQ(complaint_about("name: x\nouter:\n  sync_evry: 60\n"),
            "unknown key outer.sync_evry (a.yaml:3, value 60); did you mean outer.sync_every?");
  EXPECT_THAT(complaint_about("sync_every: 60"), HasSubstr("did you mean outer.sync_every?"));
  EXPECT_EQ(complaint_about_set("outer.optimiser.lr=1"),
            "unknown key outer.optimiser.lr (--set, value 1); did you mean outer.optimizer.lr?");
}

TEST(ConfigError, ASectionIsNoValueAndAValueNoSection) {
  EXPECT_EQ(complaint_about("outer: 5"),
            "outer is 5 (a.yaml:1); expected a section with keys like outer.sync_every");
  EXPECT_EQ(complaint_about("outer:\n  sync_every:\n    x: 1\n"),
            "outer.sync_every is a section (a.yaml:3: outer.sync_every.x); expected a single value");
  EXPECT_EQ(complaint_about("outer.sync_every: {}"),
            "a.yaml:1: outer.sync_every is an empty map; leave it out or give it keys");
}

TEST(ConfigError, AKeyIsGivenOnce) {
  EXPECT_EQ(complaint_about("name: a\n\nname: b\n"),
            "a.yaml:3: name is given twice; it is already set at a.yaml:1");
  EXPECT_EQ(complaint_about("outer: {offset: 1}\nouter: {sync_every: 2}\n"),
            "a.yaml:2: outer is given twice; it is already set at a.yaml:1");
  EXPECT_EQ(complaint_about("outer: {offset: 1}\nouter.offset: 2\n"),
            "a.yaml:2: outer.offset is given twice; it is already set at a.yaml:1");
}

TEST(ConfigError, NothingIsNoValue) {
  for (const auto* text : {"name:", "name: ~", "name: null", "outer:\n", "outer.ranks: [1, ~]"}) {
    EXPECT_THAT(complaint_about(text),
                AllOf(StartsWith("a.yaml:1: "), HasSubstr(" has no value; expected one")))
        << text;
  }
}

TEST(ConfigError, OddYamlIsRefused) {
  EXPECT_THAT(complaint_about("name: x\nouter: [\n"),
              AllOf(StartsWith("a.yaml:"), HasSubstr("this is not YAML: ")));
  EXPECT_THAT(complaint_about("name: \"x\nouter.offset: 1\n"), HasSubstr("this is not YAML: "))
      << "a forgotten quote must not hide the rest of the file";
  EXPECT_THAT(complaint_about("name: 'x\n\n"), HasSubstr("this is not YAML: "));
  EXPECT_THAT(complaint_about("a: 1\n b: 2\n"), StartsWith("a.yaml:2: this is not YAML: "));
  EXPECT_THAT(complaint_about("a: *x\n"), StartsWith("a.yaml:1: this is not YAML: "));
  EXPECT_THAT(complaint_about("[1, 2]: 3\n"), StartsWith("a.yaml:1: found a key that is not plain text"));
  EXPECT_THAT(complaint_about("? {a: b}\n: 3\n"), StartsWith("a.yaml:1: found a key that is not plain text"));
  EXPECT_THAT(complaint_about("~: 3\n"), StartsWith("a.yaml:1: found a key that is not plain text"));
  EXPECT_EQ(complaint_about("outer.ranks: [[1]]"),
            "a.yaml:1: outer.ranks is a list that holds a list or a map; expected plain values");
  EXPECT_EQ(complaint_about("name: !secret x"),
            "a.yaml:1: name has the tag \"!secret\"; expected a value without one");
  for (const auto* text : {"a: 1\n---\na: 2\n", "a: 1\n\n]", ", a: 1", "{a: 1} b"}) {
    EXPECT_THAT(complaint_about(text), HasSubstr("this is not YAML: ")) << text;
  }
  EXPECT_THAT(complaint_about("just words"), HasSubstr("found no map of keys; expected lines like"));
  EXPECT_THAT(complaint_about("- a\n- b\n"), HasSubstr("found no map of keys; expected lines like"));
}

TEST(ConfigError, MessagesStayShortAndOnOneLine) {
  const auto message =
      complaint_about("outer.optimizer.method: \"" + std::string(100'000, 'x') + "\\n\\e[2J\"");
  EXPECT_LT(message.size(), 200U) << message;
  EXPECT_EQ(complaint_about("outer.optimizer.method: \"a\\nb\\e\""),
            "outer.optimizer.method is \"a\\nb\\x1b\" (a.yaml:1); expected one of sgd, adam");
  EXPECT_LT(complaint_about("a: *" + std::string(100'000, 'x')).size(), 400U);
}

TEST(ConfigError, ASettingShowsTheRightForm) {
  EXPECT_EQ(complaint_about_set("outer.sync_every"),
            "--set outer.sync_every: expected key=value, for example --set outer.sync_every=60");
  EXPECT_THAT(complaint_about_set("=1"), HasSubstr("expected key=value"));
  EXPECT_EQ(complaint_about_set("outer.sync_every=0"),
            "outer.sync_every is 0 (--set); expected an integer >= 1");
  EXPECT_THAT(complaint_about_set("name="), StartsWith("--set: name has no value"));
  EXPECT_THAT(complaint_about_set("outer.ranks=[1"), StartsWith("--set: this is not YAML: "));
  EXPECT_THAT(complaint_about_set("extends=b.yaml"), HasSubstr("expected extends in a file"));
}

TEST(ConfigError, ExtendsNamesWhoAsked) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.yaml", "name: x\nextends: missing.yaml\n");
  EXPECT_EQ(complaint_about_file(a), a.string() + ":2: extends: cannot read " +
                                         (folder / "missing.yaml").string() + ": No such file or directory");
  EXPECT_THAT(complaint_about_file(folder / "none.yaml"), HasSubstr("none.yaml: No such file or directory"));
  EXPECT_THAT(complaint_about_file(folder / ""), HasSubstr("it is a folder"));
}

TEST(ConfigError, AChainOfExtendsEnds) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.yaml", "extends: sub/b.yaml\n");
  folder.write("sub/b.yaml", "extends: ../a.yaml\n");
  EXPECT_THAT(complaint_about_file(a), AllOf(StartsWith((folder / "sub/b.yaml").string() + ":1: extends: "),
                                             HasSubstr("is already being read")));
  const auto self = folder.write("self.yaml", "extends: self.yaml\n");
  EXPECT_THAT(complaint_about_file(self), HasSubstr("is already being read"));

  for (int i = 0; i < 17; ++i) {
    folder.write(fmt::format("c{}.yaml", i), fmt::format("extends: c{}.yaml\n", i + 1));
  }
  folder.write("c17.yaml", "name: deep\n");
  EXPECT_THAT(complaint_about_file(folder / "c0.yaml"), HasSubstr("more than 16 files deep"));
  EXPECT_EQ(complaint_about_file(folder / "c1.yaml"), "") << "a chain of 16 files is allowed";
}

TEST(ConfigError, ATreeOfExtendsEndsToo) {
  const TemporaryFolder folder;
  for (int i = 0; i < 10; ++i) {
    folder.write(fmt::format("t{}.yaml", i),
                 fmt::format("extends: [t{0}.yaml, t{0}.yaml, t{0}.yaml]\n", i + 1));
  }
  folder.write("t10.yaml", "name: leaf\n");
  EXPECT_THAT(complaint_about_file(folder / "t0.yaml"), HasSubstr("more than 64 files in all"));
}

TEST(ConfigError, ExtendsStandsAtTheTopOfAFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(complaint_about("extends: /etc/passwd"), "a.yaml:1: extends works in a file only")
      << "a config from the network must not open files here";
  for (const auto* text : {"outer: {extends: b.yaml}", "extends: {file: b.yaml}"}) {
    EXPECT_THAT(complaint_about_file(folder.write("a.yaml", text)),
                HasSubstr("expected extends at the top of a file"))
        << text;
  }
  EXPECT_THAT(complaint_about_file(folder.write("a.yaml", "extends: ''")),
              HasSubstr("expected the name of a file"));
}

TEST(ConfigError, ALargeFileIsRefused) {
  const TemporaryFolder folder;
  const std::string text = "name: x #" + std::string(std::size_t{1} << 20, '#');
  EXPECT_THAT(complaint_about_file(folder.write("a.yaml", text)), HasSubstr("larger than 1 MiB"));
  EXPECT_THAT(complaint_about(text), HasSubstr("larger than 1 MiB"));
  EXPECT_EQ(complaint_about(text.substr(0, std::size_t{1} << 20)), "");
  if (std::filesystem::exists("/dev/zero")) {
    EXPECT_THAT(complaint_about_file("/dev/zero"), HasSubstr("larger than 1 MiB"));
  }
}

// Each of these would exhaust memory or time if it were expanded before it is checked.
TEST(ConfigError, BombsAreRefused) {
  const auto repeated = [](std::string_view piece, std::size_t times) {
    std::string out;
    for (std::size_t i = 0; i < times; ++i) out += piece;
    return out;
  };
  std::string lists = "a0: &a0 [x, x, x, x, x, x, x, x]\n", maps = "m0: &m0 {}\n";
  for (int i = 1; i < 30; ++i) {
    lists += fmt::format("a{}: &a{} [", i, i) + repeated(fmt::format("*a{}, ", i - 1), 8) + "]\n";
    maps += fmt::format("m{}: &m{} {{", i, i);
    for (int j = 0; j < 8; ++j) maps += fmt::format("k{}: *m{}, ", j, i - 1);
    maps += "}\n";
  }
  std::string keys, long_values = "v: &v " + std::string(1000, 'x') + "\n";
  for (int i = 0; i < 5000; ++i) keys += fmt::format("k{}: 1\n", i);
  for (int i = 0; i < 4000; ++i) long_values += fmt::format("k{}: *v\n", i);
  const std::vector<std::pair<std::string, std::string>> bombs = {
      {"aliases of lists", lists},
      {"aliases of maps", maps},
      {"a map that holds itself", "a: &a {b: *a}"},
      {"a list that holds itself", "a: &a [*a]"},
      {"many keys", keys},
      {"one long list", "a: [" + repeated("1,", 500'000) + "]"},
      {"an alias of a long list", "a: &a [" + repeated("1,", 3000) + "]\nb: *a\nc: *a\n"},
      {"a long value many times", long_values},
      {"a long key", std::string(1000, 'k') + ": 1"},
      {"deep nesting of maps", repeated("{a: ", 33) + "1" + repeated("}", 33)},
      {"deep nesting of lists", "a: " + repeated("[", 1'000'000)},
      {"deep nesting by dashes", repeated("- ", 500'000)},
      {"deep nesting by questions", repeated("? ", 500'000)},
      {"deep nesting of flow maps", repeated("{", 1'000'000)},
      {"many documents", repeated("---\n", 260'000)},
      {"many anchors", repeated("&a ", 300'000)},
      {"many colons", repeated(": ", 500'000)},
      {"many tags", repeated("!a ", 300'000)},
      {"many closing brackets", repeated("]", 1'000'000)},
      {"one long word", std::string(1'000'000, 'x')},
  };
  // If one is not rejected early, it takes minutes and gigabytes, and the test ends by its time-out.
  for (const auto& [what, text] : bombs) EXPECT_NE(complaint_about(text), "") << what;
}

RC_GTEST_PROP(ConfigError, ArbitraryTextIsReadOrRefused, ()) {
  const auto piece =
      rc::gen::elementOf(std::vector<std::string>{"a",     "outer",       "sync_every",
                                                  "1",     ": ",          ":",
                                                  "\n",    "\n  ",        "- ",
                                                  "[",     "]",           "{",
                                                  "}",     ", ",          "&x ",
                                                  "*x",    "!t ",         "'",
                                                  "\"",    "|\n",         ">\n",
                                                  "#",     "? ",          "---\n",
                                                  "...\n", "%YAML 1.2\n", "\t",
                                                  "\xff",  "\x04",        "~",
                                                  "<<",    "\\",          std::string(1, '\0')});
  std::string text;
  for (const auto& part : *rc::gen::container<std::vector<std::string>>(piece)) text += part;
  RC_ASSERT(!complaint_about(text).starts_with("not a config error"));
}

}  // namespace
}  // namespace isthmus::config
