#include "command_line/mistakes.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string_view>
#include <vector>

#include "command_line/help_text.h"
#include "isthmus/base/error.h"
#include "isthmus/base/near_word.h"
#include "isthmus/base/text.h"

namespace isthmus::app {

namespace {

/// Text from the command line: one line, of bounded length.
std::string bounded(const std::string& word) { return printable(word, 80); }

std::vector<const CLI::App*> verbs_below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* verb_of(const CLI::App& app, const std::string& name) {
  const auto named = app.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == name; });
  return named.empty() ? nullptr : named.front();
}

/// "launch", or "ctl status" for "status"; empty if no verb is near.
std::string near_verb(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names, paths;
  const auto add = [&](const CLI::App& verb, const std::string& before) {
    if (verb.get_group().empty()) return;
    names.push_back(verb.get_name());
    paths.push_back(before + verb.get_name());
  };
  for (const auto* verb : verbs_below(app)) add(*verb, "");
  for (const auto* verb : verbs_below(app)) {
    for (const auto* part : verbs_below(*verb)) add(*part, verb->get_name() + " ");
  }
  const auto near = near_word(word, names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == near) return paths[i];
  }
  return {};
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? std::string() : fmt::format("; did you mean '{}'?", name);
}

std::string unknown(const char* what, const std::string& word, const std::string& near,
                    const CLI::App& verb) {
  return fmt::format("unknown {} '{}'{} `{} --help` lists all", what, bounded(word),
                     near.empty() ? ";" : did_you_mean(near), path_of(verb));
}

std::string near_option(const CLI::App& verb, const std::string& word) {
  std::vector<std::string> names;
  for (const auto* option : verb.get_options({})) {
    const auto name = shown_name(*option);
    if (!option->get_group().empty() && name.starts_with('-')) names.push_back(name);
  }
  return near_word(word, names);
}

/// "config and --name": what the verb requires and the command line lacks.
std::string missing_in(const CLI::App& verb) {
  std::string out;
  const auto lacks = [](const CLI::Option* option) { return option->get_required() && option->count() == 0; };
  for (const auto* option : verb.get_options(lacks))
    out += (out.empty() ? "" : " and ") + shown_name(*option);
  return out;
}

}  // namespace

void refuse_unknown_verb(const CLI::App& app, const std::string& word) {
  if (verb_of(app, word) == nullptr)
    throw Error(ErrorKind::config, unknown("verb", word, near_verb(app, word), app));
}

void refuse_unknown_verbs(const CLI::App& root, std::span<char* const> words) {
  const auto* app = &root;
  for (const std::string word : words) {
    if (word.starts_with('-') || verbs_below(*app).empty()) return;
    refuse_unknown_verb(*app, word);
    app = verb_of(*app, word);
  }
}

const CLI::App& named_verb(const CLI::App& root) {
  const auto* verb = &root;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  return *verb;
}

std::string message_of(const CLI::App& root, const CLI::ParseError& error) {
  const auto& verb = named_verb(root);
  const auto rest = root.remaining(true);
  for (const auto& word : rest) {
    if (word.size() < 2 || word.front() != '-') continue;
    const auto option = word.substr(0, word.find('='));
    return unknown("option", option, near_option(verb, option), verb);
  }
  std::string problem = error.what();
  if (const auto missing = missing_in(verb);
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !missing.empty())
    problem = missing + (missing.find(" and ") == std::string::npos ? " is" : " are") + " required";
  else if (!rest.empty())
    problem = fmt::format("unexpected argument '{}'", bounded(rest.front()));
  return fmt::format("{}; `{} --help` shows the usage", printable(problem, 300), path_of(verb));
}

}  // namespace isthmus::app
