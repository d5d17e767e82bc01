// Memory use does not grow with the corpus.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "data_support.h"

namespace isthmus::data {
namespace {

/// "VmRSS" or "VmHWM" of this process, in bytes.
std::uint64_t status_of(const std::string& wanted) {
  std::ifstream in("/proc/self/status");
  std::string key;
  std::uint64_t kibibytes = 0;
  for (std::string rest; in >> key; std::getline(in, rest)) {
    if (key == wanted + ":" && in >> kibibytes) return kibibytes << 10;
  }
  ADD_FAILURE() << "/proc/self/status has no " << wanted;
  return 0;
}

/// Resets the kernel's peak counter.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

TEST(Memory, A64GigabyteFileTakesAsLittleAsASmallOne) {
  const TemporaryFolder folder;
  const auto file = folder.write("ids.bin", "");
  std::filesystem::resize_file(file, std::uint64_t{64} << 30);  // sparse: all ids are 0
  const auto before = status_of("VmRSS");
  forget_peak();
  auto config = config_of(file, 1024, 0.01);
  config.tokenizer = "vocab:50304";
  const Corpus corpus(config);
  EXPECT_GT(corpus.tokens(Split::train), std::uint64_t{31} << 30);
  const auto device = make_cpu_device();
  Trace trace;
  LoaderOptions options;
  options.seq_len = 1024;
  options.batch = 64;
  OneTrack source;
  Loader loader(corpus, options, source, *device, trace);
  for (int i = 0; i < 1000; ++i) loader.next();
  const auto grown = status_of("VmHWM") - before;
  EXPECT_LT(grown, std::uint64_t{64} << 20);
}

}  // namespace
}  // namespace isthmus::data
