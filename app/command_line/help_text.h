#pragma once
// The text of --help. `isthmus help --markdown` and the shell completion show the same names of options.

#include <CLI/CLI.hpp>
#include <string>

namespace isthmus::app {

/// "isthmus data show"
[[nodiscard]] std::string path_of(const CLI::App& verb);
/// Whether the option's value is written without its name.
[[nodiscard]] bool is_positional(const CLI::Option& option);
/// The name of a positional; "--out" for other options. Further long names are spellings of earlier releases:
/// accepted, and not shown.
[[nodiscard]] std::string shown_name(const CLI::Option& option);
/// "TEXT", "INT in [1 - 64]" or "{a,b}"; empty for a flag.
[[nodiscard]] std::string shown_value(const CLI::Option& option);
/// The arguments of the verb as in its usage: "config [names...]".
[[nodiscard]] std::string positionals_of(const CLI::App& verb);

/// Formats --help in 80 columns.
class HelpText : public CLI::FormatterBase {
 public:
  [[nodiscard]] std::string make_help(const CLI::App* app, std::string name,
                                      CLI::AppFormatMode mode) const override;
};

}  // namespace isthmus::app
