// table_worker CONFIG COORDINATOR NAME JOB: a replica of the C++ outer loop with inner steps from a table,
// for comparison with the Python binding. JOB is a JSON file: tensors as [name, shape, first element],
// fragments as [first element, elements], `tokens` of a step, and `values`, a file of fp32: the initial
// buffer, then the change of each step, from the first one again after the last. Prints the global hash at
// the end. With `moments` in JOB it joins a run in progress, and writes the state that it copied to that
// file: the number of inner steps and both moments, as fp32.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
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

class Table final : public outer_sync::LocalParameters, public outer_sync::InnerMoments {
 public:
  Table(const std::string& file, std::size_t size) : size_(size), first_(size), second_(size) {
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

  [[nodiscard]] std::uint64_t steps() const override { return steps_; }
  std::span<const float> first_moment(Range range) override {
    return std::span(first_).subspan(range.begin, range.size);
  }
  std::span<const float> second_moment(Range range) override {
    return std::span(second_).subspan(range.begin, range.size);
  }
  void set_moments(Range range, std::span<const float> first, std::span<const float> second) override {
    std::copy(first.begin(), first.end(), first_.begin() + static_cast<std::ptrdiff_t>(range.begin));
    std::copy(second.begin(), second.end(), second_.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  void set_steps(std::uint64_t steps) override { steps_ = steps; }

  /// Steps count from 1.
  void step(std::size_t number) {
    const auto row = (number - 1) % (values_.size() / size_ - 1) + 1;
    for (std::size_t i = 0; i < size_; ++i) values_[i] += values_.at(row * size_ + i);
    ++steps_;
  }
  void write_moments(const std::string& file) const {
    std::vector<float> all = {static_cast<float>(steps_)};
    all.insert(all.end(), first_.begin(), first_.end());
    all.insert(all.end(), second_.begin(), second_.end());
    std::ofstream(file + ".new", std::ios::binary)
        .write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(4 * all.size()));
    std::filesystem::rename(file + ".new", file);
  }

 private:
  std::size_t size_;
  std::vector<float> values_, first_, second_;
  std::uint64_t steps_ = 0;
};

/// Without a file for moments, the run must not have begun already.
class TableHooks final : public app::TrainingHooks {
 public:
  TableHooks(const Table& table, std::string moments) : table_(table), moments_(std::move(moments)) {}
  void say(const std::string&) override {}
  Restored restore(std::uint64_t) override { throw std::runtime_error("there is no checkpoint"); }
  void took_state(const app::Participant&, double) override {
    if (moments_.empty()) throw std::runtime_error("the run has begun already");
    table_.write_moments(moments_);
  }

 private:
  const Table& table_;
  std::string moments_;
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

  Table table(job.at("values"), layout.buffer_size());
  Trace trace;
  const auto moments = job.value("moments", std::string());
  TableHooks hooks(table, moments);
  app::Participant participant(
      {.experiment = experiment,
       .name = name,
       .layout = layout,
       .state = std::make_unique<outer_sync::OuterState>(layout, table, experiment.outer.sender_feedback()),
       .member = std::make_unique<app::NodeMembership>(
           experiment, layout, trace,
           outer_sync::MemberOptions{.moments = !moments.empty() && experiment.join.moments()}),
       .trace = trace},
      hooks);
  if (!moments.empty()) participant.outer().share_moments(table);
  auto hello = app::hello_of(experiment, name, "table_worker");
  hello.model = outer_sync::fingerprint_of(tensors, layout);
  hello.tokenizer = data::make_tokenizer(experiment.data.tokenizer)->fingerprint();
  participant.join(std::move(hello));
  while (participant.next()) {
    table.step(participant.outer().step() + 1);
    participant.made({.tokens = job.at("tokens")});
  }
  participant.close();
  if (const auto hash = participant.final_hash()) fmt::print("hash {}\n", hash->hex());
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
