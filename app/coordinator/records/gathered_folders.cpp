#include "coordinator/records/gathered_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "run/audit/audit_lines.h"
#include "run/experiment/experiment.h"
#include "run/process/names.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using outer_sync::protocol::Gathered;
using outer_sync::protocol::RecordKind;

namespace {

constexpr const char *metrics_name = "metrics.jsonl", *log_name = "gathered.log",
                     *old_log_name = "gathered.log.old";

/// 0 if the file does not exist.
std::uint64_t size_of(const fs::path& file) {
  std::error_code none;
  const auto size = fs::file_size(file, none);
  return none ? 0 : size;
}

/// Size of the files that an earlier coordinator gathered.
std::uint64_t gathered_in(const fs::path& run) {
  std::uint64_t sum = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run, none)) {
    if (!fs::exists(entry.path() / log_name, none)) continue;  // not a folder of gathered lines
    for (const auto* file : {metrics_name, log_name, old_log_name, audit_file})
      sum += size_of(entry.path() / file);
    for (const auto& file : event_files_in(entry.path())) sum += size_of(file);
  }
  return sum;
}

/// The newest lines of a file: their member may send them again.
std::set<std::string> known_lines(const fs::path& file) {
  constexpr std::uint64_t in_flight = 1 << 16;  // a member has up to half of this on the way
  auto lines = last_lines(file, in_flight);
  return {std::make_move_iterator(lines.begin()), std::make_move_iterator(lines.end())};
}

/// Whether the line is one of them. They come before all others, so the first other line ends the question.
bool is_known(std::set<std::string>& known, const std::string& line) {
  if (known.contains(line)) return true;
  known.clear();
  return false;
}

/// Whether the member itself works in this folder, on this machine or through a shared disk.
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

GatheredFolders::GatheredFolders(fs::path run, bool fresh, std::uint64_t limit, Say say, Say stopped,
                                 Free free)
    : run_(std::move(run)),
      fresh_(fresh),
      limit_(limit),
      say_(std::move(say)),
      stopped_(std::move(stopped)),
      free_(std::move(free)),
      taken_(fresh ? 0 : gathered_in(run_)) {
  if (free_) return;
  free_ = [run = run_] {
    std::error_code none;
    return fs::space(run, none).available;  // on an error the maximum: unknown counts as enough
  };
}

bool GatheredFolders::keep(const Gathered& news) {
  try {
    const auto known = places_.find(news.member);
    if (known == places_.end() || known->second.incarnation != news.incarnation)
      places_[news.member] =
          open(news.member, news.incarnation, known == places_.end() ? nullptr : &known->second);
    auto& place = places_.at(news.member);
    if (place.log && has_room()) append(place, news);
  } catch (const std::exception& error) {
    say_(fmt::format("cannot gather the lines of {}: {}", news.member, error.what()));
    Place none;
    none.incarnation = news.incarnation;
    places_[news.member] = std::move(none);
  }
  return places_.at(news.member).log != nullptr;
}

/// On a full disk coordinator.state cannot be written, so no view begins and no round commits.
bool GatheredFolders::has_room() {
  constexpr double megabyte = 1e6;
  const auto free = free_();
  const auto least = is_full_ ? min_free_bytes + min_free_bytes / 4
                              : min_free_bytes;  // a margin, so that the messages do not alternate
  const bool fits = taken_ / max_folders_over_limit < limit_;
  if (fits && free >= least) {
    if (std::exchange(is_full_, false)) say_("gathering lines of the members again");
    return true;
  }
  if (std::exchange(is_full_, true)) return false;
  const auto why =
      fits ? fmt::format(
                 "{:.0f} MB are free on the disk of {}, and {:.0f} MB are reserved for coordinator.state and "
                 "others; free space on that disk to continue",
                 static_cast<double>(free) / megabyte, run_.string(),
                 static_cast<double>(min_free_bytes) / megabyte)
           : fmt::format(
                 "those in {} take {:.0f} MB, the maximum of {} times run.gather_limit; restart the "
                 "coordinator with a higher limit, or after removing some of them",
                 run_.string(), static_cast<double>(taken_) / megabyte, max_folders_over_limit);
  stopped_("stopped gathering lines of the members (their own files have all of them): " + why);
  return false;
}

