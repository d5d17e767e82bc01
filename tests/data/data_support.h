#pragma once
// What the data tests share.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/corpus.h"
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
