#pragma once
// A run of real replicas with audit records, and `isthmus audit` on it. For tests.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "command.h"
#include "site.h"

namespace isthmus {

using nlohmann::json;

/// The settings of a run of 40 steps that can be audited from step 20 on.
inline Words audited(const Site& site, const Words& more = {}) {
  Words settings = {"run.audit=true", "outer.log=" + (site / "log").string(), "run.checkpoint_every=10",
                    "run.keep_checkpoints=0", "outer.warmup_steps=0"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

struct Audit {
  Result result;
  json intervals, owners;
  /// Intervals of a member with this exit status.
  [[nodiscard]] std::size_t count(const std::string& member, int status) const {
    std::size_t count = 0;
    for (const auto& interval : intervals)
      count += interval["member"] == member && interval["status"] == status ? 1 : 0;
    return count;
  }
};

/// Runs `isthmus WORDS`.
inline Result isthmus(const Site& site, Words words) {
  static int commands = 0;
  words.insert(words.begin(), PROGRAM_UNDER_TEST);
  return Command(std::move(words), site / ("audit-" + std::to_string(++commands) + ".log")).wait();
}

inline Audit audit(const Site& site, const Words& words = {}) {
  Words all = {"audit", site.run().string(), "--sample", "1", "--json"};
  all.insert(all.end(), words.begin(), words.end());
  Audit out{.result = isthmus(site, all), .intervals = {}, .owners = {}};
  // The document, between other lines.
  const auto& text = out.result.output;
  const auto begin = text.find('{'), end = text.rfind('}');
  const auto document =
      begin == std::string::npos ? json() : json::parse(text.substr(begin, end - begin + 1), nullptr, false);
  if (document.is_object()) out.intervals = document["intervals"], out.owners = document["owners"];
  return out;
}

/// Replaces the lines of a member's records.
inline void edit_records(const Site& site, const std::string& member,
                         const std::function<void(json&)>& edit) {
  const auto file = site.run() / member / "audit.jsonl";
  std::ifstream in(file);
  std::ostringstream out;
  for (std::string line; std::getline(in, line);) {
    auto record = json::parse(line, nullptr, false);
    if (record.is_object()) edit(record);
    out << (record.is_object() ? record.dump() : line) << '\n';
  }
  in.close();
  std::ofstream(file) << out.str();
}

inline void falsify_bytes(json& contribution) {
  auto& bytes = contribution["bytes"];
  bytes = std::string(bytes.get<std::string>().size(), '0');
}

class AuditOf : public ::testing::Test {
 protected:
  void run(const Words& more = {}) {
    const auto result = site.launch(audited(site, more));
    ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  }
  Site site;
};

}  // namespace isthmus
