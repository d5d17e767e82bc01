#include "isthmus/outer_sync/log/replay.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/chain.h"
#include "records.h"

namespace isthmus::outer_sync::log {
namespace {

namespace fs = std::filesystem;
using protocol::Round;

/// Rebuilds one fragment: a snapshot, then rounds.
class FragmentReplay {
 public:
  FragmentReplay(const LogHeader& header, const FragmentLayout& layout, FragmentId fragment,
                 std::span<float> theta)
      : header_(header),
        layout_(layout),
        fragment_(fragment),
        theta_(theta),
        velocity_(theta.size()),
        local_(std::min<std::uint64_t>(layout.chunk_elements(), theta.size()), 0.0F) {}

  [[nodiscard]] ReplayedFragment run(RecordReader& reader, Round until) {
    if (!reader.next()) reader.refuse("it has no snapshot");
    begin(reader.head(), reader.body());
    while (result_.state.round < until && reader.next()) apply(reader.head(), reader.body());
    result_.torn = reader.torn();
    return result_;
  }

 private:
  void begin(const RecordHead& head, std::span<const std::byte> body) {
    const auto bytes = theta_.size_bytes();
    std::memcpy(theta_.data(), body.data(), bytes);
    std::memcpy(velocity_.data(), body.data() + bytes, bytes);
    result_ = {head.round, {head.round, head.chain}, false};
  }

  void apply(const RecordHead& head, std::span<const std::byte> body) {
    RecordRule record;
    std::memcpy(&record, body.data(), sizeof record);
    const auto rule = rule_of(record);
    auto results = body.subspan(sizeof record);
    if (next_chain(result_.state.chain, fragment_, head.round, {&results, 1}) != head.chain)
      refuse(head.round, "its results do not give the recorded chain hash");
    const auto chunks = layout_.chunks_of(fragment_);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto n = layout_.chunk(k).size;
      const auto at = layout_.place_in_fragment(k);
      const auto size = quant::encoded_size(header_.codec, n);
      if (!quant::decode_apply(header_.codec, results.first(size), rule, theta_.subspan(at, n),
                               std::span(velocity_).subspan(at, n), std::span(local_).first(n)))
        refuse(head.round, "the result of its chunk " + std::to_string(k) + " does not decode");
      results = results.subspan(size);
    }
    result_.state = {head.round, head.chain};
  }

  [[noreturn]] void refuse(Round round, const std::string& reason) const {
    throw Error(ErrorKind::divergence, "the log of fragment " + std::to_string(fragment_) +
                                           " is wrong in round " + std::to_string(round) + ": " + reason);
  }

  const LogHeader& header_;
  const FragmentLayout& layout_;
  FragmentId fragment_;
  std::span<float> theta_;
  AlignedVector<float> velocity_;
  AlignedVector<float> local_;  ///< of one chunk; the pass needs local parameters, and a log has none
  ReplayedFragment result_;
};

/// The newest file that begins at or before `until`.
const fs::path& choose(const std::vector<fs::path>& files, const fs::path& folder, FragmentId fragment,
                       Round until) {
  const auto at = std::ranges::find_if(files, [&](const auto& file) { return first_round(file) <= until; });
  if (at != files.end()) return *at;
  const auto what = "the log in " + folder.string() + " has no file of fragment " + std::to_string(fragment);
  throw Error(ErrorKind::data, files.empty() ? what + "; the log was never started, or is incomplete"
                                             : what + " that begins at or before round " +
                                                   std::to_string(until) + "; the oldest begins at round " +
                                                   std::to_string(first_round(files.back())));
}

}  // namespace

std::uint64_t Replayed::rounds() const {
  std::uint64_t sum = 0;
  for (const auto& fragment : fragments) sum += fragment.state.round - fragment.first;
  return sum;
}

Replayed replay(const fs::path& folder, std::optional<Round> until) {
  const auto last = until.value_or(std::numeric_limits<Round>::max());
  Replayed run;
  run.header = read_header(folder);
  const auto fragment_count = static_cast<FragmentId>(run.header.fragments.size());
  const auto all_files = fragment_files(folder, run.header);
  std::vector<fs::path> files;
  for (FragmentId p = 0; p < fragment_count; ++p) files.push_back(choose(all_files[p], folder, p, last));
  // Allocate only now: every element in the header is backed by bytes of a file.
  const FragmentLayout layout(run.header.fragments, run.header.chunk_elements);
  run.parameters.assign(layout.buffer_size(), 0.0F);
  for (FragmentId p = 0; p < fragment_count; ++p) {
    const auto& fragment = layout.fragment(p);
    RecordReader reader(files[p], run.header, p);
    run.fragments.push_back(FragmentReplay(run.header, layout, p,
                                           std::span(run.parameters).subspan(fragment.begin, fragment.size))
                                .run(reader, last));
  }
  run.global_hash = hash_of(std::as_bytes(std::span(run.parameters)));
  return run;
}

}  // namespace isthmus::outer_sync::log
