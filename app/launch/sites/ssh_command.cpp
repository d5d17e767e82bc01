#include "launch/sites/ssh_command.h"

#include <fmt/format.h>

#include "run/process/joined.h"

namespace isthmus::app {

std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string path_word(const std::string& path) {
  return path.starts_with("~/") ? "\"$HOME\"/" + shell_word(path.substr(2)) : shell_word(path);
}

std::string export_lines(const LauncherConfig& launcher) {
  std::string lines;
  for (const auto& [name, value] : launcher.environment)
    lines += fmt::format("export {}={}\n", name, shell_word(value));
  return lines;
}

std::vector<std::string> ssh_command(const LauncherConfig& launcher, const AgentOptions& agent) {
  return ssh_to_run(launcher, tether_script(launcher, agent));
}

std::vector<std::string> ssh_to_run(const LauncherConfig& launcher, const std::string& script) {
  // ssh uses the first of several values, so the config cannot override the first three.
  std::vector<std::string> command = {"ssh", "-T", "-a", "-x"};
  const auto option = [&](const std::string& text) { command.insert(command.end(), {"-o", text}); };
  for (const auto* fixed : {"BatchMode=yes", "StrictHostKeyChecking=yes", "ControlMaster=no"}) option(fixed);
  for (const auto& text : launcher.options) option(text);
  for (const auto* usual :
       {"ConnectTimeout=20", "ServerAliveInterval=5", "ServerAliveCountMax=4", "ClearAllForwardings=yes"})
    option(usual);
  if (launcher.port > 0) command.insert(command.end(), {"-p", std::to_string(launcher.port)});
  if (!launcher.identity.empty()) {
    option("IdentitiesOnly=yes");
    command.insert(command.end(), {"-i", launcher.identity});
  }
  command.insert(command.end(), {"--", launcher.ssh, "exec /bin/sh -c " + shell_word(script)});
  return command;
}

std::string program_script(const LauncherConfig& launcher, const std::vector<std::string>& arguments) {
  auto script = export_lines(launcher);
  for (const auto& line : launcher.setup) {
    script += fmt::format("{{ {}\n}} || {{ echo {} >&2; exit 3; }}\n", line,
                          shell_word("this set-up line failed: " + line));
  }
  script += fmt::format("program={}\n", path_word(launcher.program));
  script +=
      "command -v \"$program\" >/dev/null 2>&1 || { echo \"there is no program $program\" >&2; exit 3; }\n";
  return script + "exec \"$program\" " + joined(arguments, " ");
}

std::string tether_script(const LauncherConfig& launcher, const AgentOptions& agent) {
  std::vector<std::string> words;
  add_tether_words(words, path_word(launcher.folder),
                   {shell_word(agent.run), shell_word(agent.site), agent.silence, agent.grace});
  return program_script(launcher, words);
}

}  // namespace isthmus::app
