#include "torch_folder.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "isthmus/base/error.h"
#include "run/process/process.h"

namespace isthmus::app {

namespace {

namespace fs = std::filesystem;

/// The CUDA release that the trainer links; cmake/Cuda.cmake accepts no other.
constexpr const char* cuda_release = "13.";

/// Prints torch's folder. First removes the current folder, which -c puts first on Python's path.
constexpr const char* ask_python =
    "import sys; sys.path[:] = [p for p in sys.path if p]; import importlib.util as u; "
    "s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')";

/// The quoted text on the first line of version.py that starts with `begin`; empty if no line does.
std::string quoted_in_version_file(const fs::path& package, const std::string& begin) {
  std::ifstream file(package / "version.py");
  for (std::string line; std::getline(file, line) && line.size() < 1000;) {
    if (line.starts_with(begin))
      return line.substr(begin.size(), line.find('\'', begin.size()) - begin.size());
  }
  return {};
}
std::string version_in(const fs::path& package) { return quoted_in_version_file(package, "__version__ = '"); }
std::string cuda_in(const fs::path& package) {
  return quoted_in_version_file(package, "cuda: Optional[str] = '");
}

class Search {
 public:
  explicit Search(const TorchNeed& need) : need_(need) {}

  /// Records the torch package in the folder, or what is wrong with it. Returns whether it fits.
  bool look(const std::string& place, const fs::path& folder) {
    std::error_code none;
    auto path = fs::weakly_canonical(folder, none);
    if (path.filename() == "lib" && fs::exists(path / "libtorch_cpu.so", none)) path = path.parent_path();
    const auto problem = problem_of(path);
    if (problem.empty()) {
      result_.found = {.path = path, .version = version_in(path), .place = place};
    } else {
      result_.looked.push_back(place + ": " + folder.lexically_normal().string() + " " + problem);
    }
    return problem.empty();
  }
  void miss(const std::string& place, const std::string& problem) {
    result_.looked.push_back(place + ": " + problem);
  }
  TorchSearch result() { return std::move(result_); }

 private:
  [[nodiscard]] std::string problem_of(const fs::path& path) const {
    std::error_code none;
    if (!fs::exists(path / "lib/libtorch_cpu.so", none)) return "has no lib/libtorch_cpu.so";
    const auto version = version_in(path);
    if (!version.starts_with(need_.release + "."))
      return version.empty() ? "has no version in version.py"
                             : "has torch " + version + "; expected " + need_.release + ".*";
    if (need_.cuda && !fs::exists(path / "lib/libtorch_cuda.so", none))
      return "has torch " + version + " without CUDA, which this build needs";
    const auto cuda = cuda_in(path);
    if (need_.cuda && !cuda.empty() && !cuda.starts_with(cuda_release))
      return "has torch " + version + " for CUDA " + cuda + "; expected CUDA " + cuda_release + "*";
    return {};
  }

  TorchNeed need_;
  TorchSearch result_;
};

/// The first line that a command prints; empty if it fails.
std::string output_of(std::vector<std::string> command) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {};
  std::string text;
  {
    std::FILE* null = std::fopen("/dev/null", "w");
    Process process({.name = "python3",
                     .command = std::move(command),
                     .log = {},
                     .output = ends[1],
                     .errors = null != nullptr ? fileno(null) : -1});
    close(ends[1]);
    std::array<char, 4096> bytes{};
    for (ssize_t n = 0; (n = read(ends[0], bytes.data(), bytes.size())) > 0 && text.size() < bytes.size();)
      text.append(bytes.data(), static_cast<std::size_t>(n));
    if (null != nullptr) std::fclose(null);
  }
  close(ends[0]);
  return text.substr(0, text.find('\n'));
}

}  // namespace

TorchSearch find_torch(const std::string& given, const fs::path& program, const TorchNeed& need) {
  Search search(need);
  if (!given.empty()) {
    search.look("--torch", given);
    return search.result();
  }
  const auto folder = program.parent_path();
  // A build tree has the link lib/torch, an installed tree may have one in its lib folder, and next to a
  // wheel is torch's own package.
  for (const auto* place : {"lib/torch", "../lib/torch", "../../torch"}) {
    if (search.look("next to the program", folder / place)) return search.result();
  }
  const char* active = std::getenv("VIRTUAL_ENV");
  const bool is_active = active != nullptr && *active != '\0';
  const std::string python = is_active ? std::string(active) + "/bin/python3" : "python3";
  const auto place = is_active ? "the active environment" : "python3 on PATH";
  if (const auto torch = output_of({python, "-c", ask_python}); !torch.empty()) {
    search.look(place, torch);
  } else {
    search.miss(place, python + " has no torch");
  }
  return search.result();
}

std::string what_is_missing(const TorchSearch& search, const TorchNeed& need, const std::string& separator) {
  std::string text = "training needs torch " + need.release + ".*, and none was found";
  for (const auto& line : search.looked) text += separator + line;
  return text;
}

std::string how_to_get(const TorchNeed& need) {
  return "install it with pip install 'torch==" + need.release + ".*', or pass its folder with --torch PATH";
}

TorchFolder need_torch(const TorchSearch& search, const TorchNeed& need) {
  if (search.found) return *search.found;
  throw Error(ErrorKind::config, what_is_missing(search, need, "\n  ") + "\n" + how_to_get(need));
}

}  // namespace isthmus::app
