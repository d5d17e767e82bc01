#pragma once
// Algorithm 2 of arXiv 2501.18512, and the same with the carry merge (docs/numerics.md), written again one
// number at a time, with all replicas in one loop. The tests compare the real outer loop with it. It shares
// no code with the outer loop; its arithmetic is fp32, one rounding per operation.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace isthmus::outer_sync {

struct Algorithm2 {
  std::int64_t every, fragments, delay;  // H, P, tau
  float alpha, lr, momentum;
  bool nesterov, carry;
  std::vector<std::int64_t> fragment_of;  // of each element; -1 is padding
  std::vector<float> global, velocity;
  std::vector<std::vector<float>> local;  // by replica
  std::vector<std::vector<float>> sent;   // by replica
  std::vector<std::int64_t> in_flight;    // fragments, in the order they were sent
  std::int64_t change = 0;                // H changes after this step; 0: never
  std::int64_t every_then = 0;            // H after the change; fragments are staggered anew

  void start(const std::vector<float>& initial, std::size_t replicas) {
    global = initial;
    velocity.assign(initial.size(), 0.0F);
    local.assign(replicas, initial);
    sent = local;
  }

  [[nodiscard]] bool due(std::int64_t p, std::int64_t t) const {
    if (change > 0 && t > change) return due_then(p, t);
    const auto offset = p * every / fragments;
    return t >= 1 && ((t - offset) % every + every) % every == 0;
  }

  /// Like `due`, after the change of H. A send that would overtake the fragment's last result is left out.
  [[nodiscard]] bool due_then(std::int64_t p, std::int64_t t) const {
    auto last = change;
    while (last > 0 && !due(p, last)) --last;
    const auto offset = p * every_then / fragments;
    const auto since = t - change;
    return since >= std::max<std::int64_t>(offset, 1) && (since - offset) % every_then == 0 &&
           (last == 0 || t > last + delay);
  }

  void send(std::int64_t p) {
    for (std::size_t m = 0; m < local.size(); ++m) {
      for (std::size_t i = 0; i < global.size(); ++i) {
        if (fragment_of[i] == p) sent[m][i] = global[i] - local[m][i];
      }
    }
    in_flight.push_back(p);
  }

  void apply(std::int64_t p, float weight, bool carries) {
    for (std::size_t i = 0; i < global.size(); ++i) {
      if (fragment_of[i] != p) continue;
      float sum = 0;
      for (const auto& delta : sent) sum += delta[i];
      const float g = sum / static_cast<float>(local.size());
      velocity[i] = momentum * velocity[i] + g;
      const float direction = nesterov ? g + momentum * velocity[i] : velocity[i];
      const float before = global[i];
      global[i] = global[i] - lr * direction;
      for (std::size_t m = 0; m < local.size(); ++m) {
        auto& theta = local[m][i];
        if (carries) {
          theta = theta + (global[i] - before);
          theta = theta + sent[m][i];
        } else {
          theta = weight * theta + (1 - weight) * global[i];
        }
      }
    }
    std::erase(in_flight, p);
  }

  /// Call after inner step t, counted from 1.
  void after_step(std::int64_t t) {
    for (std::int64_t p = 0; p < fragments; ++p) {
      if (due(p, t)) send(p);
    }
    for (std::int64_t p = 0; p < fragments; ++p) {
      if (t > delay && due(p, t - delay)) apply(p, alpha, carry);
    }
  }

  void finish(bool final_sync) {
    while (!in_flight.empty()) apply(in_flight.front(), alpha, carry);
    for (std::int64_t p = 0; final_sync && p < fragments; ++p) send(p);
    while (!in_flight.empty()) apply(in_flight.front(), 0, false);
  }
};

}  // namespace isthmus::outer_sync
