#pragma once
// `isthmus data`: makes a chunk store from text, shows what one holds, and finds settings for a corpus.

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
  bool jsonl = false, text = false;  ///< format of standard input
  // tune
  data::TuneOptions tune;
  std::uint64_t sample_megabytes = 8;
  // show
  std::filesystem::path folder;
  bool verify = false;
  bool json = false;  ///< for all of them
};

/// Each returns the exit status, and throws Error(config) or Error(data).
int run_data_tokenize(const DataRequest& request);
int run_data_tune(const DataRequest& request);
int run_data_show(const DataRequest& request);
/// `folder` is the folder of a run.
int run_data_ledger(const DataRequest& request);

}  // namespace isthmus::app
