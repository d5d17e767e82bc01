#include "doctor/ranks_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/net/coordinator/preflight.h"
#include "run/output/version.h"
#include "run/process/process.h"
#include "run/process/scratch_folder.h"

namespace isthmus::app {

namespace {

constexpr const char* row = "ranks";
constexpr auto longest = std::chrono::seconds(25);

/// The value of a line such as "commit     24aea8c788e7"; empty if the file has no such line.
std::string value_of(const std::string& name, const std::filesystem::path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name + " ")) continue;
    const auto value = line.find_first_not_of(' ', name.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

void judge_build(const std::string& machine, const std::string& command, std::optional<int> status,
                 const std::filesystem::path& output, MachineReport& report) {
  const auto by_hand = "try it by hand on this machine: " + command;
  if (!status)
    return report.add({row, Level::fail,
                       fmt::format("{} has not answered `{}` within {} s", machine, command, longest.count()),
                       by_hand});
  const auto there = value_of("commit", output);
  if (*status != 0 || there.empty()) {
    const auto last = tail_of(output, 3);
    return report.add({row, Level::fail,
                       fmt::format("{}: `{}` ended with exit status {}{}", machine, command, *status,
                                   last.empty() ? "" : ": " + last),
                       by_hand});
  }
  if (there != commit())
    return report.add(
        {row, Level::fail,
         fmt::format("{} has isthmus of commit {}, and this machine of commit {}", machine, there, commit()),
         "install the same build on both"});
  report.add({row, Level::ok, machine + " has this build"});
}

}  // namespace

void check_ranks_of(const DoctorPlace& place, MachineReport& report) {
  const auto& replica = place.experiment.replica;
  auto machines = replica.machine_list();
  if (machines.empty()) return;
  outer_sync::check_listen_address(outer_sync::Address{machines.front(), 0}.to_string(), "replica.machines");
  machines.erase(machines.begin());

  const ScratchFolder folder("doctor");
  struct Asked {
    std::string machine, command;
    std::filesystem::path output;
    Process process;
  };
  std::list<Asked> asked;
  for (const auto& machine : machines) {
    auto command = replica.command_on(machine);
    command.emplace_back("--version");
    const auto output = folder.path() / std::to_string(asked.size());
    auto words = fmt::format("{}", fmt::join(command, " "));
    asked.push_back({machine, std::move(words), output,
                     Process({.name = machine, .command = std::move(command), .log = output})});
  }
  const auto until = std::chrono::steady_clock::now() + longest;
  for (auto& one : asked) {
    while (one.process.running() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    judge_build(one.machine, one.command, one.process.poll(), one.output, report);
  }
}

}  // namespace isthmus::app
