#include "cli/help/help_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <sstream>

#include "command_line/help_text.h"
#include "command_line/mistakes.h"
#include "command_line/wrapped_text.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "run/metrics/metric_table.h"
#include "run/output/exit_codes.h"

namespace isthmus::app {
namespace {

constexpr std::string_view example_begin = "Example: ";

bool is_shown(const CLI::App* app) { return !app->get_group().empty(); }

void collect(CLI::App& app, const std::string& path, const std::string& group, std::vector<Verb>& out) {
  const auto parts = app.get_subcommands([](CLI::App* part) { return is_shown(part); });
  for (auto* part : parts) {
    if (path.empty())
      collect(*part, part->get_name(), part->get_group(), out);
    else
      collect(*part, path + " " + part->get_name(), group, out);
  }
  // A verb that needs no subcommand does something itself.
  const bool stands_alone = parts.empty() || app.get_require_subcommand_min() == 0;
  if (!path.empty() && stands_alone) out.push_back({path, group, &app});
}

std::string example_of(const CLI::App& verb) {
  const auto footer = verb.get_footer();
  const auto begin = footer.find(example_begin);
  return begin == std::string::npos ? std::string() : footer.substr(begin + example_begin.size());
}

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string usage(const Verb& verb) {
  auto line = "isthmus " + verb.path;
  for (const auto* option : options_of(*verb.app)) {
    if (!is_positional(*option) && option->get_required())
      line += " " + shown_name(*option) + " " + shown_value(*option);
  }
  line += " [OPTIONS]";
  const auto arguments = positionals_of(*verb.app);
  return arguments.empty() ? line : line + " " + arguments;
}

std::string option_rows(const CLI::App& verb) {
  std::string out;
  for (const auto* option : options_of(verb)) {
    if (option == verb.get_help_ptr()) continue;
    out += fmt::format("| `{}` | {} | {} | {}{} |\n", shown_name(*option), cell(shown_value(*option)),
                       cell(option->get_default_str()), cell(option->get_description()),
                       option->get_required() ? " (required)" : "");
  }
  return out;
}

std::string markdown_of(CLI::App& root) {
  std::string out =
      "# Command line\n\n"
      "This page is the output of `isthmus help --markdown`: all verbs with their options. `isthmus VERB "
      "--help` shows the options of one verb, and `isthmus completion bash` prints a script that completes "
      "them in the shell. With `--json` a verb prints one JSON document and nothing else on standard output, "
      "and messages on standard error; if it fails, it prints no document. [config.md](config.md) lists the "
      "config keys that `--set` accepts.\n\n"
      "## Exit status\n| status | | meaning |\n| --- | --- | --- |\n";
  for (const auto& [status, name, meaning] : exit_codes)
    out += fmt::format("| {} | {} | {} |\n", status, name, meaning);
  std::string group;
  for (const auto& verb : verbs_of(root)) {
    if (verb.group != group) out += fmt::format("\n## {}\n", group = verb.group);
    const auto what = verb.app->get_description();
    out += fmt::format("\n### isthmus {}\n{}{}\n\n    {}\n", verb.path, what, what.ends_with('?') ? "" : ".",
                       usage(verb));
    if (const auto rows = option_rows(*verb.app); !rows.empty())
      out += "\n| option | value | default | meaning |\n| --- | --- | --- | --- |\n" + rows;
    out += fmt::format("\nExample: `{}`\n", example_of(*verb.app));
  }
  return out;
}

/// Checks that each verb's help fits the terminal, and has an example that this command line accepts. Returns
/// the exit status.
int check_examples(CLI::App& root) {
  int wrong = 0;
  const auto complain = [&](const Verb& verb, const std::string& what) {
    say_error(fmt::format("isthmus {}: {}", verb.path, what));
    ++wrong;
  };
  const auto check_width = [&](const Verb& verb, const std::string& help) {
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      if (line.size() > terminal_columns)
        complain(verb, "its help has a line of more than 80 columns: " + line);
    }
  };
  check_width({"", "", &root}, root.help());
  const auto verbs = verbs_of(root);
  for (const auto& verb : verbs) {
    const auto example = example_of(*verb.app);
    const auto begin = "isthmus " + verb.path;
    if (!example.starts_with(begin)) {
      complain(verb, fmt::format("its footer has no example; expected \"{}{} ...\"", example_begin, begin));
      continue;
    }
    check_width(verb, verb.app->help());
    try {
      root.parse(example.substr(example.find(' ') + 1));
    } catch (const CLI::ParseError& error) {
      complain(verb, fmt::format("cannot read its example \"{}\": {}", example, error.what()));
    }
  }
  fmt::print("{} verbs, {} wrong\n", verbs.size(), wrong);
  return wrong == 0 ? 0 : static_cast<int>(ErrorKind::config) + 2;
}

/// The text that `isthmus VERB --help` prints.
std::string help_of(CLI::App& root, const std::vector<std::string>& words) {
  // App::help() would print the help of the verb that was given: of `help` itself.
  if (words.empty())
    return root.get_formatter()->make_help(&root, root.get_name(), CLI::AppFormatMode::Normal);
  auto* app = &root;
  for (const auto& word : words) {
    refuse_unknown_verb(*app, word);
    app = app->get_subcommand(word);
  }
  return app->help();
}

}  // namespace

std::vector<Verb> verbs_of(CLI::App& root) {
  std::vector<Verb> out;
  collect(root, {}, {}, out);
  return out;
}

std::vector<const CLI::Option*> options_of(const CLI::App& verb) {
  return verb.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

void add_help(CommandLine& commands) {
  struct Flags {
    std::vector<std::string> verb;  ///< the words of a verb: "data", "show"
    bool markdown = false, metrics = false, check = false;
  };
  const auto flags = std::make_shared<Flags>();
  auto* verb = commands.app().add_subcommand("help", "show help for a verb, or list all verbs");
  verb->add_option("verb", flags->verb,
                   "verb to explain, for example data show; without it, the list of verbs");
  verb->add_flag("--markdown", flags->markdown, "print all verbs and options in Markdown, as in docs/cli.md");
  verb->add_flag("--metrics", flags->metrics,
                 "print the metrics for Prometheus in Markdown, as in docs/metrics.md");
  verb->add_flag("--check", flags->check, "check that all examples are valid command lines")->group("");
  verb->footer("Example: isthmus help data show");
  commands.on(*verb, [&root = commands.app(), flags] {
    if (flags->check) return check_examples(root);
    const auto text = flags->metrics    ? metrics_reference()
                      : flags->markdown ? markdown_of(root)
                                        : help_of(root, flags->verb);
    fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
    return 0;
  });
}

}  // namespace isthmus::app
