#pragma once
// For tests of runs with certificates: an authority, and a folder for each name.

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "network_run.h"

namespace isthmus::outer_sync {

/// Each test has its own folder.
class Tls : public testing::Test {
 protected:
  Tls() : folder_(std::filesystem::path(testing::TempDir()) / fmt_name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Tls() override { std::filesystem::remove_all(folder_); }

  /// The authority of a run called "test", and a folder for each name.
  tls::Authority authority(const std::vector<std::string>& names, const std::string& run = "test",
                           const std::string& at = "test") {
    auto made = tls::Authority::create(folder_ / at, run);
    for (const auto& name : names) (void)made.issue(name, 10);
    return made;
  }
  [[nodiscard]] std::filesystem::path of(const std::string& name, const std::string& at = "test") const {
    return folder_ / at / name;
  }
  NetworkRun::Options options(std::size_t members) const {
    NetworkRun::Options options;
    options.members = members;
    options.certs = folder_ / "test";
    return options;
  }

  template <class Work>
  static std::string failure_of(Work work) {
    try {
      work();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  static std::string fmt_name() {
    return std::string("tls-") + testing::UnitTest::GetInstance()->current_test_info()->name() + "-" +
           std::to_string(::getpid());
  }
  std::filesystem::path folder_;
};

}  // namespace isthmus::outer_sync
