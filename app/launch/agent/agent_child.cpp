#include "launch/agent/agent_child.h"

#include <fcntl.h>
#include <unistd.h>

#include "isthmus/base/error.h"
#include "launch/processes/pipe.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

AgentChild::~AgentChild() {
  if (log >= 0) close(log);
  if (port >= 0) close(port);
}

void AgentChild::start() {
  std::filesystem::create_directories(folder());
  auto started = options;
  std::optional<Pipe> announced;
  if (coordinates) {
    announced.emplace();
    started.keep_fd = announced->writer();
    started.command.insert(started.command.end(), {"--announce-fd", std::to_string(announced->writer())});
    if (port >= 0) close(port);
    port = announced->take_reader();
  }
  metrics_before = bytes_in(metrics);
  const auto read_from = bytes_in(options.log);
  process = std::make_unique<Process>(started);
  if (log >= 0) return;  // reading continues at the same place
  log = open(options.log.c_str(), O_RDONLY | O_CLOEXEC);
  if (log >= 0) lseek(log, static_cast<off_t>(read_from), SEEK_SET);
}

std::uintmax_t bytes_in(const std::filesystem::path& file) {
  std::error_code no_file;
  const auto size = std::filesystem::file_size(file, no_file);
  return no_file ? 0 : size;
}

bool is_free(const std::filesystem::path& folder) {
  try {
    const FolderLock lock(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace isthmus::app
