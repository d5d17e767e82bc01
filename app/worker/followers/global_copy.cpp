#include "worker/followers/global_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "isthmus/base/error.h"
#include "worker/followers/follower.h"
#include "worker/setup/model_hello.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;

namespace {

/// Ends a wait in which nothing arrives.
class Patience {
 public:
  explicit Patience(std::chrono::seconds limit) : limit_(limit) {}
  /// `arrived` counts what has arrived.
  void check(std::uint64_t arrived) {
    if (arrived != arrived_) {
      arrived_ = arrived;
      since_ = Clock::now();
    }
    if (Clock::now() - since_ > limit_)
      throw Error(ErrorKind::network,
                  fmt::format("no state of the run has arrived for {} s: no trainer can send it at present",
                              limit_.count()));
  }

 private:
  std::chrono::seconds limit_;
  std::uint64_t arrived_ = 0;
  Clock::time_point since_ = Clock::now();
};

/// A fragment's state counts as arrived once all of it is here.
std::chrono::seconds patience_with(const outer_sync::FragmentLayout& layout) {
  constexpr std::uint64_t bytes_per_parameter = 8, bytes_per_second = 1'250'000;
  std::uint64_t largest = 0;
  for (const auto& fragment : layout.fragments()) largest = std::max(largest, fragment.size);
  return std::chrono::seconds(60 + largest * bytes_per_parameter / bytes_per_second);
}

}  // namespace

std::optional<GlobalCopy> copy_global_parameters(Experiment experiment, const trainer::ParameterTable& table,
                                                 const Digest& tokenizer, const std::string& name,
                                                 const std::string& build) {
  Patience waiting(patience_with(table.layout()));
  const Follower* known = nullptr;
  const auto hello = model_hello(experiment, table, tokenizer, name, build);
  Follower follower(experiment, table.layout(),
                    [&] { waiting.check(known == nullptr ? 0 : known->arrived()); });
  known = &follower;
  follower.join(hello);
  const bool ended = !follower.catch_up();
  if (!follower.has_state()) return std::nullopt;
  if (ended) static_cast<void>(follower.verdict());
  const auto global = follower.global_parameters();
  GlobalCopy copy{.parameters = {global.begin(), global.end()}, .step = follower.step(), .ended = ended};
  if (!ended) follower.leave("it has copied the model");
  return copy;
}

}  // namespace isthmus::app
