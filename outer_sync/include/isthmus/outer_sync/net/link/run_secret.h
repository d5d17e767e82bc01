#pragma once
// Creates the secret of a run that stays on one machine and has no certificates (`network.secret`).

#include <filesystem>
#include <string>

namespace isthmus::outer_sync {

/// Content of a secret file: 32 random bytes as hexadecimal digits.
[[nodiscard]] std::string new_run_secret();
/// Writes a new secret, readable by this account only, unless the file exists. Throws Error(data) with the
/// file's name.
void make_run_secret(const std::filesystem::path& file);

}  // namespace isthmus::outer_sync
