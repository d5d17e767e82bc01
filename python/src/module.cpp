// isthmus._native: the module on which the package's Python code is built.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codecs.h"
#include "isthmus/base/error.h"
#include "isthmus/trainer/parameter_table.h"
#include "model/model_folder.h"
#include "observer.h"
#include "plan/choose.h"
#include "replica.h"
#include "run/output/version.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace isthmus::python {
namespace {

using outer_sync::Range;
using Values = nb::ndarray<nb::pytorch, float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
/// Name, shape, and first element in the flat buffer.
using Tensor = std::tuple<std::string, std::vector<std::int64_t>, std::uint64_t>;
/// First element and number of elements.
using Fragment = std::pair<std::uint64_t, std::uint64_t>;

// ---- exceptions ----

/// Indexed by ErrorKind, from `config` on; the base class comes last.
using Exceptions = std::array<PyObject*, 5>;

PyObject* make_exception(nb::module_& m, const char* name, const char* doc, PyObject* base) {
  const auto full = std::string("isthmus.") + name;
  auto* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr);
  m.attr(name) = nb::handle(type);
  return type;
}

void add_exceptions(nb::module_& m) {
  static Exceptions types;  // types of a module exist as long as the interpreter
  types[4] = make_exception(m, "Error", "An error of isthmus; the message states the reason and the remedy.",
                            PyExc_RuntimeError);
  types[0] = make_exception(m, "ConfigError", "A setting, an argument or a call is wrong.", types[4]);
  types[1] = make_exception(m, "DataError",
                            "A file or a state dict is missing, damaged or cannot be written.", types[4]);
  types[2] = make_exception(m, "NetworkError", "A peer is lost, refuses, or cannot be reached.", types[4]);
  types[3] = make_exception(m, "DivergenceError",
                            "Replicas disagree on what they share, or a value is not finite.", types[4]);
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* payload) {
        try {
          std::rethrow_exception(error);
        } catch (const Error& what) {
          const auto kind = static_cast<std::size_t>(what.kind());
          PyErr_SetString((*static_cast<Exceptions*>(payload))[std::min<std::size_t>(kind, 4)], what.what());
        }
      },
      &types);
}

// ---- Python objects outside the interpreter's lock ----

/// A Python object that may be released without the lock.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* last) {
            const nb::gil_scoped_acquire acquire;
            delete last;
          }};
}

/// Wraps a callable that takes the first element and the one behind the last.
Memory::Move move_of(std::optional<nb::callable> callable) {
  if (!callable) return nullptr;
  return [call = shared(*callable)](Range range) {
    const nb::gil_scoped_acquire acquire;
    (*call)(range.begin, range.end());
  };
}

/// Moments that Python's `Moments` gives and takes (python/isthmus/_moments.py).
class PythonMoments final : public outer_sync::InnerMoments {
 public:
  explicit PythonMoments(nb::object moments) : moments_(shared(std::move(moments))) {}

  [[nodiscard]] std::uint64_t steps() const override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<std::uint64_t>(moments_->attr("steps"));
  }
  std::span<const float> first_moment(Range range) override { return given(range, 0); }
  std::span<const float> second_moment(Range range) override { return given(range, 1); }
  void set_moments(Range range, std::span<const float> first, std::span<const float> second) override {
    const nb::gil_scoped_acquire acquire;
    moments_->attr("take")(range.begin, range.end(), tensor(first), tensor(second));
  }
  void set_steps(std::uint64_t steps) override {
    const nb::gil_scoped_acquire acquire;
    moments_->attr("set_steps")(steps);
  }

 private:
  std::span<const float> given(Range range, int which) {
    const nb::gil_scoped_acquire acquire;
    given_ = shared(moments_->attr("give")(range.begin, range.end(), which));
    const auto values = nb::cast<Values>(*given_);
    return {values.data(), values.size()};
  }
  static nb::object tensor(std::span<const float> values) {
    const std::size_t size = values.size();
    return nb::cast(
        nb::ndarray<nb::pytorch, const float, nb::device::cpu>(values.data(), 1, &size, nb::handle()));
  }

  std::shared_ptr<nb::object> moments_;
  std::shared_ptr<nb::object> given_;  ///< keeps the memory of the last span
};

