#include "isthmus/outer_sync/log/round_log.h"

#include <cassert>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "isthmus/base/error.h"
#include "log_writer.h"
#include "records.h"

namespace isthmus::outer_sync::log {
namespace {

namespace fs = std::filesystem;

SharedPart whole(const SharedValues& values) { return {std::as_bytes(std::span(*values)), values}; }

/// Throws with the first difference between two headers, and what to do about it.
[[noreturn]] void refuse_folder(const fs::path& folder, const LogHeader& there, const LogHeader& ours) {
  std::string what = "other settings of outer.*";
  if (there.run != ours.run) {
    what = "the run " + there.run;
  } else if (there.model != ours.model) {
    what = "another model";
  } else if (there.fragments != ours.fragments) {
    what = "another outer.num_fragments";
  }
  throw Error(ErrorKind::config, "the log in " + folder.string() + " belongs to " + what +
                                     "; move it away, or choose another folder");
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(ErrorKind::data, "cannot create " + folder.string() + ": " + error.message());
}

/// Files that a crash left incomplete, before they got their final name.
void remove_partial_files(const fs::path& folder) {
  std::vector<fs::path> partial;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == partial_suffix) partial.push_back(entry.path());
  }
  for (const auto& file : partial) remove_file(file);
}

/// Offset in the file after the record of this state; nullopt if the file lacks it.
std::optional<std::uint64_t> find(const fs::path& file, const LogHeader& header, FragmentId fragment,
                                  const protocol::FragmentState& state) {
  RecordReader reader(file, header, fragment);
  std::optional<std::uint64_t> end;
  while (reader.next()) {
    if (reader.head().round != state.round || reader.head().chain != state.chain) continue;
    // Only the record that the log continues from is read whole. The heads of the others must suffice:
    // reading a long log would take minutes.
    static_cast<void>(reader.body());
    end = reader.end();
  }
  return end;
}

}  // namespace

std::uint64_t RoundLog::min_budget(const LogHeader& header) {
  std::uint64_t sum = to_file(header).size();
  for (FragmentId p = 0; p < header.fragments.size(); ++p)
    sum += 2 * record_size(header, p, RecordKind::snapshot) + record_size(header, p, RecordKind::round);
  return sum;
}

RoundLog::RoundLog(fs::path folder, const LogHeader& header, std::uint64_t budget,
                   std::span<const protocol::FragmentState> now)
    : folder_(std::move(folder)),
      header_(header),
      seed_(seed_of(header)),
      fragments_(header.fragments.size()) {
  assert(problem_of(header).empty() && now.size() == fragments_.size());
  const auto least = min_budget(header_);
  if (budget < least) {
    throw Error(ErrorKind::config, "outer.log_budget is " + std::to_string(budget) +
                                       " bytes; expected at least " + std::to_string(least) +
                                       ": two snapshots and one round of each fragment");
  }
  make_folder(folder_);
  if (!fs::exists(folder_ / header_name)) {
    replace_file(folder_ / header_name, [&](const File& out) { out.write(to_file(header_)); });
  } else if (const auto there = read_header(folder_); there != header_) {
    refuse_folder(folder_, there, header_);
  }
  remove_partial_files(folder_);

  std::uint64_t elements = 0;
  for (const auto& fragment : header_.fragments) elements += fragment.size;
  const auto files = fragment_files(folder_, header_);
  for (FragmentId p = 0; p < fragments_.size(); ++p) {
    auto& fragment = fragments_[p];
    fragment.snapshot_size = record_size(header_, p, RecordKind::snapshot);
    fragment.round_size = record_size(header_, p, RecordKind::round);
    // The rest of the budget is divided among the fragments by size, rounded down.
    const auto part = static_cast<double>(header_.fragments[p].size) / static_cast<double>(elements);
    fragment.share = 2 * fragment.snapshot_size + fragment.round_size +
                     static_cast<std::uint64_t>(part * static_cast<double>(budget - least));
    take_over(p, files[p], now[p]);
  }
  writer_ = std::make_unique<LogWriter>(seed_);
}

RoundLog::~RoundLog() = default;

/// Continues the newest file that holds the run's state. Removes the others: their rounds are not this run's,
/// or a snapshot supersedes them.
void RoundLog::take_over(FragmentId p, const std::vector<fs::path>& files,
                         const protocol::FragmentState& now) {
  auto& fragment = fragments_[p];
  for (const auto& file : files) {
    const auto end = fragment.file.empty() ? find(file, header_, p, now) : std::nullopt;
    const bool fits = end && *end + fragment.snapshot_size <= fragment.share;
    if (!fits) {
      remove_file(file);
      continue;
    }
    const File log(file, File::Mode::append);
    log.truncate(*end);
    log.sync();
    fragment.file = file;
    fragment.used = *end;
    fragment.round = now.round;
  }
}

bool RoundLog::wants_snapshot(FragmentId p) const {
  const auto& fragment = fragments_.at(p);
  return fragment.file.empty() ||
         fragment.used + fragment.round_size + fragment.snapshot_size > fragment.share;
}

void RoundLog::snapshot(FragmentId p, const protocol::FragmentState& state, const SharedValues& theta,
                        const SharedValues& velocity) {
  auto& fragment = fragments_.at(p);
  assert(theta->size() == header_.fragments[p].size && velocity->size() == header_.fragments[p].size);
  assert(state.round >= header_.warmup_rounds);
  auto file = fragment_file(folder_, p, state.round);
  const RecordHead head{RecordKind::snapshot, p, state.round, body_size(header_, p, RecordKind::snapshot),
                        state.chain};
  writer_->push({file, head, {whole(theta), whole(velocity)}, std::exchange(fragment.file, file)});
  fragment.used = fragment.snapshot_size;
  fragment.round = state.round;
}

void RoundLog::append(FragmentId p, const protocol::FragmentState& state, const quant::OuterStep& rule,
                      std::span<const protocol::SharedBytes> results) {
  auto& fragment = fragments_.at(p);
  assert(!wants_snapshot(p) && state.round == fragment.round + 1);
  const RecordHead head{RecordKind::round, p, state.round, body_size(header_, p, RecordKind::round),
                        state.chain};
  const auto saved = std::make_shared<const RecordRule>(record_of(rule));
  std::vector<SharedPart> body = {{std::as_bytes(std::span(saved.get(), 1)), saved}};
  std::uint64_t length = sizeof(RecordRule);
  for (const auto& bytes : results) {
    body.push_back({*bytes, bytes});
    length += bytes->size();
  }
  assert(length == head.length);
  writer_->push({fragment.file, head, std::move(body), {}});
  fragment.used += fragment.round_size;
  fragment.round = state.round;
}

void RoundLog::flush() { writer_->flush(); }

}  // namespace isthmus::outer_sync::log
