#pragma once
// `isthmus help`: what the command line says of itself. All of it is made from the definitions of the verbs,
// so that docs/cli.md cannot tell otherwise than the binary.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace isthmus::app {

struct HelpRequest {
  std::vector<std::string> verb;  ///< words of one: "data", "show"
  bool markdown = false, metrics = false, check = false;
};

/// "Exit status: 0 done, 2 config, ...", for the end of --help.
[[nodiscard]] std::string exit_status_line();

/// `root` is the whole command line. Exit status.
[[nodiscard]] int run_help(CLI::App& root, const HelpRequest& request);

/// A verb that people may give, with the words that lead to it.
struct Verb {
  std::string path;  ///< "data show"
  CLI::App* app;
};
/// Verbs that do something themselves, in the order in which they were added; not those that only hold
/// others, nor hidden ones.
[[nodiscard]] std::vector<Verb> verbs_of(CLI::App& root);
/// Those options of a verb that --help shows.
[[nodiscard]] std::vector<const CLI::Option*> options_of(const CLI::App& verb);

}  // namespace isthmus::app
