#include "isthmus/trainer/gloo.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "isthmus/base/error.h"
#include "ranks/first_line.h"

namespace isthmus::trainer {
namespace {

c10::intrusive_ptr<c10d::Store> meet(const GlooOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = options.store_port;
  store.isServer = options.rank == 0;
  store.numWorkers = static_cast<std::size_t>(options.world);
  store.timeout = options.timeout;
  return c10::make_intrusive<c10d::TCPStore>(options.store_host, store);
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> join_gloo(const GlooOptions& options) {
  auto group = c10d::ProcessGroupGloo::Options::create(options.timeout);
  group->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.listen_host));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(meet(options), options.rank, options.world, group);
}

}  // namespace

struct GlooAllReduce::Group {
  GlooOptions options;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

GlooAllReduce::GlooAllReduce(const GlooOptions& options)
    : group_(std::make_unique<Group>(Group{options, {}})) {
  try {
    group_->gloo = join_gloo(options);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::network,
                "rank " + std::to_string(options.rank) + " of " + std::to_string(options.world) +
                    " could not join the others through the store at " + options.store_host + ":" +
                    std::to_string(options.store_port) + ": " + first_line(error));
  }
}
GlooAllReduce::~GlooAllReduce() = default;

void GlooAllReduce::mean(std::span<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<at::Tensor> tensors = {at::from_blob(values.data(), {count}, at::kFloat)};
  try {
    group_->gloo->allreduce(tensors)->wait();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::network, "averaging gradients failed on rank " +
                                        std::to_string(group_->options.rank) + ": " + first_line(error));
  }
  const auto world = static_cast<std::uint64_t>(group_->options.world);
  const auto divisor = static_cast<float>(world);
  for (auto& value : values) value /= divisor;
  sent_bytes_ += 2 * (world - 1) * sizeof(float) * values.size() / world;
}

}  // namespace isthmus::trainer
