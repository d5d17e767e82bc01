#include "coordinator/gathered_folders.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "run/experiment.h"
#include "run/run_folder.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using outer_sync::protocol::Gathered;
using outer_sync::protocol::RecordKind;

namespace {

/// Whether the member itself works there: it is on this machine, or the folder is on a disk that both have.
bool is_worked_in(const fs::path& folder) {
  if (!fs::exists(folder)) return false;
  try {
    const FolderLock nobody(folder);
    return false;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::config) return true;
    throw;
  }
}

}  // namespace

GatheredFolders::GatheredFolders(fs::path run, bool fresh, Say say)
    : run_(std::move(run)), fresh_(fresh), say_(std::move(say)) {}

bool GatheredFolders::keep(const Gathered& news) {
  try {
    const auto known = places_.find(news.member);
    if (known == places_.end() || known->second.incarnation != news.incarnation)
      places_[news.member] = open(news.member, news.incarnation, known != places_.end());
  } catch (const std::exception& error) {
    say_(fmt::format("what {} writes is not gathered: {}", news.member, error.what()));
    places_[news.member] = {.incarnation = news.incarnation, .metrics = {}, .log = {}};
  }
  auto& [incarnation, metrics, log] = places_.at(news.member);
  if (!log) return false;
  if (news.left_out > 0)
    log->append(fmt::format("... {} lines are left out: the coordinator was away for too long; {} has them\n",
                            news.left_out, news.member));
  for (const auto& record : news.records) {
    if (record.kind == RecordKind::log) {
      log->append(printable(record.line) + '\n');
    } else if (nlohmann::json::accept(record.line)) {
      metrics->append(record.line + '\n');
    }
  }
  return true;
}

GatheredFolders::Place GatheredFolders::open(const std::string& member, std::uint64_t incarnation,
                                             bool seen_before) {
  check_name("a member", member);  // its name becomes a path here
  const auto folder = run_ / member;
  Place place{.incarnation = incarnation, .metrics = {}, .log = {}};
  if (is_worked_in(folder)) return place;
  fs::create_directories(folder);
  if (fresh_ && !seen_before) {
    for (const auto* file : {"metrics.jsonl", "gathered.log"}) make_room(folder / file);
  }
  place.metrics = std::make_unique<AppendFile>(folder / "metrics.jsonl", say_);
  place.log = std::make_unique<AppendFile>(folder / "gathered.log", say_);
  return place;
}

}  // namespace isthmus::app
