// table_worker CONFIG COORDINATOR NAME JOB: a replica of the C++ outer loop with inner steps from a table,
// for comparison with the Python binding. JOB is a JSON file: tensors as [name, shape, first element],
// fragments as [first element, elements], `tokens` of a step, and `values`, a file of fp32: the initial
// buffer, then the change of each step. Prints the global hash at the end.

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/tokenizer.h"
#include "isthmus/outer_sync/log/fingerprint.h"
#include "participant/participant.h"
#include "run/experiment/experiment.h"
#include "run/experiment/identity.h"

namespace {

using namespace isthmus;
using outer_sync::Range;

class Table final : public outer_sync::LocalParameters {
 public:
  explicit Table(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    values_.resize(bytes.size() / sizeof(float));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values_.data()));
  }
  std::span<const float> read(Range range) override { return modify(range); }
  std::span<float> modify(Range range) override {
    return std::span(values_).subspan(range.begin, range.size);
  }
  void modified(Range) override {}

  /// Steps count from 1.
  void step(std::size_t number, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) values_[i] += values_.at(number * size + i);
  }

 private:
  std::vector<float> values_;
};

/// The run must not have begun already.
class TableHooks final : public app::TrainingHooks {
 public:
  void say(const std::string&) override {}
  Restored restore(std::uint64_t) override { throw std::runtime_error("there is no checkpoint"); }
  void took_state(const app::Participant&, double) override {
    throw std::runtime_error("the run has begun already");
  }
};

int run(const std::string& config, const std::string& coordinator, const std::string& name,
        const std::string& job_file) {
  std::ifstream in(job_file);
  const auto job = nlohmann::json::parse(in);
  auto experiment = app::load_experiment(config, {"network.coordinator=\"" + coordinator + "\""},
                                         app::WorkerPlace{name, {}}, app::Purpose::own_data);
  app::take_replica_name(name, experiment);
  std::vector<outer_sync::log::LoggedTensor> tensors;
  for (const auto& tensor : job.at("tensors")) {
    auto shape = tensor.at(1).get<std::vector<std::int64_t>>();
    std::uint64_t size = 1;
    for (const auto extent : shape) size *= static_cast<std::uint64_t>(extent);
    tensors.push_back({tensor.at(0), std::move(shape), {tensor.at(2), size}});
  }
  std::vector<Range> fragments;
  for (const auto& fragment : job.at("fragments")) fragments.push_back({fragment.at(0), fragment.at(1)});
  const outer_sync::FragmentLayout layout(fragments,
                                          static_cast<std::uint64_t>(experiment.outer.chunk_elements));

  Table table(job.at("values"));
  Trace trace;
  TableHooks hooks;
  app::Participant participant(
      {.experiment = experiment,
       .name = name,
       .layout = layout,
       .state = std::make_unique<outer_sync::OuterState>(layout, table, experiment.outer.sender_feedback()),
       .member = std::make_unique<app::NodeMembership>(experiment, layout, trace),
       .trace = trace},
      hooks);
  auto hello = app::hello_of(experiment, name, "table_worker");
  hello.model = outer_sync::fingerprint_of(tensors, layout);
  hello.tokenizer = data::make_tokenizer(experiment.data.tokenizer)->fingerprint();
  participant.join(std::move(hello));
  while (participant.next()) {
    table.step(participant.outer().step() + 1, layout.buffer_size());
    participant.made({.tokens = job.at("tokens")});
  }
  participant.close();
  fmt::print("hash {}\n", participant.final_hash().value().hex());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("expected CONFIG COORDINATOR NAME JOB");
    return run(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
