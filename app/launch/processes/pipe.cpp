#include "launch/processes/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::app {

Pipe::Pipe() {
  if (pipe2(ends_, O_CLOEXEC) != 0) data_error(std::string("cannot make a pipe: ") + std::strerror(errno));
}

Pipe::~Pipe() {
  for (const int end : ends_) {
    if (end >= 0) close(end);
  }
}

void Pipe::close_writer() { close(std::exchange(ends_[1], -1)); }

int Pipe::take(int which) {
  make_nonblocking(ends_[which]);
  return std::exchange(ends_[which], -1);
}

std::string Pipe::read_all() const {
  std::string text;
  char bytes[64];
  for (ssize_t n = 0; (n = read(ends_[0], bytes, sizeof bytes)) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) text.append(bytes, static_cast<std::size_t>(n));
  }
  return text;
}

void make_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

std::vector<char*> exec_arguments(std::vector<std::string>& words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return arguments;
}

}  // namespace isthmus::app
