#include "worker/training/outer_gradient_recorder.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::app {

OuterGradientRecorder::OuterGradientRecorder(std::filesystem::path folder, std::uint64_t every)
    : folder_(std::move(folder)), every_(every) {
  std::error_code problem;
  std::filesystem::create_directories(folder_, problem);
  if (problem) throw Error(ErrorKind::data, "cannot make " + folder_.string() + ": " + problem.message());
}

void OuterGradientRecorder::operator()(outer_sync::FragmentId fragment, std::uint64_t step,
                                       std::span<const float> global, std::span<const float> local) {
  if (seen_[fragment]++ % every_ != 0) return;
  difference_.resize(global.size());
  for (std::size_t i = 0; i < global.size(); ++i) difference_[i] = global[i] - local[i];
  const auto file = folder_ / fmt::format("step_{:012}_fragment_{:03}.f32", step, fragment);
  const auto bytes = std::as_bytes(std::span(difference_));
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw Error(ErrorKind::data, "cannot write " + file.string());
}

}  // namespace isthmus::app
