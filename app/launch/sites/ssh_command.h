#pragma once
// Commands for the shell of another machine, quoted so that the shell changes nothing in them.

#include <string>
#include <vector>

#include "launch/agent/tether.h"
#include "run/experiment/launcher_config.h"

namespace isthmus::app {

/// Quotes a text for a shell.
[[nodiscard]] std::string shell_word(const std::string& text);
/// "~/x" starts from the home folder; any other path is taken literally.
[[nodiscard]] std::string path_word(const std::string& path);
/// `export NAME=VALUE` for each environment variable of the launcher.
[[nodiscard]] std::string export_lines(const LauncherConfig& launcher);
/// The ssh command that runs a script at a site.
[[nodiscard]] std::vector<std::string> ssh_to_run(const LauncherConfig& launcher, const std::string& script);
/// The ssh command that connects to the site's agent.
[[nodiscard]] std::vector<std::string> ssh_command(const LauncherConfig& launcher, const AgentOptions& agent);
/// Script for the remote shell: environment, set-up lines, then isthmus with these arguments, quoted already.
[[nodiscard]] std::string program_script(const LauncherConfig& launcher,
                                         const std::vector<std::string>& arguments);
/// The same for `isthmus tether`.
[[nodiscard]] std::string tether_script(const LauncherConfig& launcher, const AgentOptions& agent);

}  // namespace isthmus::app