std::function<void()> call_of(std::optional<nb::callable> callable) {
  if (!callable) return nullptr;
  return [call = shared(*callable)] {
    const nb::gil_scoped_acquire acquire;
    (*call)();
  };
}

/// Runs signal handlers during a wait; an exception of theirs ends the wait.
void run_signal_handlers() {
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// ---- the config ----

app::Experiment load(const std::string& file, const std::vector<std::string>& assignments,
                     const std::string& name, const std::string& site) {
  return app::load_and_choose(file, assignments, app::WorkerPlace{name, site}, app::Purpose::own_data)
      .experiment;
}

/// Places of the tensors of the config's own model, as in `isthmus worker`.
std::pair<std::vector<Tensor>, std::vector<Fragment>> model_table(const app::Experiment& experiment,
                                                                  std::int64_t vocabulary) {
  const trainer::ParameterTable table({experiment.model, vocabulary}, experiment.outer.num_fragments,
                                      static_cast<std::uint64_t>(experiment.outer.chunk_elements));
  std::pair<std::vector<Tensor>, std::vector<Fragment>> out;
  for (const auto& tensor : table.tensors())
    out.first.emplace_back(tensor.name, tensor.shape, tensor.range.begin);
  for (const auto& fragment : table.layout().fragments())
    out.second.emplace_back(fragment.begin, fragment.size);
  return out;
}

void initial_parameters(const app::Experiment& experiment, std::int64_t vocabulary, const Values& out) {
  const trainer::ParameterTable table({experiment.model, vocabulary}, experiment.outer.num_fragments,
                                      static_cast<std::uint64_t>(experiment.outer.chunk_elements));
  const auto values = trainer::initial_parameters(table, static_cast<std::uint64_t>(experiment.run.seed));
  if (values.size() != out.size())
    throw Error(ErrorKind::config, "out has " + std::to_string(out.size()) + " elements; expected " +
                                       std::to_string(values.size()));
  std::ranges::copy(values, out.data());
}

// ---- the replica ----

std::vector<outer_sync::log::LoggedTensor> logged(const std::vector<Tensor>& tensors) {
  std::vector<outer_sync::log::LoggedTensor> out;
  for (const auto& [name, shape, begin] : tensors) {
    std::uint64_t size = 1;
    for (const auto extent : shape) size *= static_cast<std::uint64_t>(extent);
    out.push_back({name, shape, {begin, size}});
  }
  return out;
}

std::vector<Range> ranges(const std::vector<Fragment>& fragments) {
  std::vector<Range> out;
  out.reserve(fragments.size());
  for (const auto& [begin, size] : fragments) out.push_back({begin, size});
  return out;
}

std::string build_with(const std::string& torch) {
  return app::build_name({.torch = torch + " (Python)", .cuda = "none"});
}

/// The interpreter owns the result.
Replica* make_replica(const app::Experiment& experiment, const std::string& name,
                      const std::vector<Tensor>& tensors, const std::vector<Fragment>& fragments,
                      outer_sync::FragmentId averaged, Values values, std::optional<nb::callable> fetch,
                      std::optional<nb::callable> store, const nb::object& moments,
                      std::optional<nb::callable> waiting, const std::optional<nb::bytes>& resume,
                      const std::string& torch, const std::string& precision, const std::string& device,
                      bool quiet) {
  const std::span<float> memory(values.data(), values.size());
  // Keeps the memory alive as long as the replica.
  auto keep = shared(nb::cast(values));
  auto fetches = move_of(std::move(fetch));
  ReplicaRequest request{.experiment = experiment,
                         .name = name,
                         .build = build_with(torch),
                         .quiet = quiet,
                         .tensors = logged(tensors),
                         .fragments = ranges(fragments),
                         .averaged = averaged,
                         .memory = Memory(memory, std::move(fetches), move_of(std::move(store))),
                         .moments = moments.is_none() ? nullptr : std::make_unique<PythonMoments>(moments),
                         .while_waiting =
                             [keep, also = call_of(std::move(waiting))] {
                               run_signal_handlers();
                               if (also) also();
                             },
                         .resume = {},
                         .precision = precision,
                         .device = device};
  if (!fragments.empty() && fragments.back().first + fragments.back().second != values.size())
    throw Error(ErrorKind::config, "the buffer and its fragments differ in length");
  if (resume) {
    const auto* begin = reinterpret_cast<const std::byte*>(resume->c_str());
    request.resume = Bytes(begin, begin + resume->size());
  }
  const nb::gil_scoped_release release;
  return std::make_unique<Replica>(std::move(request)).release();
}

nb::bytes save(Replica& replica) {
  Bytes bytes;
  {
    const nb::gil_scoped_release release;
    bytes = replica.save();
  }
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void average_gradients(Replica& replica, const Values& gradients, std::uint64_t tokens,
                       std::optional<std::uint64_t> samples) {
  const nb::gil_scoped_release release;
  if (gradients.size() != replica.buffer_size())
    throw Error(ErrorKind::config, "gradients have " + std::to_string(gradients.size()) +
                                       " elements; expected " + std::to_string(replica.buffer_size()));
  replica.average_gradients({gradients.data(), gradients.size()}, tokens, samples);
}

template <class Source>
void copy_global(Source& source, const Values& out) {
  const nb::gil_scoped_release release;
  const auto global = source.global_parameters();
  if (global.size() != out.size())
    throw Error(ErrorKind::config, "out has " + std::to_string(out.size()) + " elements; expected " +
                                       std::to_string(global.size()));
  std::ranges::copy(global, out.data());
}

nb::dict stats_of(const Replica& replica) {
  const auto& stats = replica.stats();
  const auto status = replica.status();
  nb::dict out;
  out["rounds"] = stats.rounds;
  out["warmup_rounds"] = stats.warmup_rounds;
  out["left_out"] = stats.left_out;
  out["rejected"] = stats.rejected;
  out["exchanges_averaged"] = replica.gossip().averaged;
  out["exchanges_missed"] = replica.gossip().missed;
  out["exchanges_refused"] = replica.gossip().refused;
  out["uncommitted_steps"] = stats.uncommitted_steps;
  out["stall_seconds"] = stats.stall_seconds;
  out["warmup_wait_seconds"] = stats.warmup_wait_seconds;
  out["payload_bytes"] = status.sent.payload;
  out["total_bytes"] = status.sent.total;
  out["states_taken"] = replica.states_taken();
  return out;
}

using Free = nb::call_guard<nb::gil_scoped_release>;

void add_experiment(nb::module_& m) {
  nb::class_<app::Experiment>(m, "Experiment", "An experiment's settings, as they are for one worker.")
      .def_prop_ro("run", [](const app::Experiment& e) { return e.run.name; })
      .def_prop_ro("steps", [](const app::Experiment& e) { return e.run.steps; })
      .def_prop_ro("seed", [](const app::Experiment& e) { return e.run.seed; })
      .def_prop_ro("replicas", [](const app::Experiment& e) { return e.replicas; })
      .def_prop_ro("num_fragments", [](const app::Experiment& e) { return e.outer.num_fragments; })
      .def_prop_ro("warmup_steps", [](const app::Experiment& e) { return e.outer.warmup_steps; })
      .def_prop_ro("batch", [](const app::Experiment& e) { return e.inner.batch; })
      .def_prop_ro("sequence_length", [](const app::Experiment& e) { return e.data.seq_len; })
      .def_prop_ro("data_path", [](const app::Experiment& e) { return e.data.path; })
      .def_prop_ro("joins_with_moments", [](const app::Experiment& e) { return e.join.moments(); })
      .def_prop_ro("folder", [](const app::Experiment& e) { return e.folder().string(); });
  m.def("load", &load, "file"_a, "assignments"_a, "name"_a, "site"_a);
  m.def("model_table", &model_table, "experiment"_a, "vocabulary"_a);
  m.def("initial_parameters", &initial_parameters, "experiment"_a, "vocabulary"_a, "out"_a);
}

void add_replica(nb::module_& m) {
  nb::class_<Replica>(m, "Replica", "A member of a run, wrapped by isthmus.OuterLoop.")
      .def_static("join", &make_replica, "experiment"_a, "name"_a, "tensors"_a, "fragments"_a, "averaged"_a,
                  "values"_a, "fetch"_a.none(), "store"_a.none(), "moments"_a.none(), "waiting"_a.none(),
                  "resume"_a.none(), "torch"_a, "precision"_a, "device"_a, "quiet"_a,
                  nb::rv_policy::take_ownership)
      .def("after_step", &Replica::after_step, "loss"_a.none(), "tokens"_a, "samples"_a.none(), Free())
      .def("average_gradients", &average_gradients, "gradients"_a, "tokens"_a, "samples"_a.none())
      .def("next_samples", &Replica::next_samples, "count"_a, "size"_a, Free())
      .def("copy_global", &copy_global<Replica>, "out"_a)
      .def("global_hash", &Replica::global_hash, Free())
      .def("save", &save)
      .def("report_evaluation", &Replica::report_evaluation, "sum_nats"_a, "tokens"_a, Free())
      .def("request_stop", &Replica::request_stop, "reason"_a, Free())
      .def("request_leave", &Replica::request_leave, "reason"_a, Free())
      .def("close", &Replica::close, "why"_a, Free())
      .def("stats", &stats_of)
      .def_prop_ro("is_due", &Replica::is_due)
      .def_prop_ro("synchronous", &Replica::synchronous)
      .def_prop_ro("step", &Replica::step)
      .def_prop_ro("running", &Replica::running)
      .def_prop_ro("stopped", &Replica::stopped)
      .def_prop_ro("leaves", &Replica::leaves)
      .def_prop_ro("frozen", &Replica::frozen)
      .def_prop_ro("wants_evaluation", &Replica::wants_evaluation)
      .def_prop_ro("wants_checkpoint", &Replica::wants_checkpoint)
      .def_prop_ro("rank", [](const Replica& replica) {
        const auto rank = replica.rank();
        return std::pair(rank.index, rank.of);
      });
}

// ---- the observer ----

Observer* make_observer(const app::Experiment& experiment, const std::string& name,
                        const std::vector<Tensor>& tensors, const std::vector<Fragment>& fragments,
                        outer_sync::FragmentId averaged, const std::string& torch) {
  ObserverRequest request{.experiment = experiment,
                          .name = name,
                          .build = build_with(torch),
                          .tensors = logged(tensors),
                          .fragments = ranges(fragments),
                          .averaged = averaged,
                          .while_waiting = run_signal_handlers};
  const nb::gil_scoped_release release;
  return std::make_unique<Observer>(std::move(request)).release();
}

void add_observer(nb::module_& m) {
  nb::class_<Observer>(m, "Observer", "Follows a run; wrapped by isthmus.Observer.")
      .def_static("join", &make_observer, "experiment"_a, "name"_a, "tensors"_a, "fragments"_a, "averaged"_a,
                  "torch"_a, nb::rv_policy::take_ownership)
      .def("next", &Observer::next, Free())
      .def("catch_up", &Observer::catch_up, Free())
      .def("copy_global", &copy_global<Observer>, "out"_a)
      .def("global_hash", &Observer::global_hash, Free())
      .def("verdict", &Observer::verdict, Free())
      .def("close", &Observer::close, Free())
      .def_prop_ro("step", &Observer::step)
      .def_prop_ro("rounds", &Observer::rounds)
      .def_prop_ro("has_state", &Observer::has_state);
}

// ---- a folder with a model ----

void open_folder(app::ModelFolder* memory, const std::filesystem::path& folder, bool replace) {
  new (memory)
      app::ModelFolder(folder, replace, {.folder = "save_pretrained: the folder", .replace = "replace=True"});
}

void replace_folder(app::ModelFolder& folder, const std::function<void(std::filesystem::path)>& fill,
                    const std::string& model) {
  folder.replace(fill, {{"model", model}});
}

void add_model_folder(nb::module_& m) {
  nb::class_<app::ModelFolder>(m, "ModelFolder",
                               "A folder with a model that is replaced as a whole, as `isthmus export` does.")
      .def("__init__", &open_folder, "folder"_a, "replace"_a)
      .def("replace", &replace_folder, "fill"_a, "model"_a, Free())
      .def_prop_ro("path", &app::ModelFolder::path);
}

}  // namespace
}  // namespace isthmus::python

NB_MODULE(_native, m) {
  using namespace isthmus::python;
  // Without this, a traceback that keeps a loop until the interpreter ends causes a leak report after the
  // error.
  nb::set_leak_warnings(false);
  m.attr("__version__") = isthmus::app::version();
  add_exceptions(m);
  add_experiment(m);
  add_replica(m);
  add_observer(m);
  add_model_folder(m);
  add_codecs(m);
}