void GatheredFolders::append(Place& place, const Gathered& news) {
  if (news.left_out > 0)
    append_log(place,
               fmt::format("... {} lines are missing: the coordinator was away for too long; {} has them",
                           news.left_out, news.member));
  for (const auto& record : news.records) {
    if (record.kind == RecordKind::log) append_log(place, printable(record.line));
    if (record.kind == RecordKind::metrics) append_metrics(place, news.member, record.line);
    if (record.kind == RecordKind::audit) append_audit(place, news.member, record.line);
  }
}

void GatheredFolders::append_metrics(Place& place, const std::string& member, const std::string& line) {
  if (is_known(place.known, line)) return;
  const auto parsed = nlohmann::ordered_json::parse(line, nullptr, false);
  if (parsed.is_discarded()) return;
  const auto size = place.metrics->size() + place.curves->size();
  if (size + line.size() + Curves::max_bytes_of_line < limit_ / 4 * 3) {
    // The curves first: the member sends a line again that the file lacks after a kill between the two.
    add_to_curves(place, parsed);
    return append_to(*place.metrics, line);
  }
  if (!std::exchange(place.metrics_are_full, true))
    say_(
        fmt::format("no more metrics of {} are gathered, because run.gather_limit is {} bytes; its own "
                    "metrics.jsonl has them all",
                    member, limit_));
}

void GatheredFolders::append_audit(Place& place, const std::string& member, const std::string& line) {
  if (!place.audit) {
    place.audit = std::make_unique<AppendFile>(place.folder / audit_file, say_);
    if (place.audit->size() > 0)
      append_to(*place.audit, "");  // a killed coordinator may have left half a line
  }
  if (is_known(place.known_audit, line)) return;
  // Nothing after the first record that has no room, however short: an audit would miss the one between.
  if (!place.audit_is_full && place.audit->size() + line.size() < limit_)
    return append_to(*place.audit, line);
  if (!std::exchange(place.audit_is_full, true))
    say_(
        fmt::format("no more audit records of {} are gathered, because run.gather_limit is {} bytes; its own "
                    "{} has them all",
                    member, limit_, audit_file));
}

void GatheredFolders::add_to_curves(Place& place, const nlohmann::ordered_json& line) {
  const auto before = place.curves->size();
  place.curves->add(line);
  taken_ += place.curves->size() - before;
}

void GatheredFolders::append_log(Place& place, const std::string& line) {
  if (place.log->size() + line.size() >= limit_ / 8) {
    const auto file = place.folder / log_name, old = place.folder / old_log_name;
    place.log.reset();
    taken_ -= std::min(taken_, size_of(old));
    fs::rename(file, old);
    place.log = std::make_unique<AppendFile>(file, say_);
  }
  append_to(*place.log, line);
}

void GatheredFolders::append_to(AppendFile& file, const std::string& line) {
  const auto before = file.size();
  file.append(line + '\n');
  taken_ += file.size() - before;
}

GatheredFolders::Place GatheredFolders::open(const std::string& member, std::uint64_t incarnation,
                                             Place* before) {
  check_member_name("a member", member);  // the name becomes part of a path
  const auto folder = run_ / member;
  Place place;
  place.incarnation = incarnation;
  place.folder = folder;
  if (is_worked_in(folder)) return place;
  fs::create_directories(folder);
  const auto metrics = folder / metrics_name;
  if (fresh_ && before == nullptr) {
    for (const auto* file : {metrics_name, log_name, audit_file}) make_room(folder / file);
    set_event_files_aside(folder);
  }
  if (before == nullptr) {
    place.known = known_lines(metrics);
    place.known_audit = known_lines(folder / audit_file);
  }
  place.curves = before != nullptr && before->curves ? std::move(before->curves)
                                                     : std::make_unique<Curves>(folder, metrics, say_);
  place.curves->begin_again();
  place.metrics = std::make_unique<AppendFile>(metrics, say_);
  place.log = std::make_unique<AppendFile>(folder / log_name, say_);
  return place;
}

}  // namespace isthmus::app
