// The `isthmus` binary. It is not linked with libtorch: for verbs that train, it finds libtorch and loads the
// trainer library. It runs all other verbs itself.

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/verbs.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "run/process/machine.h"
#include "torch_folder.h"
#include "trainer_library.h"

namespace {

using namespace isthmus;
using namespace isthmus::app;
namespace fs = std::filesystem;

constexpr const char* no_trainer = "this build of isthmus has no trainer";
constexpr bool built_with_trainer = ISTHMUS_HAS_TRAINER;
const TorchNeed need{.release = ISTHMUS_TORCH_RELEASE, .cuda = ISTHMUS_TORCH_CUDA};

/// Removes --torch PATH from the arguments, wherever it appears, and returns the absolute path; empty without
/// --torch.
std::string take_torch(int& argc, char** argv) {
  std::string given;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    constexpr std::string_view flag = "--torch", with_value = "--torch=";
    if (word == flag) {
      if (++i == argc)
        throw Error(ErrorKind::config, "--torch has no value; expected the folder of a torch package");
      given = argv[i];
    } else if (word.starts_with(with_value)) {
      given = word.substr(with_value.size());
    } else {
      argv[kept++] = argv[i];
      continue;
    }
    if (given.empty())
      throw Error(ErrorKind::config, "--torch is empty; expected the folder of a torch package");
    given = fs::absolute(given).string();  // child processes may run in another folder
  }
  argc = kept;
  argv[kept] = nullptr;
  return given;
}

void* load(const fs::path& file, int flags) {
  void* library = dlopen(file.c_str(), flags);
  if (library == nullptr) throw Error(ErrorKind::config, "cannot load " + file.string() + ": " + dlerror());
  return library;
}

/// Whether NVIDIA's driver is installed. Without it, libtorch's CUDA libraries can do nothing, and they take
/// half as long to load as the rest of libtorch.
bool has_cuda_driver() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr; }

class Trainer {
 public:
  Trainer(std::string given, int argc, char** argv)
      : given_(std::move(given)), program_(own_program()), argc_(argc), argv_(argv) {}

  [[nodiscard]] bool found() { return built_with_trainer && search().found.has_value(); }

  [[nodiscard]] std::string said() {
    if (!built_with_trainer) return {};
    if (const auto& torch = search().found)
      return torch->version + " at " + torch->path.string() + ", " + torch->place;
    return "not found here; expected " + need.release + ".*";
  }

  /// The finding of `isthmus doctor` when `found` is false.
  [[nodiscard]] Finding missing() {
    if (!built_with_trainer) return {"device", Level::fail, no_trainer, "pip install 'isthmus[train]'"};
    return {"device", Level::fail, what_is_missing(search(), need, "; "), how_to_get(need)};
  }

  /// Lets the trainer library run the whole command line, then exits with its status.
  [[noreturn]] int run() {
    if (!built_with_trainer)
      throw Error(ErrorKind::config,
                  std::string(no_trainer) + "; install one with a trainer: pip install 'isthmus[train]'");
    const auto torch = need_torch(search(), need);
    // Load by full path. The trainer then finds these libraries by name, already loaded. Torch's own OpenMP
    // must come first.
    const auto libraries = torch.path / "lib";
    if (const auto file = libraries / "libgomp.so.1"; fs::exists(file)) load(file, RTLD_LAZY | RTLD_LOCAL);
    for (const auto* name : {"libc10.so", "libtorch_cpu.so"}) load(libraries / name, RTLD_LAZY | RTLD_LOCAL);
    if (need.cuda && has_cuda_driver())
      // Global, because the trainer does not name them as its dependencies.
      for (const auto* name : {"libc10_cuda.so", "libtorch_cuda.so"})
        load(libraries / name, RTLD_LAZY | RTLD_GLOBAL);
    auto file = program_.parent_path() / "libisthmus_trainer.so";
    if (!fs::exists(file)) file = program_.parent_path().parent_path() / "lib/libisthmus_trainer.so";
    void* library = load(file, RTLD_LAZY | RTLD_LOCAL);
    void* build = dlsym(library, "isthmus_trainer_build");
    void* entry = dlsym(library, "isthmus_trainer_main");
    const std::string its = build == nullptr ? "unknown" : reinterpret_cast<TrainerBuildName>(build)();
    if (entry == nullptr || its != trainer_library_build())
      throw Error(ErrorKind::config, file.string() + " is from build " + its + "; expected build " +
                                         trainer_library_build() +
                                         ", as this program. Install both from one build");
    const int status = reinterpret_cast<TrainerMain>(entry)(argc_, argv_, given_.c_str());
    // Everything is saved by now. libtorch's destructors would spend more time on freeing memory.
    std::fflush(nullptr);
    _exit(status);
  }

 private:
  const TorchSearch& search() {
    if (!search_) search_ = find_torch(given_, program_, need);
    return *search_;
  }

  std::string given_;
  fs::path program_;
  int argc_;
  char** argv_;
  std::optional<TorchSearch> search_;
};

bool has(int argc, char** argv, std::string_view flag) {
  return std::any_of(argv + 1, argv + argc, [&](const char* word) { return word == flag; });
}

int run(int argc, char** argv) {
  const auto given = take_torch(argc, argv);
  Trainer trainer(given, argc, argv);
  auto build = trainer_build();
  if (argc > 1 && std::string_view(argv[1]) == "--version") build.found = trainer.said();
  CommandLine commands(isthmus_description, build, given);
  commands.add_to_help(
      "--torch PATH, anywhere on the command line: the torch package with the libraries for training");
  const auto train = [&](const auto&...) { return trainer.run(); };
  commands.before([&](const std::string& verb) -> std::optional<int> {
    if (verb == "plan" && has(argc, argv, "--probe")) return trainer.run();
    const bool reduces = has(argc, argv, "--reduce-only") || has(argc, argv, "--only-enrol");
    // `doctor` checks more if there is a trainer. `join` runs here without one, so that it can enrol this
    // machine before it reports the missing trainer.
    if ((verb == "doctor" || (verb == "join" && !reduces)) && trainer.found()) return trainer.run();
    return std::nullopt;
  });
  const TrainerVerbs verbs{.worker = train,
                           .observe = train,
                           .model = {.write_model = run_export,
                                     .evaluate = train,
                                     .sample = train,
                                     .audit = train,
                                     .selftest = train,
                                     .rank = train},
                           .device = [&](const auto&) { return trainer.missing(); },
                           .measure_step = {}};
  return run_verbs(commands, &verbs, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    say_error(std::string("isthmus: ") + error.what());
    return error.exit_status();
  } catch (const std::exception& error) {
    say_error(std::string("isthmus: ") + error.what());
    return 1;
  }
}
