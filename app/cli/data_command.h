#pragma once
// `isthmus data`: text to a chunk store, what is in one, and which settings suit a corpus.

#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/data/tokenize.h"
#include "isthmus/data/tune.h"

namespace isthmus::app {

struct DataRequest {
  // tokenize
  data::TokenizeOptions tokenize;
  std::string codec = "zstd", on_bad = "fail";
  bool jsonl = false, text = false;  ///< what standard input is
  // tune
  data::TuneOptions tune;
  std::uint64_t sample_megabytes = 8;
  // show
  std::filesystem::path folder;
  bool verify = false;
  bool json = false;  ///< of any
};

/// Each returns the exit status. They throw Error(config) or Error(data).
int run_data_tokenize(const DataRequest& request);
int run_data_tune(const DataRequest& request);
int run_data_show(const DataRequest& request);
/// `folder` is a run's.
int run_data_ledger(const DataRequest& request);

}  // namespace isthmus::app
