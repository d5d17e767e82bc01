#pragma once
// What a run was trained on, as each replica leaves it in its folder and `isthmus data ledger` reports it.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "isthmus/outer_sync/protocol/ledger.h"

namespace isthmus::app {

/// Replaces `file`, whole or not at all. `step` is the agreed one. Throws Error(data).
void write_ledger(const std::filesystem::path& file, std::uint64_t step,
                  const outer_sync::protocol::Ledger& ledger);

struct LedgerReport {
  std::string text;
  nlohmann::ordered_json json;
};
/// A table by track, and in words what of it was trained on twice, or not at all, in a run folder: of its
/// replicas' ledgers, which agree where they have the same rounds, the one that has come furthest. Throws
/// Error(data) naming the file where there is none, one cannot be read, or two differ.
[[nodiscard]] LedgerReport ledger_report(const std::filesystem::path& run_folder);

}  // namespace isthmus::app
