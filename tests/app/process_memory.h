#pragma once
// Finds and changes values in the memory of a running process, as a faulty memory would.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace isthmus {

/// The writable memory of a process that is not mapped from a file.
class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t pid) : pid_(pid), fd_(open(path("mem").c_str(), O_RDWR | O_CLOEXEC)) {
    EXPECT_GE(fd_, 0) << path("mem");
  }
  ~ProcessMemory() { close(fd_); }
  ProcessMemory(const ProcessMemory&) = delete;
  ProcessMemory& operator=(const ProcessMemory&) = delete;

  /// Addresses of values close to these: the squared difference is less than 5 % of the squared norm.
  [[nodiscard]] std::vector<off_t> places_near(const std::vector<float>& values) const {
    const auto far = 0.05 * std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
    std::vector<off_t> places;
    std::ifstream maps(path("maps"));
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0, end = 0, file = 0;
      char flags[5] = {};
      if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu", &begin, &end, flags, &file) != 4) continue;
      if (flags[1] != 'w' || file != 0) continue;
      std::vector<float> found((end - begin) / sizeof(float));
      const auto got = pread(fd_, found.data(), end - begin, static_cast<off_t>(begin));
      found.resize(got > 0 ? static_cast<std::size_t>(got) / sizeof(float) : 0);
      for (std::size_t at = 0; at + values.size() <= found.size(); ++at) {
        double distance = 0;
        std::size_t i = 0;
        for (; i < values.size() && distance < far; ++i) {
          const double difference = found[at + i] - values[i];
          distance += difference * difference;
        }
        if (i == values.size() && distance < far)
          places.push_back(static_cast<off_t>(begin + at * sizeof(float)));
      }
    }
    return places;
  }
  /// Flips the lowest bit of a byte.
  void flip(off_t at) const {
    char byte = 0;
    ASSERT_EQ(pread(fd_, &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(pwrite(fd_, &byte, 1, at), 1);
  }

 private:
  [[nodiscard]] std::string path(const char* file) const {
    return "/proc/" + std::to_string(pid_) + "/" + file;
  }
  pid_t pid_;
  int fd_;
};

}  // namespace isthmus
