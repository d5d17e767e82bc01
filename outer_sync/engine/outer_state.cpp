#include "isthmus/outer_sync/engine/outer_state.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "isthmus/outer_sync/engine/audit.h"

namespace isthmus::outer_sync {

bool fits(const OuterState::Vectors& vectors, const FragmentLayout& layout, bool eager) {
  const auto n = layout.buffer_size();
  if (vectors.global.size() != n || vectors.velocity.size() != n) return false;
  const auto ahead = eager ? n : 0;
  if (vectors.ahead.size() != ahead || vectors.ahead_velocity.size() != ahead) return false;
  if (vectors.residuals.size() != layout.chunk_count()) return false;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
    const auto size = vectors.residuals[k].size();
    if (size != 0 && size != layout.chunk(k).size) return false;
  }
  return true;
}

double distance_of(const quant::Products& products) {
  const double squared = (products.xx - products.xy) - (products.xy - products.yy);
  return squared < 0 ? 0 : std::sqrt(squared);
}

HostOuterState::HostOuterState(const FragmentLayout& layout, LocalParameters& local, bool error_feedback,
                               bool eager)
    : layout_(layout),
      local_(local),
      error_feedback_(error_feedback),
      global_(layout.buffer_size()),
      velocity_(layout.buffer_size(), 0.0F),
      residuals_(layout.chunk_count()) {
  if (eager) ahead_.emplace(layout.buffer_size());
  take_local();
}

quant::Feedback HostOuterState::feedback(ChunkId chunk, float carried) {
  if (!error_feedback_) return {};
  residuals_[chunk].resize(layout_.chunk(chunk).size, 0.0F);
  return {residuals_[chunk], carried};
}

/// The values that the local parameters started their round with.
std::span<const float> HostOuterState::start(Range range) {
  if (!ahead_) return global(range);
  scratch_.resize(range.size);
  for (std::size_t i = 0; i < range.size; ++i)
    scratch_[i] = global_[range.begin + i] + ahead_->parameters[range.begin + i];
  return scratch_;
}

HandOver HostOuterState::encode(FragmentId p, const OuterEncoding& how, const BufferPool& buffers,
                                Leave leave) {
  const auto& fragment = layout_.fragment(p);
  const auto local = local_.read(fragment);
  const auto chunks = layout_.chunks_of(p);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    auto bytes = buffers.take(quant::encoded_size(how.codec, chunk.size));
    const auto bad = quant::encode_difference(
        how.codec, start(chunk), local.subspan(chunk.begin - fragment.begin, chunk.size),
        feedback(k, how.carried), noise_of(layout_, k, how.noise_seed, how.round), *bytes);
    leave({k, bad, std::move(bytes)});
  }
  return {};
}

std::optional<quant::Products> HostOuterState::products(FragmentId p, const quant::CodecSpec& codec,
                                                        std::span<const protocol::SharedBytes> results) {
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  quant::Products out;
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    scratch_.resize(chunk.size);
    if (!quant::decode(codec, *results[k - chunks.first], scratch_)) return std::nullopt;
    quant::add_products(velocity(chunk), scratch_, out);
  }
  return out;
}

std::optional<ChunkId> HostOuterState::apply(FragmentId p, const quant::CodecSpec& codec,
                                             std::span<const protocol::SharedBytes> results,
                                             const methods::OuterRule& rule) {
  const auto& fragment = layout_.fragment(p);
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  const auto local = local_.modify(fragment);
  std::optional<ChunkId> bad;
  for (auto k = chunks.first; k < chunks.last && !bad; ++k) {
    const auto& chunk = layout_.chunk(k);
    const auto& bytes = *results[k - chunks.first];
    const auto theta = std::span(global_).subspan(chunk.begin, chunk.size);
    const auto velocity = std::span(velocity_).subspan(chunk.begin, chunk.size);
    const auto own = local.subspan(chunk.begin - fragment.begin, chunk.size);
    if (!methods::apply(rule, codec, bytes, theta, velocity, own)) bad = k;
  }
  local_.modified(fragment);
  return bad;
}

