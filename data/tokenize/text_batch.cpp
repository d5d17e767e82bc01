#include "tokenize/text_batch.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "isthmus/base/error.h"

namespace isthmus::data {

// ---- BatchCollector ----

bool BatchCollector::add(const Piece& piece) {
  constexpr std::size_t max_pieces = std::size_t{1} << 16;
  const bool full = batch_.text.size() >= TextBatch::usual_bytes || batch_.pieces.size() >= max_pieces;
  if (full && !pass_on(piece.place, piece.resumable)) return false;
  batch_.text += piece.text;
  batch_.pieces.push_back({batch_.text.size(), piece.first, piece.last});
  return true;
}

bool BatchCollector::pass_on(const Place& end, bool resumable) {
  if (batch_.pieces.empty()) return true;
  batch_.end = end;
  batch_.resumable = resumable;
  if (!use_(batch_)) return false;
  batch_.text.clear();
  batch_.pieces.clear();
  return true;
}

// ---- BatchEncoder ----

namespace {

template <class T>
void narrow(const std::vector<std::uint32_t>& ids, std::byte* out) {
  auto* const to = reinterpret_cast<T*>(out);  // `out` begins at a whole number of ids
  for (std::size_t i = 0; i < ids.size(); ++i) to[i] = static_cast<T>(ids[i]);
}

}  // namespace

void BatchEncoder::operator()(TextBatch& batch, TokenBatch& out) {
  out.ids.clear();
  out.starts.clear();
  out.end = batch.end;
  out.resumable = batch.resumable;
  std::size_t begin = 0;
  for (const auto& piece : batch.pieces) {
    ids_.clear();
    tokenizer_.encode(std::string_view(batch.text).substr(begin, piece.at - begin), ids_);
    if (piece.last) ids_.push_back(spec_.separator);
    begin = piece.at;
    if (piece.first) out.starts.push_back(static_cast<std::uint32_t>(out.ids.size() / spec_.stored_width()));
    append(out.ids);
  }
}

void BatchEncoder::append(Bytes& out) const {
  check();
  const auto at = out.size();
  out.resize(at + ids_.size() * spec_.stored_width());
  switch (spec_.stored_width()) {
    case 1:
      return narrow<std::uint8_t>(ids_, out.data() + at);
    case 2:
      return narrow<std::uint16_t>(ids_, out.data() + at);
    default:
      return narrow<std::uint32_t>(ids_, out.data() + at);
  }
}

void BatchEncoder::check() const {
  // No id is above the bitwise OR of all, which vectorises on any machine.
  std::uint32_t all = 0;
  for (const auto id : ids_) all |= id;
  if (all < spec_.vocab_size) return;
  for (const auto id : ids_) {
    if (id < spec_.vocab_size) continue;
    data_error(fmt::format("the tokenizer gives id {}, which is outside its vocabulary of {}", id,
                           spec_.vocab_size));
  }
}

// ---- IdBlock ----

std::size_t IdBlock::take(const TokenBatch& batch, std::size_t at, const StoreSpec& spec) {
  const auto width = spec.stored_width();
  const auto filled = ids.size() / width;
  const auto count = std::min(spec.block_tokens - filled, batch.ids.size() / width - at);
  auto start = std::lower_bound(batch.starts.begin(), batch.starts.end(), at);
  for (; start != batch.starts.end() && *start < at + count; ++start)
    starts.push_back(static_cast<std::uint32_t>(*start - at + filled));
  ids.resize((filled + count) * width);
  std::memcpy(ids.data() + filled * width, batch.ids.data() + at * width, count * width);
  return count;
}

}  // namespace isthmus::data
