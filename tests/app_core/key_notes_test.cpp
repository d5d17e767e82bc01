// Every key explains itself: its meaning, and the reason for its default.

#include "cli/files/key_notes.h"

#include <map>

#include "isthmus/base/text_file.h"
#include "run/experiment/current_names.h"
#include "run/experiment/experiment.h"
#include "site.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<config::Item> all_keys() {
  app::Experiment experiment;
  return config::list(experiment);
}

TEST(KeyNotes, GiveAReasonForEveryDefault) {
  std::map<std::string_view, std::string_view> reasons;
  for (const auto& note : app::key_notes())
    EXPECT_TRUE(reasons.emplace(note.key, note.why).second) << note.key << " has two notes";
  for (const auto& item : all_keys()) {
    EXPECT_FALSE(reasons[item.key].empty())
        << "app/cli/files/key_notes.cpp gives no reason for the default of " << item.key;
    reasons.erase(item.key);
  }
  for (const auto& [key, why] : reasons) ADD_FAILURE() << "a note is on " << key << ", which is not a key";
}

TEST(KeyNotes, AreWrittenLikeTheMeanings) {
  for (const auto& note : app::key_notes()) EXPECT_NE(note.why.back(), '.') << note.key;
  for (const auto& item : all_keys()) {
    EXPECT_GE(item.doc.size(), 10U) << item.key;
    EXPECT_NE(item.doc.back(), '.') << item.key;
  }
}

TEST(Explain, PrintsMeaningAndReasonAlsoForAnotherName) {
  Site site;
  for (const auto* name : {"run.steps", "run.max_steps"}) {
    const auto result = site.isthmus({"config", "--explain", name});
    EXPECT_EQ(result.status, 0) << result.report();
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("run.steps\n"), HasSubstr("  meaning   "), HasSubstr("  why   "),
                      HasSubstr("  also      accepted as run.max_steps\n")));
  }
}

TEST(NamesElsewhere, ListsEveryAlias) {
  const auto page = read_text(std::filesystem::path(source_folder) / "docs/reference/names-elsewhere.md");
  for (const auto& [alias, key] : app::key_aliases())
    EXPECT_THAT(page, HasSubstr("| `" + std::string(alias) + "` | `" + std::string(key) + "` |"));
}

}  // namespace
}  // namespace isthmus
