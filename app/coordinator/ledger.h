#pragma once
// The ledger of a run: which samples it was trained on. Each replica writes one into its folder, and `isthmus
// data ledger` reports them.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "isthmus/outer_sync/protocol/ledger.h"

namespace isthmus::app {

/// Replaces `file` atomically. `step` is the agreed step. Throws Error(data).
void write_ledger(const std::filesystem::path& file, std::uint64_t step,
                  const outer_sync::protocol::Ledger& ledger);

struct LedgerReport {
  std::string text;
  nlohmann::ordered_json json;
};
/// Reports the ledgers in a run folder: a table by track, and the samples that were trained on twice or not
/// at all. Uses the ledger that has come furthest; ledgers with the same rounds must be equal. Throws
/// Error(data) with the file if there is no ledger, one cannot be read, or two differ.
[[nodiscard]] LedgerReport ledger_report(const std::filesystem::path& run_folder);

}  // namespace isthmus::app
