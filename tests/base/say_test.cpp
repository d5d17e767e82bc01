#include "isthmus/base/say.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

#include "isthmus/base/progress.h"

namespace isthmus {
namespace {

/// Exit status of a child process that runs `succeeds`; it has its own descriptors.
int status_of_child(const std::function<bool()>& succeeds) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(succeeds() ? 0 : 1);
    } catch (...) {
      _exit(2);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Say, AFullDiskIsNoError) {
  EXPECT_EQ(status_of_child([] {
              const int full = open("/dev/full", O_WRONLY);
              dup2(full, STDERR_FILENO);
              dup2(full, STDOUT_FILENO);
              say_error("one line");
              say_error(std::string(100'000, 'x'));
              say_line("one line");
              say_line(std::string(100'000, 'x'));
              Progress bar(stderr, true);
              bar.update("a bar");
              bar.message("a message");
              bar.finish();
              return true;
            }),
            0);
}

TEST(Say, AClosedDescriptorIsNoError) {
  EXPECT_EQ(status_of_child([] {
              close(STDERR_FILENO);
              close(STDOUT_FILENO);
              say_error("one line");
              say_line(std::string(100'000, 'x'));
              return true;
            }),
            0);
}

TEST(Say, WordsOfOthersAreNoOrdersToATerminal) {
  ::testing::internal::CaptureStderr();
  say_error("eu-1: build \x1b]0;mine\x07\nand more");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "eu-1: build ?]0;mine?\nand more\n");
}

TEST(Say, ClosedStandardDescriptorsBecomeTheNullDevice) {
  EXPECT_EQ(status_of_child([] {
              close(STDIN_FILENO);
              close(STDERR_FILENO);
              const auto before = std::filesystem::read_symlink("/proc/self/fd/1");
              open_standard_descriptors();
              const int next = open("/dev/zero", O_RDONLY);
              return std::filesystem::read_symlink("/proc/self/fd/0") == "/dev/null" &&
                     std::filesystem::read_symlink("/proc/self/fd/2") == "/dev/null" &&
                     std::filesystem::read_symlink("/proc/self/fd/1") == before && next > STDERR_FILENO;
            }),
            0);
}

}  // namespace
}  // namespace isthmus