void HostOuterState::shift_local(FragmentId p, const quant::CodecSpec& codec,
                                 std::span<const protocol::SharedBytes> own, float weight) {
  const auto& fragment = layout_.fragment(p);
  const auto first = layout_.chunks_of(p).first;
  const auto local = local_.modify(fragment);
  for (ChunkId i = 0; i < own.size(); ++i) {
    if (!own[i]) continue;
    const auto& chunk = layout_.chunk(first + i);
    [[maybe_unused]] const bool decoded = quant::decode_accumulate(
        codec, *own[i], weight, local.subspan(chunk.begin - fragment.begin, chunk.size));
    assert(decoded);
  }
  local_.modified(fragment);
}

void HostOuterState::go_ahead(FragmentId p, const quant::CodecSpec& codec,
                              std::span<const protocol::SharedBytes> fresh,
                              std::span<const protocol::SharedBytes> stale, float share,
                              const quant::OuterStep& step) {
  const auto& fragment = layout_.fragment(p);
  const auto chunks = layout_.chunks_of(p);
  // Modify the whole fragment at once, so that parameters stored elsewhere are copied only once.
  const auto local = local_.modify(fragment);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    scratch_.assign(chunk.size, 0.0F);
    const auto add = [&](std::span<const protocol::SharedBytes> own, float weight) {
      const auto i = k - chunks.first;
      if (i >= own.size() || !own[i]) return;
      [[maybe_unused]] const bool decoded = quant::decode_accumulate(codec, *own[i], weight, scratch_);
      assert(decoded);
    };
    add(fresh, share);
    add(stale, -share);
    if (ahead_) ahead_->move(chunk, scratch_, step);
    std::ranges::copy(start(chunk), local.subspan(chunk.begin - fragment.begin, chunk.size).begin());
  }
  local_.modified(fragment);
}

void HostOuterState::take_local() {
  std::ranges::copy(local_.read({0, layout_.buffer_size()}), global_.begin());
}

void HostOuterState::begin_from_global() {
  const Range all{0, layout_.buffer_size()};
  std::ranges::copy(global_, local_.modify(all).begin());
  local_.modified(all);
  for (auto& values : residuals_) values = {};
  if (ahead_) ahead_.emplace(layout_.buffer_size());
}

std::span<const float> HostOuterState::global(Range range) {
  return std::span(global_).subspan(range.begin, range.size);
}
std::span<const float> HostOuterState::velocity(Range range) {
  return std::span(velocity_).subspan(range.begin, range.size);
}

void HostOuterState::install(FragmentId p, std::span<const float> theta, std::span<const float> velocity) {
  const auto at = static_cast<std::ptrdiff_t>(layout_.fragment(p).begin);
  assert(theta.size() == layout_.fragment(p).size && velocity.size() == theta.size());
  std::ranges::copy(theta, global_.begin() + at);
  std::ranges::copy(velocity, velocity_.begin() + at);
}

double HostOuterState::spread(FragmentId p) {
  const auto& fragment = layout_.fragment(p);
  quant::Products products;
  quant::add_products(local_.read(fragment), global(fragment), products);
  return distance_of(products);
}

std::uint64_t HostOuterState::audit(FragmentId p) {
  const auto& fragment = layout_.fragment(p);
  return combined(digest_of(global(fragment)), digest_of(velocity(fragment)));
}

void HostOuterState::save_agreed(BinaryWriter& out) {
  out.expect(2 * layout_.buffer_size() * sizeof(float));
  out(global_, velocity_);
}

void HostOuterState::save_own(BinaryWriter& out) {
  const std::size_t vectors = (error_feedback_ ? 1 : 0) + (ahead_ ? 2 : 0);
  out.expect(vectors * layout_.buffer_size() * sizeof(float));
  out(residuals_);
  const AlignedVector<float> none;
  out(ahead_ ? ahead_->parameters : none, ahead_ ? ahead_->velocity : none);
}

void HostOuterState::restore(Vectors vectors) {
  assert(fits(vectors, layout_, ahead_.has_value()));
  global_ = std::move(vectors.global);
  velocity_ = std::move(vectors.velocity);
  residuals_ = std::move(vectors.residuals);
  if (ahead_) ahead_->parameters = std::move(vectors.ahead);
  if (ahead_) ahead_->velocity = std::move(vectors.ahead_velocity);
}

}  // namespace isthmus::outer_sync
