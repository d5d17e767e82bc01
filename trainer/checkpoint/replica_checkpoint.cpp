// A replica's state as sections of a checkpoint. Everything else about checkpoints needs no libtorch.

#include <cstring>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

namespace {

std::vector<float> take_floats(Checkpoint& checkpoint, const char* name, std::uint64_t size) {
  const auto& bytes = checkpoint.section(name);
  if (bytes.size() != size * sizeof(float)) {
    data_error("checkpoint " + checkpoint.file.string() + ": section " + name + " has " +
               std::to_string(bytes.size()) + " bytes; expected " + std::to_string(size * sizeof(float)));
  }
  std::vector<float> values(size);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  checkpoint.sections.erase(name);
  return values;
}

}  // namespace

void save_replica(const std::filesystem::path& file, const Digest& model, const ReplicaState& state,
                  std::span<const SectionView> others) {
  const auto view = [](const char* name, const std::vector<float>& values) {
    return SectionView{name, std::as_bytes(std::span(values))};
  };
  std::vector<SectionView> sections = {view(parameters_section, state.parameters),
                                       view(first_moment_section, state.first_moment),
                                       view(second_moment_section, state.second_moment)};
  sections.insert(sections.end(), others.begin(), others.end());
  write_checkpoint(file, model, state.steps, sections);
}

void save_replica(const std::filesystem::path& file, Replica& replica, std::span<const SectionView> others) {
  save_replica(file, replica.table().fingerprint(), replica.state(), others);
}

Checkpoint load_replica(const std::filesystem::path& file, Replica& replica) {
  auto checkpoint = read_checkpoint(file, replica.table().fingerprint());
  const auto size = replica.table().buffer_size();
  replica.restore({.steps = checkpoint.step,
                   .parameters = take_floats(checkpoint, parameters_section, size),
                   .first_moment = take_floats(checkpoint, first_moment_section, size),
                   .second_moment = take_floats(checkpoint, second_moment_section, size)});
  return checkpoint;
}

}  // namespace isthmus::trainer
