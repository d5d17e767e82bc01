#include "cli/help/completion.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <vector>

#include "cli/files/config_command.h"
#include "cli/help/help_command.h"
#include "command_line/help_text.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {
namespace {

using Words = std::vector<std::string>;

// Both shells use these tables. `verb` is the path of the verbs typed so far; `out` gets the words that may
// follow.

std::string joined(const Words& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

/// The values in "{a,b}".
Words choices_of(const CLI::Option& option) {
  const auto type = option.get_type_name();
  const auto begin = type.find('{'), end = type.find('}');
  Words out;
  if (begin == std::string::npos || end == std::string::npos) return out;
  for (std::size_t at = begin + 1; at < end;) {
    const auto comma = std::min(type.find(',', at), end);
    out.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

/// "pattern) out='...' ;;"
std::string branch(const std::string& pattern, const Words& words) {
  return words.empty() ? std::string() : fmt::format("    \"{}\") out=\"{}\" ;;\n", pattern, joined(words));
}

void collect_parts(CLI::App& app, const std::string& path, std::string& out) {
  Words names;
  const auto parts = app.get_subcommands([](const CLI::App* part) { return !part->get_group().empty(); });
  for (const auto* part : parts) names.push_back(part->get_name());
  out += branch(path, names);
  for (auto* part : parts)
    collect_parts(*part, path.empty() ? part->get_name() : path + " " + part->get_name(), out);
}

/// Verbs that may follow a path of verbs.
std::string parts_cases(CLI::App& root) {
  std::string out;
  collect_parts(root, "", out);
  return out;
}

std::string option_cases(CLI::App& root) {
  std::string out;
  for (const auto& verb : verbs_of(root)) {
    Words names;
    for (const auto* option : options_of(*verb.app)) {
      if (!is_positional(*option)) names.push_back(shown_name(*option));
    }
    out += branch(verb.path, names);
  }
  return out;
}

/// Values of options and positionals that have a fixed choice. For all others the shell offers files.
std::string value_cases(CLI::App& root) {
  std::string out;
  for (const auto& verb : verbs_of(root)) {
    for (const auto* option : options_of(*verb.app)) {
      const auto before = is_positional(*option) ? verb.path : verb.path + " " + shown_name(*option);
      out += branch(before, choices_of(*option));
    }
  }
  return out + branch("config --explain", config_keys());
}

std::string keys_with_equals() {
  std::string out;
  for (const auto& key : config_keys()) out += (out.empty() ? "" : " ") + key + "=";
  return out;
}

std::string key_cases() {
  Experiment experiment;
  std::string out;
  for (const auto& item : config::list(experiment)) {
    out += branch(item.key, item.choices);
  }
  return out;
}

/// A shell function that sets `out` for its argument.
std::string function(std::string_view name, const std::string& cases) {
  return fmt::format("{}() {{\n  out=\n  case \"$1\" in\n{}  esac\n}}\n", name, cases);
}

std::string tables(CLI::App& root) {
  return function("_isthmus_parts", parts_cases(root)) + function("_isthmus_options", option_cases(root)) +
         function("_isthmus_values", value_cases(root)) + function("_isthmus_key", key_cases()) +
         fmt::format("_isthmus_keys=\"{}\"\n", keys_with_equals());
}

// bash splits words at `=`: "--set", "outer.codec", "=", "in".
constexpr std::string_view bash_rest = R"(_isthmus() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' out='' word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    _isthmus_parts "$verb"
    for word in $out; do
      [ "$word" != "${COMP_WORDS[i]}" ] || verb="${verb:+$verb }$word"
    done
  done
  COMPREPLY=()
  if [ "$cur" = "=" ]; then
    prev="=" cur='' i=$((COMP_CWORD - 1))
  else
    i=$((COMP_CWORD - 2))
  fi
  if [ "$prev" = "=" ]; then
    _isthmus_key "${COMP_WORDS[i]}"
  elif [ "$prev" = "--set" ]; then
    out=$_isthmus_keys
    compopt -o nospace
  elif [ "${cur:0:1}" = "-" ]; then
    _isthmus_options "$verb"
  else
    _isthmus_values "$verb $prev"
    if [ -z "$out" ] && [ "${prev:0:1}" != "-" ]; then
      _isthmus_values "$verb"
      word=$out
      _isthmus_parts "$verb"
      out="$out $word"
    fi
  fi
  mapfile -t COMPREPLY < <(compgen -W "$out" -- "$cur")
}
complete -o default -F _isthmus isthmus isthmus-coordinator
)";

constexpr std::string_view zsh_rest = R"(_isthmus() {
  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} verb='' out='' word='' i
  for ((i = 2; i < CURRENT; i++)); do
    _isthmus_parts "$verb"
    for word in ${=out}; do
      [[ $word != ${words[i]} ]] || verb="${verb:+$verb }$word"
    done
  done
  out=''
  if [[ $prev == --set && $cur == *=* ]]; then
    _isthmus_key "${cur%%=*}"
    compadd -P "${cur%%=*}=" -- ${=out}
  elif [[ $prev == --set ]]; then
    compadd -S '' -- ${=_isthmus_keys}
  elif [[ $cur == -* ]]; then
    _isthmus_options "$verb"
    compadd -- ${=out}
  else
    _isthmus_values "$verb $prev"
    if [[ -z $out && $prev != -* ]]; then
      _isthmus_values "$verb"
      word=$out
      _isthmus_parts "$verb"
      out="$out $word"
    fi
    [[ -z ${=out} ]] || compadd -- ${=out}
    _files
  fi
}
compdef _isthmus isthmus isthmus-coordinator
)";

std::string script(CLI::App& root, const std::string& shell) {
  const bool bash = shell == "bash";
  return fmt::format("{}# made by `isthmus completion {}`\n{}{}",
                     bash ? "" : "#compdef isthmus isthmus-coordinator\n", shell, tables(root),
                     bash ? bash_rest : zsh_rest);
}

}  // namespace

void add_completion(CommandLine& commands) {
  const auto shell = std::make_shared<std::string>();
  auto* verb = commands.app().add_subcommand(
      "completion", "print a script that completes verbs, options and keys in a shell");
  verb->add_option("shell", *shell, "shell to generate completions for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  verb->footer("Example: isthmus completion bash");
  commands.on(*verb, [&root = commands.app(), shell] {
    fmt::print("{}", script(root, *shell));
    return 0;
  });
}

}  // namespace isthmus::app
