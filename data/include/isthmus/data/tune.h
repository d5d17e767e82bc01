#pragma once
// Which block size and codec suit a corpus on this machine: measured, on a sample of its ids.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/data/store.h"

namespace isthmus::data {

struct TuneOptions {
  /// A store, a .bin file of nanoGPT's or llm.c's or a folder of them, a Megatron data set, or text: files,
  /// folders, JSONL.
  std::filesystem::path path;
  std::string tokenizer = "bytes";  ///< of text, and of ids the vocabulary; a store knows its own
  std::string text_field = "text";
  std::uint64_t sample_bytes = 8'000'000;  ///< of ids, from evenly spaced places
  std::uint32_t rounds = 5;  ///< each setting is measured so often, in turn with the others; medians count
};

/// One setting. Rates are of ids as training reads them (2 or 4 bytes each), on one thread, in memory.
struct TuneRow {
  StoreSpec spec;
  double ratio = 0;                     ///< bytes of ids for each byte that is stored
  double compress = 0, decompress = 0;  ///< bytes per second
  [[nodiscard]] double disk() const {
    return decompress / ratio;
  }  ///< what keeps one thread busy, bytes per second
};

struct TuneReport {
  std::uint64_t sampled_tokens = 0;
  std::uint32_t width = 2;  ///< bytes of an id
  std::vector<TuneRow> rows;
  std::size_t choice = 0;
  std::string reason;
};

/// Which of them to take, and why: of those with which one thread packs and unpacks fast enough never to be
/// waited for, the smallest; and of those that are as small but for 2 %, the one with the smallest blocks.
/// `rows` must not be empty.
void choose(TuneReport& report);

/// `progress` hears how much is done, 0..1. Throws Error(data) for what cannot be read; Error(config) for the
/// tokenizer.
[[nodiscard]] TuneReport tune(const TuneOptions& options, const std::function<void(double)>& progress);

}  // namespace isthmus::data
