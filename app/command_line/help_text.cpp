#include "command_line/help_text.h"

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "command_line/wrapped_text.h"

namespace isthmus::app {

namespace {

constexpr std::size_t verb_margin = 15, option_margin = 25;
constexpr std::string_view example = "Example: ";

std::vector<const CLI::Option*> shown_options(const CLI::App& verb, bool positional) {
  return verb.get_options([positional](const CLI::Option* option) {
    return !option->get_group().empty() && is_positional(*option) == positional;
  });
}

/// The description, and what else the command line needs to know about the option.
std::string meaning_of(const CLI::Option& option) {
  auto meaning = option.get_description();
  if (option.get_required()) meaning += " (required)";
  if (const auto& value = option.get_default_str(); !value.empty()) meaning += " (default: " + value + ")";
  return meaning;
}

std::string options_text(const char* title, const std::vector<const CLI::Option*>& options) {
  if (options.empty()) return {};
  std::string out = "\n" + std::string(title) + ":\n";
  for (const auto* option : options) {
    auto label = "  " + (is_positional(*option) || option->get_snames().empty()
                             ? shown_name(*option)
                             : "-" + option->get_snames().front() + ", " + shown_name(*option));
    if (const auto value = shown_value(*option); !value.empty() && !is_positional(*option))
      label += " " + value;
    out += wrapped(label, meaning_of(*option), option_margin);
  }
  return out;
}

std::string verbs_text(const CLI::App& app) {
  std::string out, group;
  for (const auto* verb : app.get_subcommands([](const CLI::App* v) { return !v->get_group().empty(); })) {
    if (verb->get_group() != group) {
      group = verb->get_group();
      out += group == "Subcommands" ? "\nVerbs:\n" : "\n" + group + ":\n";
    }
    out += wrapped("  " + verb->get_name(), verb->get_description(), verb_margin);
  }
  return out;
}

/// An example is wrapped so that the shell still reads it as one command.
std::string footer_text(const std::string& footer) {
  const auto begin = footer.find(example);
  if (begin == std::string::npos) return footer.empty() ? "" : "\n" + wrapped("", footer, 0);
  const auto command = footer.substr(begin + example.size());
  return "\nExample:\n" + wrapped("", command, 2, " \\");
}

}  // namespace

std::string path_of(const CLI::App& verb) {
  if (const auto* parent = verb.get_parent(); parent != nullptr)
    return path_of(*parent) + " " + verb.get_name();
  return verb.get_name();
}

bool is_positional(const CLI::Option& option) { return option.get_positional(); }

std::string shown_name(const CLI::Option& option) {
  if (is_positional(option)) return option.get_name(true);
  return option.get_lnames().empty() ? option.get_name() : "--" + option.get_lnames().front();
}

std::string shown_value(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const auto type = option.get_type_name();
  const auto colon = type.find(':');  // "INT:INT in [1 - 64]"
  return colon == std::string::npos ? type : type.substr(colon + 1);
}

std::string positionals_of(const CLI::App& verb) {
  std::string out;
  for (const auto* option : shown_options(verb, true)) {
    auto name = shown_name(*option);
    if (option->get_items_expected_max() > 1) name += "...";
    out += (out.empty() ? "" : " ") + (option->get_required() ? name : "[" + name + "]");
  }
  return out;
}

std::string HelpText::make_help(const CLI::App* app, std::string /*name*/,
                                CLI::AppFormatMode /*mode*/) const {
  auto usage = path_of(*app);
  if (!shown_options(*app, false).empty()) usage += " [OPTIONS]";
  if (const auto arguments = positionals_of(*app); !arguments.empty()) usage += " " + arguments;
  const auto verbs = verbs_text(*app);
  if (!verbs.empty()) usage += app->get_require_subcommand_min() > 0 ? " VERB" : " [VERB]";
  return wrapped("", app->get_description(), 0) + wrapped("", "Usage: " + usage, 0) +
         options_text("Arguments", shown_options(*app, true)) +
         options_text("Options", shown_options(*app, false)) + verbs + footer_text(app->get_footer());
}

}  // namespace isthmus::app
