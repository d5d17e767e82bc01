// How evenly the rows of a batch are dealt to the ranks of a replica:  bench_row_balance [--ranks R] [--batch
// B]
// [--seq-len T] [--median M] [--sigma S] [--batches N]
//
// Draws the lengths of documents from a log-normal distribution, and prints the mean over batches of the most
// loaded rank's attention work, relative to the mean of all ranks: for rows in the order of the loader, and
// as SiteReplica deals them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "replica/row_balance.h"

namespace isthmus::trainer {
namespace {

struct Request {
  std::size_t ranks = 8, batch = 64, batches = 200;
  std::int64_t seq_len = 4096;
  double median = 500, sigma = 1.2;
};

/// Windows of a stream of documents: ids are 1, and 0 at the end of a document.
class Stream {
 public:
  explicit Stream(const Request& request) : length_(std::log(request.median), request.sigma) {}
  std::vector<std::uint16_t> next(std::size_t tokens) {
    std::vector<std::uint16_t> ids(tokens, 1);
    for (std::size_t t = 0; t < tokens; ++t) {
      if (left_ == 0) left_ = 1 + static_cast<std::uint64_t>(length_(random_));
      if (--left_ == 0) ids[t] = 0;
    }
    return ids;
  }

 private:
  std::mt19937_64 random_{1};
  std::lognormal_distribution<double> length_;
  std::uint64_t left_ = 0;
};

/// The largest of the ranks' sums, relative to their mean; `rows` are dealt in equal parts.
double imbalance(std::span<const double> work, std::span<const std::size_t> rows, std::size_t ranks) {
  std::vector<double> sums(ranks);
  double all = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sums[i * ranks / rows.size()] += work[rows[i]];
    all += work[rows[i]];
  }
  return std::ranges::max(sums) * static_cast<double>(ranks) / all;
}

void measure(const Request& request) {
  Stream stream(request);
  double in_order = 0, dealt = 0;
  std::vector<std::size_t> order(request.batch);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (std::size_t n = 0; n < request.batches; ++n) {
    const auto row = static_cast<std::size_t>(request.seq_len) + 1;
    const auto ids = stream.next(request.batch * row);
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < request.batch; ++i)
      rows.push_back(reinterpret_cast<const std::byte*>(ids.data() + i * row));
    data::Batch batch;
    batch.rows = rows;
    batch.seq_len = request.seq_len;
    const auto work = attention_work(batch, 0);
    in_order += imbalance(work, order, request.ranks);
    dealt += imbalance(work, balanced_rows(work, request.ranks), request.ranks);
  }
  const auto batches = static_cast<double>(request.batches);
  fmt::print("{{\"in_order\": {:.3f}, \"dealt\": {:.3f}}}\n", in_order / batches, dealt / batches);
}

}  // namespace
}  // namespace isthmus::trainer

int main(int argc, char** argv) {
  isthmus::trainer::Request request;
  CLI::App app("how evenly rows are dealt to ranks");
  app.add_option("--ranks", request.ranks)->check(CLI::Range(1, 1024));
  app.add_option("--batch", request.batch, "a multiple of --ranks")->check(CLI::Range(1, 1 << 16));
  app.add_option("--seq-len", request.seq_len)->check(CLI::Range(2, 1 << 20));
  app.add_option("--median", request.median, "tokens of a document")->check(CLI::PositiveNumber);
  app.add_option("--sigma", request.sigma, "of the logarithm of its length")->check(CLI::NonNegativeNumber);
  app.add_option("--batches", request.batches)->check(CLI::Range(1, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  if (request.batch % request.ranks != 0) {
    fmt::print(stderr, "bench_row_balance: --batch {} is not a multiple of --ranks {}\n", request.batch,
               request.ranks);
    return 2;
  }
  isthmus::trainer::measure(request);
}
