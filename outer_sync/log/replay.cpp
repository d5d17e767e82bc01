#include "isthmus/outer_sync/log/replay.h"

#include <limits>
#include <span>

#include "isthmus/outer_sync/log/log_reader.h"

namespace isthmus::outer_sync::log {

using protocol::Round;

std::uint64_t Replayed::rounds() const {
  std::uint64_t sum = 0;
  for (const auto& fragment : fragments) sum += fragment.state.round - fragment.first;
  return sum;
}

Replayed replay(const std::filesystem::path& folder, std::optional<Round> until) {
  const auto last = until.value_or(std::numeric_limits<Round>::max());
  const LogReader log(folder);
  Replayed run;
  run.header = log.header();
  const std::vector<Round> from(run.header.fragments.size(), last);
  const auto layout = log.layout_from(from);
  run.parameters.assign(layout.buffer_size(), 0.0F);
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    const auto& range = layout.fragment(p);
    auto fragment = log.open(layout, p, last, std::span(run.parameters).subspan(range.begin, range.size));
    while (fragment.state().round < last && fragment.next()) {
    }
    run.fragments.push_back({fragment.first(), fragment.state(), fragment.torn()});
  }
  run.global_hash = hash_of(std::as_bytes(std::span(run.parameters)));
  return run;
}

}  // namespace isthmus::outer_sync::log
