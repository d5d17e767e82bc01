#pragma once
// `isthmus completion bash|zsh`: a shell script, generated from the definitions of verbs, options and keys.

#include <CLI/CLI.hpp>
#include <string>

namespace isthmus::app {

/// `root` is the whole command line, `shell` bash or zsh.
[[nodiscard]] std::string completion_script(CLI::App& root, const std::string& shell);

}  // namespace isthmus::app
