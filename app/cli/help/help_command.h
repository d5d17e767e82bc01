#pragma once
// `isthmus help`: the help of the command line. It is generated from the definitions of the verbs, so that
// docs/cli.md always matches the binary.

#include <string>
#include <vector>

#include "command_line/command_line.h"

namespace isthmus::app {

void add_help(CommandLine& commands);

/// A verb that users can call, with the words that lead to it.
struct Verb {
  std::string path;   ///< "data show"
  std::string group;  ///< of `isthmus --help`
  CLI::App* app;
};
/// Verbs that do something themselves, in the order in which they were added. Leaves out hidden verbs, and
/// verbs that only hold others.
[[nodiscard]] std::vector<Verb> verbs_of(CLI::App& root);
/// The options of a verb that --help shows.
[[nodiscard]] std::vector<const CLI::Option*> options_of(const CLI::App& verb);

}  // namespace isthmus::app
