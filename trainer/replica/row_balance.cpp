#include "replica/row_balance.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

#include "ops/document_spans.h"

namespace isthmus::trainer {

namespace {

std::int64_t id_at(const data::Batch& batch, const std::byte* row, std::size_t token) {
  std::uint32_t id = 0;  // little-endian; rows need not be aligned
  std::memcpy(&id, row + token * batch.width, batch.width);
  return id;
}

}  // namespace

std::vector<double> attention_work(const data::Batch& batch, std::int64_t separator) {
  std::vector<double> work;
  std::vector<std::int32_t> begins(static_cast<std::size_t>(batch.seq_len));
  for (const auto* row : batch.rows) {
    for (std::size_t t = 1; t < begins.size(); ++t)
      begins[t] = id_at(batch, row, t - 1) == separator ? static_cast<std::int32_t>(t) : begins[t - 1];
    auto& sum = work.emplace_back(0);
    for (const auto& span : document_spans(begins)) sum += static_cast<double>(span.size * span.size);
  }
  return work;
}

std::vector<std::size_t> balanced_rows(std::span<const double> work, std::size_t parts) {
  assert(parts > 0 && work.size() % parts == 0);
  const auto room = work.size() / parts;
  std::vector<std::size_t> by_work(work.size());
  std::iota(by_work.begin(), by_work.end(), std::size_t{0});
  std::ranges::stable_sort(by_work, [&](auto a, auto b) { return work[a] > work[b]; });
  struct Part {
    double work = 0;
    std::vector<std::size_t> rows = {};
  };
  std::vector<Part> dealt(parts);
  for (const auto row : by_work) {
    Part* least = nullptr;
    for (auto& part : dealt) {
      if (part.rows.size() < room && (least == nullptr || part.work < least->work)) least = &part;
    }
    least->work += work[row];
    least->rows.push_back(row);
  }
  std::vector<std::size_t> out;
  for (auto& part : dealt) {
    std::ranges::sort(part.rows);
    out.insert(out.end(), part.rows.begin(), part.rows.end());
  }
  return out;
}

}  // namespace isthmus::trainer
