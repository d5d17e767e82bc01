#include "isthmus/outer_sync/outer_state.h"

#include <algorithm>
#include <cassert>

namespace isthmus::outer_sync {

bool fits(const OuterState::Vectors& vectors, const FragmentLayout& layout) {
  const auto n = layout.buffer_size();
  if (vectors.global.size() != n || vectors.velocity.size() != n) return false;
  if (vectors.residuals.size() != layout.chunk_count()) return false;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
    const auto size = vectors.residuals[k].size();
    if (size != 0 && size != layout.chunk(k).size) return false;
  }
  return true;
}

HostOuterState::HostOuterState(const FragmentLayout& layout, LocalParameters& local, bool error_feedback)
    : layout_(layout),
      local_(local),
      error_feedback_(error_feedback),
      global_(layout.buffer_size()),
      velocity_(layout.buffer_size(), 0.0F),
      residuals_(layout.chunk_count()) {
  take_local();
}

quant::Feedback HostOuterState::feedback(ChunkId chunk, float carried) {
  if (!error_feedback_) return {};
  residuals_[chunk].resize(layout_.chunk(chunk).size, 0.0F);
  return {residuals_[chunk], carried};
}

void HostOuterState::encode(FragmentId p, const OuterEncoding& how, const BufferPool& buffers,
                            const Leave& leave) {
  const auto& fragment = layout_.fragment(p);
  const auto local = local_.read(fragment);
  const auto chunks = layout_.chunks_of(p);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    auto bytes = buffers.take(quant::encoded_size(how.codec, chunk.size));
    const auto bad = quant::encode_difference(
        how.codec, global(chunk), local.subspan(chunk.begin - fragment.begin, chunk.size),
        feedback(k, how.carried), noise_of(layout_, k, how.noise_seed, how.round), *bytes);
    leave({k, bad, std::move(bytes)});
  }
}

std::optional<ChunkId> HostOuterState::apply(FragmentId p, const quant::CodecSpec& codec,
                                             std::span<const protocol::SharedBytes> results,
                                             const quant::OuterStep& rule) {
  const auto& fragment = layout_.fragment(p);
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  const auto local = local_.modify(fragment);
  std::optional<ChunkId> bad;
  for (auto k = chunks.first; k < chunks.last && !bad; ++k) {
    const auto& chunk = layout_.chunk(k);
    if (!quant::decode_apply(codec, *results[k - chunks.first], rule,
                             std::span(global_).subspan(chunk.begin, chunk.size),
                             std::span(velocity_).subspan(chunk.begin, chunk.size),
                             local.subspan(chunk.begin - fragment.begin, chunk.size))) {
      bad = k;
    }
  }
  local_.modified(fragment);
  return bad;
}

void HostOuterState::put_back(ChunkId k, const quant::CodecSpec& codec, const Bytes& bytes, float weight) {
  const auto& chunk = layout_.chunk(k);
  // An outer gradient is global minus local.
  [[maybe_unused]] const bool decoded = quant::decode_accumulate(codec, bytes, -weight, local_.modify(chunk));
  assert(decoded);
  local_.modified(chunk);
}

void HostOuterState::take_local() {
  std::ranges::copy(local_.read({0, layout_.buffer_size()}), global_.begin());
}

void HostOuterState::begin_from_global() {
  const Range all{0, layout_.buffer_size()};
  std::ranges::copy(global_, local_.modify(all).begin());
  local_.modified(all);
  for (auto& values : residuals_) values = {};
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

OuterState::Vectors HostOuterState::save() { return {global_, velocity_, residuals_}; }

void HostOuterState::restore(Vectors vectors) {
  assert(fits(vectors, layout_));
  global_ = std::move(vectors.global);
  velocity_ = std::move(vectors.velocity);
  residuals_ = std::move(vectors.residuals);
}

}  // namespace isthmus::outer_sync
