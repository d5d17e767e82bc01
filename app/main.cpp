// The `isthmus` binary. It links no libtorch: for verbs that train it finds one, and loads the trainer, which
// is a library beside it; all others it does itself.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cli/trainer_verbs.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "torch_folder.h"
#include "trainer_library.h"

namespace {

using namespace isthmus;
using namespace isthmus::app;
namespace fs = std::filesystem;

constexpr const char* no_trainer = "this build of isthmus has no trainer";
constexpr bool built_with_trainer = ISTHMUS_HAS_TRAINER;
const TorchNeed need{.release = ISTHMUS_TORCH_RELEASE, .cuda = ISTHMUS_TORCH_CUDA};

/// Takes --torch PATH out of the arguments, wherever it stands.
std::string take_torch(int& argc, char** argv) {
  std::string given;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    constexpr std::string_view flag = "--torch", with_value = "--torch=";
    if (word == flag) {
      if (++i == argc) throw Error(ErrorKind::config, "--torch needs a torch package's folder");
      given = argv[i];
    } else if (word.starts_with(with_value)) {
      given = word.substr(with_value.size());
    } else {
      argv[kept++] = argv[i];
      continue;
    }
    if (given.empty()) throw Error(ErrorKind::config, "--torch is empty; expected a torch package's folder");
    given = fs::absolute(given).string();  // children may run elsewhere
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

class Trainer {
 public:
  Trainer(std::string given, int argc, char** argv)
      : given_(std::move(given)), program_(fs::read_symlink("/proc/self/exe")), argc_(argc), argv_(argv) {}

  [[nodiscard]] bool found() { return built_with_trainer && search().found.has_value(); }

  [[nodiscard]] std::string said() {
    if (!built_with_trainer) return {};
    if (const auto& torch = search().found)
      return torch->version + " at " + torch->path.string() + ", " + torch->place;
    return "not found here; expected " + need.release + ".*";
  }

  /// For `isthmus doctor`, where `found` is false.
  [[nodiscard]] Finding missing() {
    if (!built_with_trainer) return {"device", Level::fail, no_trainer, "pip install 'isthmus[train]'"};
    return {"device", Level::fail, what_is_missing(search(), need, "; "), how_to_get(need)};
  }

  /// The whole command line again, by the trainer; ends the process with its status.
  [[noreturn]] int run() {
    if (!built_with_trainer)
      throw Error(ErrorKind::config,
                  std::string(no_trainer) + "; install one that has, as pip install 'isthmus[train]'");
    const auto torch = need_torch(search(), need);
    // By full path, so that what the trainer needs by name is there; torch's own OpenMP before all.
    for (const auto* name :
         {"libgomp.so.1", "libc10.so", "libtorch_cpu.so", "libc10_cuda.so", "libtorch_cuda.so"}) {
      const auto file = torch.path / "lib" / name;
      if (!need.cuda && std::strstr(name, "cuda") != nullptr) continue;
      if (std::strstr(name, "gomp") != nullptr && !fs::exists(file)) continue;
      load(file, RTLD_LAZY | RTLD_LOCAL);
    }
    auto file = program_.parent_path() / "libisthmus_trainer.so";
    if (!fs::exists(file)) file = program_.parent_path().parent_path() / "lib/libisthmus_trainer.so";
    void* library = load(file, RTLD_LAZY | RTLD_LOCAL);
    void* build = dlsym(library, "isthmus_trainer_build");
    void* entry = dlsym(library, "isthmus_trainer_main");
    const std::string its = build == nullptr ? "unknown" : reinterpret_cast<TrainerBuildName>(build)();
    if (entry == nullptr || its != trainer_library_build())
      throw Error(ErrorKind::config, file.string() + " is of build " + its + "; expected " +
                                         trainer_library_build() +
                                         ", which this program is of. Install both from one build");
    const int status = reinterpret_cast<TrainerMain>(entry)(argc_, argv_, given_.c_str());
    // All that a run has to save is saved. libtorch's destructors would take another .14 s to free what ends
    // anyway.
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
  commands.app().footer(
      "--torch PATH, anywhere on the line: the torch package whose libraries training uses\n\n" +
      commands.app().get_footer());
  const auto train = [&](const auto&...) { return trainer.run(); };
  commands.before([&](const std::string& verb) -> std::optional<int> {
    if (verb == "plan" && has(argc, argv, "--probe")) return trainer.run();
    const bool reduces = has(argc, argv, "--reduce-only") || has(argc, argv, "--only-enrol");
    // A doctor has more to look at with a trainer; who joins is to be let in before a trainer is missed.
    if ((verb == "doctor" || (verb == "join" && !reduces)) && trainer.found()) return trainer.run();
    return std::nullopt;
  });
  const TrainerVerbs verbs{.worker = train,
                           .observe = train,
                           .write_model = train,
                           .evaluate = train,
                           .sample = train,
                           .selftest = train,
                           .rank = train,
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
