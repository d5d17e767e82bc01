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

constexpr const char *metrics_name = "metrics.jsonl", *log_name = "gathered.log";

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

GatheredFolders::GatheredFolders(fs::path run, bool fresh, std::uint64_t limit, Say say)
    : run_(std::move(run)), fresh_(fresh), limit_(limit), say_(std::move(say)) {}

bool GatheredFolders::keep(const Gathered& news) {
  try {
    const auto known = places_.find(news.member);
    if (known == places_.end() || known->second.incarnation != news.incarnation)
      places_[news.member] = open(news.member, news.incarnation, known != places_.end());
    auto& place = places_.at(news.member);
    if (place.log) append(place, news);
  } catch (const std::exception& error) {
    say_(fmt::format("what {} writes is not gathered: {}", news.member, error.what()));
    places_[news.member] = {.incarnation = news.incarnation, .folder = {}, .metrics = {}, .log = {}};
  }
  return places_.at(news.member).log != nullptr;
}

void GatheredFolders::append(Place& place, const Gathered& news) const {
  if (news.left_out > 0)
    append_log(place,
               fmt::format("... {} lines are left out: the coordinator was away for too long; {} has them",
                           news.left_out, news.member));
  for (const auto& record : news.records) {
    if (record.kind == RecordKind::log) {
      append_log(place, printable(record.line));
    } else if (nlohmann::json::accept(record.line)) {
      append_metrics(place, news.member, record.line);
    }
  }
}

void GatheredFolders::append_metrics(Place& place, const std::string& member, const std::string& line) const {
  if (place.metrics->size() + line.size() < limit_ / 2) return place.metrics->append(line + '\n');
  if (!std::exchange(place.metrics_are_full, true))
    say_(
        fmt::format("no more metrics of {} are gathered, because run.gather_limit is {} bytes; its own "
                    "metrics.jsonl has them all",
                    member, limit_));
}

void GatheredFolders::append_log(Place& place, const std::string& line) const {
  if (place.log->size() + line.size() >= limit_ / 4) {
    const auto file = place.folder / log_name;
    place.log.reset();
    fs::rename(file, file.string() + ".old");
    place.log = std::make_unique<AppendFile>(file, say_);
  }
  place.log->append(line + '\n');
}

GatheredFolders::Place GatheredFolders::open(const std::string& member, std::uint64_t incarnation,
                                             bool seen_before) {
  check_member_name("a member", member);  // its name becomes a path here
  const auto folder = run_ / member;
  Place place{.incarnation = incarnation, .folder = folder, .metrics = {}, .log = {}};
  if (is_worked_in(folder)) return place;
  fs::create_directories(folder);
  if (fresh_ && !seen_before) {
    for (const auto* file : {metrics_name, log_name}) make_room(folder / file);
  }
  place.metrics = std::make_unique<AppendFile>(folder / metrics_name, say_);
  place.log = std::make_unique<AppendFile>(folder / log_name, say_);
  return place;
}

}  // namespace isthmus::app
