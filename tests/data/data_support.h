#pragma once
// What the data tests share.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/loader.h"
#include "temporary_folder.h"

namespace isthmus::data {

/// The message of the Error that `call` throws; fails the test if it throws none or one of another kind.
template <class Call>
std::string error_of(ErrorKind kind, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

inline DataConfig config_of(const std::filesystem::path& path, std::int64_t seq_len = 4,
                            double heldout = 0.1) {
  DataConfig config;
  config.path = path.string();
  config.seq_len = seq_len;
  config.heldout = heldout;
  return config;
}

/// A whole part of a corpus.
inline std::vector<std::int64_t> tokens_of(const Corpus& corpus, Split split) {
  std::vector<std::int64_t> out(corpus.tokens(split));
  corpus.read(split, 0, out);
  return out;
}

/// As text, separators as '|'.
inline std::string text_of(const Corpus& corpus, Split split) {
  std::string text;
  for (const auto id : tokens_of(corpus, split)) text += id == 0 ? '|' : static_cast<char>(id);
  return text;
}

/// Row `index` of a batch in host memory: seq_len + 1 ids.
inline std::vector<std::int64_t> row_of(const Batch& batch, std::int64_t index) {
  std::vector<std::int64_t> row;
  const auto* ids = batch.rows[static_cast<std::size_t>(index)];
  for (std::int64_t i = 0; i <= batch.seq_len; ++i) {
    std::uint32_t id = 0;
    std::memcpy(&id, ids + static_cast<std::size_t>(i) * batch.width, batch.width);
    row.push_back(id);
  }
  return row;
}

/// The inputs of all its rows.
inline std::vector<std::int64_t> inputs_of(const Batch& batch) {
  std::vector<std::int64_t> inputs;
  for (std::int64_t b = 0; b < batch.sequences(); ++b) {
    const auto row = row_of(batch, b);
    inputs.insert(inputs.end(), row.begin(), row.end() - 1);
  }
  return inputs;
}

/// Little-endian uint16 ids 0, 1, 2, ... as a .bin file has them.
inline std::string counting_ids(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(i & 255);
    bytes += static_cast<char>(i >> 8);
  }
  return bytes;
}

}  // namespace isthmus::data
