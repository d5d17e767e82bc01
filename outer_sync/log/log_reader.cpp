#include "isthmus/outer_sync/log/log_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/chain.h"
#include "records.h"

namespace isthmus::outer_sync::log {

namespace fs = std::filesystem;
using protocol::Round;

LoggedFragment::LoggedFragment(const fs::path& file, const LogHeader& header, const FragmentLayout& layout,
                               FragmentId fragment, std::span<float> theta)
    : header_(header),
      layout_(layout),
      fragment_(fragment),
      reader_(std::make_unique<RecordReader>(file, header, fragment)),
      theta_(theta),
      velocity_(theta.size()),
      local_(std::min<std::uint64_t>(layout.chunk_elements(), theta.size()), 0.0F) {
  const auto chunks = layout_.chunks_of(fragment_);
  places_ = {0};
  for (auto k = chunks.first; k < chunks.last; ++k)
    places_.push_back(places_.back() + quant::encoded_size(header_.codec, layout_.chunk(k).size));
  if (!reader_->next()) reader_->refuse("it has no snapshot");
  const auto body = reader_->body();
  const auto bytes = theta_.size_bytes();
  std::memcpy(theta_.data(), body.data(), bytes);
  std::memcpy(velocity_.data(), body.data() + bytes, bytes);
  first_ = reader_->head().round;
  state_ = {first_, reader_->head().chain};
}

LoggedFragment::~LoggedFragment() = default;
LoggedFragment::LoggedFragment(LoggedFragment&&) noexcept = default;

std::span<const std::byte> LoggedFragment::bytes_of(ChunkId chunk) const {
  const auto i = chunk - layout_.chunks_of(fragment_).first;
  return results_.subspan(places_[i], places_[i + 1] - places_[i]);
}

bool LoggedFragment::next() {
  if (!reader_->next()) return false;
  const auto& head = reader_->head();
  const auto body = reader_->body();
  RecordRule record;
  std::memcpy(&record, body.data(), sizeof record);
  const auto rule = rule_of(record);
  results_ = body.subspan(sizeof record);
  if (next_chain(state_.chain, fragment_, head.round, {&results_, 1}) != head.chain)
    refuse(head.round, "its results do not give the recorded chain hash");
  const auto chunks = layout_.chunks_of(fragment_);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto n = layout_.chunk(k).size;
    const auto at = layout_.place_in_fragment(k);
    if (!quant::decode_apply(header_.codec, bytes_of(k), rule, theta_.subspan(at, n),
                             std::span(velocity_).subspan(at, n), std::span(local_).first(n)))
      refuse(head.round, "the result of its chunk " + std::to_string(k) + " does not decode");
  }
  state_ = {head.round, head.chain};
  return true;
}

std::vector<protocol::SharedBytes> LoggedFragment::results() const {
  std::vector<protocol::SharedBytes> out;
  const auto chunks = layout_.chunks_of(fragment_);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto bytes = bytes_of(k);
    out.push_back(std::make_shared<const Bytes>(bytes.begin(), bytes.end()));
  }
  return out;
}

bool LoggedFragment::torn() const { return reader_->torn(); }

void LoggedFragment::refuse(Round round, const std::string& reason) const {
  throw Error(ErrorKind::divergence, "the log of fragment " + std::to_string(fragment_) +
                                         " is wrong in round " + std::to_string(round) + ": " + reason);
}

LogReader::LogReader(fs::path folder)
    : folder_(std::move(folder)), header_(read_header(folder_)), files_(fragment_files(folder_, header_)) {}

/// The newest file that begins at or before `from`.
const fs::path& LogReader::file_of(FragmentId fragment, Round from) const {
  const auto& files = files_.at(fragment);
  const auto at = std::ranges::find_if(files, [&](const auto& file) { return first_round(file) <= from; });
  if (at != files.end()) return *at;
  const auto what = "the log in " + folder_.string() + " has no file of fragment " + std::to_string(fragment);
  throw Error(ErrorKind::data, files.empty() ? what + "; the log was never started, or is incomplete"
                                             : what + " that begins at or before round " +
                                                   std::to_string(from) + "; the oldest begins at round " +
                                                   std::to_string(first_round(files.back())));
}

FragmentLayout LogReader::layout_from(std::span<const Round> from) const {
  for (FragmentId p = 0; p < header_.fragments.size(); ++p) static_cast<void>(file_of(p, from[p]));
  return {header_.fragments, header_.chunk_elements};
}

Round LogReader::last_round(FragmentId fragment, Round from) const {
  const auto& file = file_of(fragment, from);
  const auto snapshot = record_size(header_, fragment, RecordKind::snapshot);
  const auto size = std::max<std::uint64_t>(fs::file_size(file), snapshot);
  return first_round(file) + (size - snapshot) / record_size(header_, fragment, RecordKind::round);
}

LoggedFragment LogReader::open(const FragmentLayout& layout, FragmentId fragment, Round from,
                               std::span<float> theta) const {
  return {file_of(fragment, from), header_, layout, fragment, theta};
}

}  // namespace isthmus::outer_sync::log
