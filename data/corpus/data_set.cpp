#include <fmt/format.h>
#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "corpus/token_stream.h"
#include "ids/highest_id.h"
#include "ids/token_source.h"
#include "isthmus/base/error.h"
#include "isthmus/data/corpus.h"

namespace isthmus::data {
namespace {

/// Each id must fit into `to_width` bytes.
void convert(const std::byte* from, std::uint32_t from_width, std::byte* to, std::uint32_t to_width,
             std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto id = id_at(from, from_width, i);
    std::memcpy(to + i * to_width, &id, to_width);
  }
}

}  // namespace

DataSet::DataSet(std::unique_ptr<const TokenSource> source, std::uint32_t vocab_size,
                 std::uint64_t heldout_begin, std::string name, double weight)
    : source_(std::move(source)),
      vocab_size_(vocab_size),
      heldout_begin_(std::min(heldout_begin, source_->tokens())),
      name_(std::move(name)),
      weight_(weight) {}
DataSet::DataSet(std::unique_ptr<TokenStream> stream, std::uint32_t vocab_size, std::string name)
    : stream_(stream.get()), vocab_size_(vocab_size), heldout_begin_(0), name_(std::move(name)), weight_(1) {
  source_ = std::move(stream);
}

std::uint64_t DataSet::tokens(Split split) const {
  if (stream_ != nullptr) {
    const auto heldout = stream_->heldout_tokens();
    return split == Split::heldout ? heldout : stream_->tokens() - heldout;
  }
  return split == Split::train ? heldout_begin_ : source_->tokens() - heldout_begin_;
}

std::uint64_t DataSet::block_tokens() const { return source_->block_tokens(); }

Digest DataSet::fingerprint() const { return source_->fingerprint(); }

void DataSet::read(Split split, std::uint64_t begin, std::uint64_t count, std::uint32_t width,
                   std::byte* out) const {
  assert(begin <= tokens(split) && count <= tokens(split) - begin);
  if (stream_ != nullptr) {
    begin += split == Split::train ? stream_->heldout_tokens() : 0;
  } else if (split == Split::heldout) {
    begin += heldout_begin_;
  }
  const auto own_width = source_->width();
  std::vector<std::byte> other(own_width == width ? 0 : count * own_width);
  auto* ids = own_width == width ? out : other.data();
  source_->read(begin, count, ids);
  if (highest_id(ids, own_width, count) >= vocab_size_) {
    std::uint64_t bad = 0;
    while (id_at(ids, own_width, bad) < vocab_size_) ++bad;
    data_error(
        fmt::format("{}: token id {} is outside the vocabulary of {} ids: set data.tokenizer to the "
                    "tokenizer that made the file, or to vocab:N",
                    source_->place(begin + bad), id_at(ids, own_width, bad), vocab_size_));
  }
  if (own_width != width) convert(ids, own_width, out, width, count);
}

}  // namespace isthmus::data
