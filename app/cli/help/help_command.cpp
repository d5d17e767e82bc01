#include "cli/help/help_command.h"

#include <fmt/format.h>

#include <memory>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "run/metrics/metric_table.h"
#include "run/output/exit_codes.h"

namespace isthmus::app {
namespace {

constexpr std::string_view example_begin = "Example: ";

bool shown(const CLI::App* app) { return !app->get_group().empty(); }

void collect(CLI::App& app, const std::string& path, std::vector<Verb>& out) {
  const auto parts = app.get_subcommands([](CLI::App* part) { return shown(part); });
  for (auto* part : parts)
    collect(*part, path.empty() ? part->get_name() : path + " " + part->get_name(), out);
  // A verb that needs no subcommand does something itself.
  const bool stands_alone = parts.empty() || app.get_require_subcommand_min() == 0;
  if (!path.empty() && stands_alone) out.push_back({path, &app});
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

/// Shortens "INT:INT in [1 - 64]" to "INT in [1 - 64]".
std::string value_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const auto type = option.get_type_name();
  const auto colon = type.find(':');
  return colon == std::string::npos ? type : type.substr(colon + 1);
}

std::string usage(const Verb& verb) {
  auto line = "isthmus " + verb.path;
  const auto options = options_of(*verb.app);
  for (const auto* option : options) {
    if (option->nonpositional() && option->get_required())
      line += " " + option->get_name(false, false) + " " + option->get_type_name();
  }
  line += " [OPTIONS]";
  for (const auto* option : options) {
    if (option->nonpositional()) continue;
    auto name = option->get_name(true);
    if (option->get_items_expected_max() > 1) name += "...";
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line;
}

std::string option_rows(const CLI::App& verb) {
  std::string out;
  for (const auto* option : options_of(verb)) {
    if (option == verb.get_help_ptr()) continue;
    out += fmt::format("| `{}` | {} | {} | {}{} |\n",
                       option->get_name(option->nonpositional() ? false : true, true),
                       cell(value_of(*option)), cell(option->get_default_str()),
                       cell(option->get_description()), option->get_required() ? " (required)" : "");
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
  for (const auto& verb : verbs_of(root)) {
    const auto what = verb.app->get_description();
    out += fmt::format("\n## isthmus {}\n{}{}\n\n    {}\n", verb.path, what, what.ends_with('?') ? "" : ".",
                       usage(verb));
    if (const auto rows = option_rows(*verb.app); !rows.empty())
      out += "\n| option | value | default | meaning |\n| --- | --- | --- | --- |\n" + rows;
    out += fmt::format("\nExample: `{}`\n", example_of(*verb.app));
  }
  return out;
}

/// Checks that each verb has an example that this command line accepts. Returns the exit status.
int check_examples(CLI::App& root) {
  int wrong = 0;
  const auto complain = [&](const Verb& verb, const std::string& what) {
    say_error(fmt::format("isthmus {}: {}", verb.path, what));
    ++wrong;
  };
  const auto verbs = verbs_of(root);
  for (const auto& verb : verbs) {
    const auto example = example_of(*verb.app);
    const auto begin = "isthmus " + verb.path;
    if (!example.starts_with(begin)) {
      complain(verb, fmt::format("its footer has no example; expected \"{}{} ...\"", example_begin, begin));
      continue;
    }
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
  auto* app = &root;
  std::string before;
  for (const auto& word : words) {
    const auto parts = app->get_subcommands([&](const CLI::App* part) { return part->get_name() == word; });
    if (parts.empty())
      throw Error(ErrorKind::config,
                  fmt::format("unknown verb '{}'; `isthmus --help` lists all verbs", word));
    before += before.empty() ? "isthmus" : " " + app->get_name();
    app = parts.front();
  }
  return app->help(before);
}

}  // namespace

std::vector<Verb> verbs_of(CLI::App& root) {
  std::vector<Verb> out;
  collect(root, {}, out);
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
  verb->add_option("verb", flags->verb, "verb to explain; all by default");
  verb->add_flag("--markdown", flags->markdown, "all verbs and options in Markdown (docs/cli.md)");
  verb->add_flag("--metrics", flags->metrics, "the metrics for Prometheus in Markdown (docs/metrics.md)");
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
