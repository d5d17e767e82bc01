// Runs a fuzzer on its seeds and on mutations of them, the same mutations each time:
//     fuzz_NAME RUNS MAX_LENGTH FOLDER ...
// Replaces libFuzzer in builds without clang (libfuzzer.cmake builds the guided fuzzers). An input that fails
// is written to the working folder, and its name is printed.

#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Makes abort() call the death callback, too.
extern "C" const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __asan_default_options() { return "handle_abort=1"; }

namespace {

using Input = std::vector<std::uint8_t>;

/// The current input, for save_input, which the sanitizers call before the process ends.
const Input* current = nullptr;

void save_input() {
  if (current == nullptr) return;
  constexpr const char* path = "failed-input";
  const int file = ::open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (file < 0 || ::write(file, current->data(), current->size()) < 0)
    std::fprintf(stderr, "cannot write the failed input\n");
  else
    std::fprintf(stderr, "the failed input, %zu bytes, is in %s\n", current->size(), path);
  ::close(file);
}

class Mutator {
 public:
  Mutator(const std::vector<Input>& seeds, std::size_t max_length) : seeds_(seeds), max_length_(max_length) {}

  Input next() {
    auto input = seeds_[below(seeds_.size())];
    for (auto edits = 1 + below(4); edits > 0; --edits) edit(input);
    if (input.size() > max_length_) input.resize(max_length_);
    return input;
  }

 private:
  /// Uses no std distribution, since their numbers differ between standard libraries.
  std::size_t below(std::size_t end) {
    return static_cast<std::size_t>(random_() % std::max<std::size_t>(end, 1));
  }

  void edit(Input& input) {
    const auto at = below(input.size());
    const auto length = std::min(input.size() - std::min(at, input.size()), 1 + below(8));
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(input.empty() ? 2 : 8)) {
      case 0: {  // part of another input
        const auto& other = seeds_[below(seeds_.size())];
        const auto from = below(other.size());
        input.insert(
            place, other.begin() + static_cast<std::ptrdiff_t>(from),
            other.begin() + static_cast<std::ptrdiff_t>(std::min(other.size(), from + 1 + below(64))));
        return;
      }
      case 1:
        input.insert(place, 1 + below(8), static_cast<std::uint8_t>(below(256)));
        return;
      case 2:
        *place ^= static_cast<std::uint8_t>(1U << below(8));
        return;
      case 3:
        *place = static_cast<std::uint8_t>(below(256));
        return;
      case 4: {  // extreme lengths and counts
        constexpr std::array<std::uint8_t, 5> limits = {0x00, 0x01, 0x7F, 0x80, 0xFF};
        std::fill_n(place, length, limits.at(below(limits.size())));
        return;
      }
      case 5:
        input.erase(place, place + static_cast<std::ptrdiff_t>(length));
        return;
      case 6: {
        const Input again(place, place + static_cast<std::ptrdiff_t>(length));
        input.insert(place, again.begin(), again.end());
        return;
      }
      default:
        input.resize(at);
        return;
    }
  }

  const std::vector<Input>& seeds_;
  std::size_t max_length_;
  std::mt19937_64 random_{1};
};

/// Sorted by name, since folders list files in any order.
std::vector<Input> read_seeds(const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (const auto& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<Input> seeds;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s RUNS MAX_LENGTH FOLDER ...\n", argv[0]);
    return 2;
  }
  const auto runs = std::strtoull(argv[1], nullptr, 10);
  const auto max_length = static_cast<std::size_t>(std::strtoull(argv[2], nullptr, 10));
  const auto seeds = read_seeds({argv + 3, argv + argc});
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: %s has no seeds\n", argv[0], argv[3]);
    return 2;
  }
  __sanitizer_set_death_callback(save_input);
  const auto try_one = [](const Input& input) {
    // An exact copy, so that reads past the end are detected.
    const Input exact(input);
    current = &exact;
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    current = nullptr;
  };
  for (const auto& seed : seeds) try_one(seed);
  Mutator mutator(seeds, max_length);
  for (unsigned long long run = 0; run < runs; ++run) try_one(mutator.next());
  std::printf("%zu seeds, %llu mutations\n", seeds.size(), runs);
  return 0;
}
