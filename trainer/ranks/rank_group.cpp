#include "isthmus/trainer/rank_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#ifdef ISTHMUS_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "device/batch.h"
#include "isthmus/base/error.h"
#include "ranks/first_line.h"

namespace isthmus::trainer {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

Store open_store(const RankGroupOptions& options) {
  const auto ranks = static_cast<int>(options.ranks);
  if (!options.meeting) return c10::make_intrusive<c10d::FileStore>(options.store.string(), ranks);
  c10d::TCPStoreOptions tcp;
  tcp.port = options.meeting->port;
  tcp.isServer = options.rank == 0;
  if (tcp.isServer) tcp.masterListenFd = options.meeting->listener;
  tcp.numWorkers = static_cast<std::size_t>(ranks);
  tcp.timeout = options.timeout;
  return c10::make_intrusive<c10d::TCPStore>(options.meeting->host, tcp);
}

c10::intrusive_ptr<c10d::Backend> join(const RankGroupOptions& options, const Store& store) {
  store->setTimeout(options.timeout);
  const auto rank = static_cast<int>(options.rank), ranks = static_cast<int>(options.ranks);
#ifdef ISTHMUS_WITH_CUDA
  if (options.device == Device::cuda) {
    // c10d's watchdog would end the process if a rank is silent; Isthmus detects that itself and calls
    // abort().
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
    const auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = options.timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, ranks, nccl);
  }
#endif
  const auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(
      options.meeting ? options.meeting->own_address : "127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, gloo);
}

}  // namespace

namespace {
std::string name_of(const RankGroupOptions& options) {
  return "rank " + std::to_string(options.rank) + " of " + std::to_string(options.ranks);
}
}  // namespace

struct RankGroup::Group {
  RankGroupOptions options;
  at::Device device;
  std::string name;
  Store store = {};
  c10::intrusive_ptr<c10d::Backend> backend = {};

  [[nodiscard]] at::Tensor tensor(std::span<float> values) const {
    return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                         at::TensorOptions(at::kFloat).device(device));
  }
  template <class Work>
  void work(const std::string& what, const Work& body) const {
    try {
      body();
    } catch (const std::exception& error) {
      throw Error(ErrorKind::network, what + " failed on " + name + ": " + first_line(error));
    }
  }
};

RankGroup::RankGroup(const RankGroupOptions& options)
    : RankGroup(std::make_unique<Group>(Group{options, torch_device(options.device), name_of(options)})) {}

RankGroup::RankGroup(std::unique_ptr<Group> group) : group_(std::move(group)) {
  const auto& options = group_->options;
  const auto place = options.meeting ? options.meeting->host + ":" + std::to_string(options.meeting->port)
                                     : options.store.string();
  group_->work("meeting at " + place, [&] {
    if (!group_->store) group_->store = open_store(options);
    group_->backend = join(options, group_->store);
  });
}
RankGroup::~RankGroup() {
  if (!group_->backend || aborted_) return;
  if (std::uncaught_exceptions() > 0) {  // others may wait for this rank, which never comes
    abort();
    return;
  }
  try {
    group_->backend->shutdown();
  } catch (const std::exception&) {
    // The other ranks are gone.
  }
}

void RankGroup::mean(std::span<float> values) {
  group_->work("averaging over ranks", [&] {
    std::vector<at::Tensor> tensors = {group_->tensor(values)};
    group_->backend->allreduce(tensors)->wait();
    tensors.front().div_(static_cast<double>(group_->options.ranks));
  });
}

void RankGroup::broadcast(std::span<float> values, std::uint32_t from) {
  if (values.empty()) return;
  group_->work("sending values to the other ranks", [&] {
    std::vector<at::Tensor> tensors = {group_->tensor(values)};
    c10d::BroadcastOptions how;
    how.rootRank = from;
    group_->backend->broadcast(tensors, how)->wait();
  });
}

void RankGroup::exchange(std::span<const std::byte> from, std::span<std::byte> to) {
  const auto bytes = [this](const std::byte* data, std::size_t size) {
    return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(size)},
                         at::TensorOptions(at::kByte).device(group_->device));
  };
  group_->work("exchanging the parts of sequences", [&] {
    auto in = bytes(from.data(), from.size()), out = bytes(to.data(), to.size());
    std::vector<std::int64_t> equal;
    group_->backend->alltoall_base(out, in, equal, equal)->wait();
  });
}

std::uint32_t RankGroup::rank() const { return group_->options.rank; }
std::uint32_t RankGroup::ranks() const { return group_->options.ranks; }

std::unique_ptr<RankGroup> RankGroup::sequences() const {
  const auto& all = group_->options;
  const auto together = all.ranks_per_sequence;
  if (together == 1) return nullptr;
  auto own = all;
  own.rank = all.rank % together;
  own.ranks = together;
  own.ranks_per_sequence = 1;
  const auto prefix = "sequences-" + std::to_string(all.rank / together);
  return std::unique_ptr<RankGroup>(new RankGroup(std::make_unique<Group>(Group{
      own, group_->device, group_->name, c10::make_intrusive<c10d::PrefixStore>(prefix, group_->store)})));
}

void RankGroup::settle() {
  group_->work("waiting for the GPU", [&] {
#ifdef ISTHMUS_WITH_CUDA
    if (group_->device.is_cuda()) c10::cuda::getCurrentCUDAStream(group_->device.index()).synchronize();
#endif
    if (aborted_) throw Error(ErrorKind::network, "another rank is lost");
  });
}

void RankGroup::abort() noexcept {
  aborted_ = true;
  if (group_->device.is_cpu()) return;
  try {
    group_->backend->abort();
  } catch (const std::exception&) {
    // It ended in another way; waiting callers find out.
  }
}

}  // namespace isthmus::trainer
