#pragma once
// Makes the secret of a run that stays on one machine and has no certificates (`network.secret`).

#include <filesystem>
#include <string>

namespace isthmus::outer_sync {

/// What such a file holds: 32 random bytes in hexadecimal digits.
[[nodiscard]] std::string new_run_secret();
/// Writes one, for this account alone, unless the file is there. Throws Error(data) naming the file.
void make_run_secret(const std::filesystem::path& file);

}  // namespace isthmus::outer_sync
