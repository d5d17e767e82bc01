#pragma once
// Finds the block size and codec that suit a corpus on this machine, by measurements on a sample of its ids.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/data/store.h"

namespace isthmus::data {

struct TuneOptions {
  /// A store, a nanoGPT or llm.c .bin file or a folder of them, a Megatron data set, or text: files, folders,
  /// JSONL.
  std::filesystem::path path;
  std::string tokenizer = "bytes";  ///< tokenizer for text (a store has its own)
  std::string text_field = "text";
  std::uint64_t sample_bytes = 8'000'000;  ///< bytes of sampled ids, from evenly spaced places
  std::uint32_t rounds = 5;  ///< measurements of each setting, in turn with the others; medians are reported
};

/// One measured setting. Rates count ids as training reads them (2 or 4 bytes each), on one thread, in
/// memory.
struct TuneRow {
  StoreSpec spec;
  double ratio = 0;                     ///< bytes of ids per stored byte
  double compress = 0, decompress = 0;  ///< bytes per second
  [[nodiscard]] double disk() const {
    return decompress / ratio;
  }  ///< disk rate that keeps one thread busy, bytes per second
};

struct TuneReport {
  std::uint64_t sampled_tokens = 0;
  std::uint32_t width = 2;  ///< bytes of an id
  std::vector<TuneRow> rows;
  std::size_t choice = 0;
  std::string reason;
};

/// Sets choice and reason: the setting with the smallest store, among settings with which one thread packs
/// and unpacks fast enough not to be waited for; or one with smaller blocks if its store is at most 2 %
/// larger. `rows` must not be empty.
void choose(TuneReport& report);

/// Calls `progress` with the fraction done, 0..1. Throws Error(data) if the corpus cannot be read;
/// Error(config) for the tokenizer.
[[nodiscard]] TuneReport tune(const TuneOptions& options, const std::function<void(double)>& progress);

}  // namespace isthmus::data
