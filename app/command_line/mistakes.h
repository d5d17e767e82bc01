#pragma once
// Messages about command lines with a mistake: an unknown verb or option, or something that is missing.

#include <span>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace isthmus::app {

/// Throws Error(config), with the nearest verb, if the word is not a verb of `app`.
void refuse_unknown_verb(const CLI::App& app, const std::string& word);
/// The same for every word that stands for a verb. `words`: the arguments after the program's name.
void refuse_unknown_verbs(const CLI::App& root, std::span<char* const> words);

/// The innermost verb that the command line names, even if CLI11 refused the rest of it.
[[nodiscard]] const CLI::App& named_verb(const CLI::App& root);

/// The message for a command line that CLI11 refused, with the option that was probably meant.
[[nodiscard]] std::string message_of(const CLI::App& root, const CLI::ParseError& error);

}  // namespace isthmus::app
