#pragma once
// Names of runs and members, which are also names of folders.

#include <string>

namespace isthmus::app {

/// Whether the name is valid for a folder: 1 to 64 letters, digits, '.', '_' and '-', not beginning with '.'.
[[nodiscard]] bool is_plain_name(const std::string& name);
/// Throws Error(config) naming `what` unless the name is valid for a folder: letters, digits, '.', '_' and
/// '-'.
void check_name(const std::string& what, const std::string& name);
/// The same for a member's name, which must also differ from the run's own files and folders next to it.
void check_member_name(const std::string& what, const std::string& name);

}  // namespace isthmus::app
