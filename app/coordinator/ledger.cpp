#include "coordinator/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::app {

namespace {

using outer_sync::protocol::Ledger;
constexpr int ledger_version = 1;

/// The contents of one replica's file.
struct Account {
  std::filesystem::path file;
  std::uint64_t step = 0, unknown_rounds = 0;
  std::vector<std::uint64_t> rounds;  ///< by fragment
  SampleSet everywhere, anywhere, twice;
};

nlohmann::json ranges_of(const SampleSet& samples) {
  auto out = nlohmann::json::array();
  for (const auto& range : samples.ranges()) out.push_back({range.track, range.begin, range.end});
  return out;
}

SampleSet samples_from(const nlohmann::json& ranges) {
  SampleSet out;
  for (const auto& range : ranges) {
    out.add({range.at(0).get<std::uint64_t>(), range.at(1).get<std::uint64_t>(),
             range.at(2).get<std::uint64_t>()});
  }
  return out;
}

Account read_account(const std::filesystem::path& file) {
  std::ifstream in(file);
  try {
    const auto json = nlohmann::json::parse(in);
    if (json.at("version") != ledger_version)
      data_error(file.string() + ": not a ledger of version " + std::to_string(ledger_version) +
                 "; use the build that wrote it");
    return {.file = file,
            .step = json.at("step"),
            .unknown_rounds = json.at("unknown_rounds"),
            .rounds = json.at("rounds"),
            .everywhere = samples_from(json.at("done")),
            .anywhere = samples_from(json.at("in_some_fragments")),
            .twice = samples_from(json.at("twice"))};
  } catch (const nlohmann::json::exception& error) {
    data_error(file.string() + ": not a ledger: " + error.what());
  }
}

std::vector<Account> accounts_in(const std::filesystem::path& run_folder) {
  std::vector<Account> out;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder, none)) {
    const auto file = entry.path() / "ledger.json";
    if (std::filesystem::exists(file)) out.push_back(read_account(file));
  }
  std::ranges::sort(out, {}, &Account::file);
  if (out.empty()) {
    data_error(run_folder.string() +
               ": no replica has a ledger (NAME/ledger.json); expected the folder "
               "of a run that has begun");
  }
  return out;
}

/// Throws unless replicas with the same rounds have the same ledger.
void check_equal_accounts(const std::vector<Account>& accounts) {
  std::map<std::vector<std::uint64_t>, const Account*> by_rounds;
  for (const auto& account : accounts) {
    if (account.unknown_rounds > 0) continue;
    const auto [other, is_new] = by_rounds.try_emplace(account.rounds, &account);
    const auto& known = *other->second;
    if (is_new || (known.everywhere == account.everywhere && known.anywhere == account.anywhere &&
                   known.twice == account.twice))
      continue;
    data_error(known.file.string() + " and " + account.file.string() +
               " differ, although both have the same rounds: one of them is damaged");
  }
}

std::string text_of(const SampleSet& samples) {
  constexpr std::size_t max_listed = 6;
  std::string out;
  const auto& ranges = samples.ranges();
  for (std::size_t i = 0; i < std::min(ranges.size(), max_listed); ++i)
    out += fmt::format("{}track {} [{}, {})", i == 0 ? "" : ", ", ranges[i].track, ranges[i].begin,
                       ranges[i].end);
  if (ranges.size() > max_listed) out += fmt::format(" and {} more ranges", ranges.size() - max_listed);
  return out;
}

SampleSet of_track(const SampleSet& samples, std::uint64_t track) {
  SampleSet all;
  all.add({track, 0, ~std::uint64_t{0}});
  return samples.common(all);
}

/// Samples below the furthest one of the track that are in no round.
SampleSet gaps_of(const SampleSet& anywhere, std::uint64_t track) {
  const auto own = of_track(anywhere, track);
  if (own.empty()) return {};
  return SampleSet(own.missing(track, own.ranges().back().end));
}

}  // namespace

void write_ledger(const std::filesystem::path& file, std::uint64_t step, const Ledger& ledger) {
  nlohmann::ordered_json json;
  json["version"] = ledger_version;
  json["step"] = step;
  json["unknown_rounds"] = unknown_rounds(ledger);
  auto& rounds = json["rounds"] = nlohmann::ordered_json::array();
  for (const auto& fragment : ledger) rounds.push_back(fragment.round());
  json["done"] = ranges_of(done_everywhere(ledger));
  json["in_some_fragments"] = ranges_of(done_anywhere(ledger));
  json["twice"] = ranges_of(done_twice(ledger));
  replace_file(file, json.dump() + "\n");
}

LedgerReport ledger_report(const std::filesystem::path& run_folder) {
  const auto accounts = accounts_in(run_folder);
  check_equal_accounts(accounts);
  const auto& furthest = *std::ranges::max_element(accounts, {}, [](const Account& account) {
    return std::pair(account.rounds, account.unknown_rounds == 0);
  });
  std::string out = fmt::format("step {}, by {}\n", furthest.step, furthest.file.string());
  std::set<std::uint64_t> tracks;
  for (const auto& range : furthest.anywhere.ranges()) tracks.insert(range.track);
  SampleSet all_gaps;
  out +=
      fmt::format("{:>5} {:>14} {:>14} {:>14} {:>14}\n", "track", "trained on", "not whole", "twice", "gaps");
  const auto partly = without(furthest.anywhere, furthest.everywhere);
  auto counts = nlohmann::ordered_json::array();
  for (const auto track : tracks) {
    const auto gaps = gaps_of(furthest.anywhere, track);
    all_gaps.add(gaps);
    const auto whole = of_track(furthest.everywhere, track).size(), part = of_track(partly, track).size(),
               twice = of_track(furthest.twice, track).size();
    out += fmt::format("{:>5} {:>14} {:>14} {:>14} {:>14}\n", track, whole, part, twice, gaps.size());
    counts.push_back({{"track", track},
                      {"trained_on", whole},
                      {"not_whole", part},
                      {"twice", twice},
                      {"gaps", gaps.size()}});
  }
  if (!partly.empty())
    out += "not in a round of every fragment (in flight, or lost with a replica): " + text_of(partly) + "\n";
  if (!furthest.twice.empty()) out += "twice in a fragment's rounds: " + text_of(furthest.twice) + "\n";
  if (!all_gaps.empty()) out += "gaps, not trained on so far: " + text_of(all_gaps) + "\n";
  if (furthest.unknown_rounds > 0)
    out += fmt::format("the samples of {} rounds are not known\n", furthest.unknown_rounds);
  const bool clean =
      partly.empty() && furthest.twice.empty() && all_gaps.empty() && furthest.unknown_rounds == 0;
  if (clean) out += "no sequence twice, no gap\n";
  return {out,
          {{"step", furthest.step},
           {"file", furthest.file.string()},
           {"tracks", counts},
           {"unknown_rounds", furthest.unknown_rounds},
           {"clean", clean}}};
}

}  // namespace isthmus::app
