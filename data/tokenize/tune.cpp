#include "isthmus/data/tune.h"

#include <time.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/data/tokenizer.h"
#include "store/block_codec.h"
#include "store/open_ids.h"
#include "store/store_format.h"
#include "text/documents.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
constexpr std::uint32_t block_sizes[] = {16384, 65536, 262144};
constexpr std::uint32_t max_block = 262144;

struct Setting {
  StoreCodec codec;
  std::int32_t level;
};
constexpr Setting settings[] = {{StoreCodec::none, 0}, {StoreCodec::lz4, 1},  {StoreCodec::lz4, 9},
                                {StoreCodec::zstd, 1}, {StoreCodec::zstd, 3}, {StoreCodec::zstd, 6},
                                {StoreCodec::zstd, 9}};

/// Processor seconds of this thread, which other processes do not affect.
double cpu_seconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Rates at which one thread packs as fast as all cores of a usual machine tokenise by BPE, and unpacks
/// faster than any trainer reads.
constexpr double min_compress = 100e6, min_decompress = 500e6;
constexpr double worth_a_larger_block = 0.02;

/// Runs of ids in stored_width() bytes each: whole blocks of every size, if there are enough ids.
struct Sample {
  StoreSpec spec;
  std::vector<Bytes> runs;
  [[nodiscard]] std::uint64_t tokens() const {
    std::uint64_t bytes = 0;
    for (const auto& run : runs) bytes += run.size();
    return bytes / spec.stored_width();
  }
};

std::uint64_t runs_of(const TuneOptions& options, const StoreSpec& spec) {
  return std::max<std::uint64_t>(1, options.sample_bytes / (std::uint64_t{max_block} * spec.width()));
}

Bytes narrowed(std::span<const std::uint32_t> ids, std::uint32_t width) {
  Bytes out(ids.size() * width);
  for (std::size_t i = 0; i < ids.size(); ++i) std::memcpy(out.data() + i * width, &ids[i], width);
  return out;
}

Sample sample_of(const TokenSource& source, const StoreSpec& spec, const TuneOptions& options) {
  Sample sample{spec, {}};
  const auto runs = runs_of(options, spec);
  const auto length = std::min<std::uint64_t>(max_block, source.tokens());
  std::vector<std::byte> bytes(length * source.width());
  std::vector<std::uint32_t> ids(length);
  for (std::uint64_t i = 0; i < runs && i * length < source.tokens(); ++i) {
    const auto begin = runs == 1 ? 0 : (source.tokens() - length) / (runs - 1) * i;
    source.read(begin, length, bytes.data());
    for (std::size_t k = 0; k < length; ++k) ids[k] = id_at(bytes.data(), source.width(), k);
    sample.runs.push_back(narrowed(ids, spec.stored_width()));
  }
  return sample;
}

/// Samples text from evenly spaced bytes on; the first piece there may begin in the middle of a line.
Sample sample_of_text(const TuneOptions& options) {
  const auto tokenizer = make_tokenizer(options.tokenizer);
  Sample sample;
  sample.spec.vocab_size = tokenizer->vocab_size();
  sample.spec.separator = tokenizer->separator();
  BadDocuments found(BadDocuments::Policy::fail), bad(BadDocuments::Policy::skip);
  const std::vector<std::string> paths = {options.path.string()};
  const auto files = find_documents(paths, std::nullopt, found);
  DocumentOptions document_options;
  document_options.text_field = options.text_field;
  std::uint64_t all = 0;
  for (const auto& file : files) all += file.bytes;
  const auto runs = runs_of(options, sample.spec);
  std::uint64_t before = 0;
  Place place;
  std::vector<std::uint32_t> ids;
  for (std::uint64_t i = 0; i < runs; ++i) {
    const auto target = all / runs * i;
    while (place.file < files.size() && before + files[place.file].bytes <= target)
      before += files[place.file++].bytes;
    if (place.file == files.size()) break;
    place.offset = target - before;
    place.inside = place.offset > 0;
    ids.clear();
    (void)for_each_document(files, document_options, bad, place, [&](const Piece& piece) {
      tokenizer->encode(piece.text, ids);
      if (piece.last) ids.push_back(tokenizer->separator());
      return ids.size() < max_block;
    });
    ids.resize(std::min<std::size_t>(ids.size(), max_block));
    if (!ids.empty()) sample.runs.push_back(narrowed(ids, sample.spec.stored_width()));
  }
  return sample;
}

Sample take_sample(const TuneOptions& options) {
  std::optional<StoreSpec> spec;
  const auto source =
      open_ids(options.path, std::nullopt, [&](const StoreSpec& of_store) { spec = of_store; });
  if (!source) return sample_of_text(options);
  if (!spec) {
    spec.emplace();
    spec->vocab_size = source->width() == 2 ? 65536 : 0xFFFF'FFFF;
  }
  return sample_of(*source, *spec, options);
}

/// A setting that is being measured.
class Candidate {
 public:
  explicit Candidate(const StoreSpec& spec) : spec_(spec), encoder_(spec), decoder_(spec) {}

  void measure(const Sample& sample) {
    std::size_t count = 0;
    const auto begin = cpu_seconds();
    each_block(sample, [&](std::span<const std::byte> ids) {
      if (count == records_.size()) records_.emplace_back();
      encoder_.encode(ids, {}, records_[count++]);
    });
    const auto middle = cpu_seconds();
    count = 0;
    bool sound = true;
    each_block(sample, [&](std::span<const std::byte> ids) {
      out_.resize(ids.size() / spec_.stored_width() * spec_.width());
      sound &= decoder_.ids(records_[count++], out_).empty();
    });
    if (!sound) data_error("packed data does not unpack: this machine is faulty");
    compress_.push_back(middle - begin);
    decompress_.push_back(cpu_seconds() - middle);
    stored_ = 0;
    for (std::size_t i = 0; i < count; ++i) stored_ += records_[i].size() + store::entry_bytes;
    std::vector<Bytes>().swap(records_);  // frees the processor's caches for the others
  }

  [[nodiscard]] TuneRow row(const Sample& sample) {
    const auto bytes = static_cast<double>(sample.tokens() * spec_.width());
    return {spec_, bytes / static_cast<double>(stored_), bytes / median(compress_),
            bytes / median(decompress_)};
  }

 private:
  template <class Use>
  void each_block(const Sample& sample, const Use& use) const {
    const auto size = std::size_t{spec_.block_tokens} * spec_.stored_width();
    for (const auto& run : sample.runs) {
      for (std::size_t at = 0; at < run.size(); at += size)
        use(std::span(run).subspan(at, std::min(size, run.size() - at)));
    }
  }
  static double median(std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  StoreSpec spec_;
  store::BlockEncoder encoder_;
  store::BlockDecoder decoder_;
  std::vector<Bytes> records_;
  Bytes out_;
  std::vector<double> compress_, decompress_;
  std::uint64_t stored_ = 0;
};

}  // namespace

void choose(TuneReport& report) {
  assert(!report.rows.empty());
  const auto& rows = report.rows;
  const auto fast = [](const TuneRow& row) {
    return row.compress >= min_compress && row.decompress >= min_decompress;
  };
  double best = 0;
  for (const auto& row : rows) {
    if (fast(row)) best = std::max(best, row.ratio);
  }
  if (best == 0) {
    const auto fastest = std::max_element(
        rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.decompress < b.decompress; });
    report.choice = static_cast<std::size_t>(fastest - rows.begin());
    report.reason = "unpacks fastest: no setting packs 100 MB/s and unpacks 500 MB/s on one thread";
    return;
  }
  const auto worse = [&](const TuneRow& a, const TuneRow& b) {
    return a.spec.block_tokens != b.spec.block_tokens ? a.spec.block_tokens > b.spec.block_tokens
                                                      : a.compress < b.compress;
  };
  const TuneRow* choice = nullptr;
  for (const auto& row : rows) {
    if (!fast(row) || row.ratio < best * (1 - worth_a_larger_block)) continue;
    if (choice == nullptr || worse(*choice, row)) choice = &row;
  }
  report.choice = static_cast<std::size_t>(choice - rows.data());
  report.reason = "smallest of those that pack 100 MB/s and unpack 500 MB/s on one thread";
  if (choice->ratio < best) report.reason += ", to within 2 %: chosen for smaller blocks or speed";
}

TuneReport tune(const TuneOptions& options, const std::function<void(double)>& progress) {
  const auto sample = take_sample(options);
  if (sample.tokens() == 0) data_error(options.path.string() + ": holds no ids and no text");
  std::vector<std::unique_ptr<Candidate>> candidates;
  for (const auto block : block_sizes) {
    for (const auto& setting : settings) {
      auto spec = sample.spec;
      spec.codec = setting.codec;
      spec.level = setting.level;
      spec.block_tokens = block;
      candidates.push_back(std::make_unique<Candidate>(spec));
    }
  }
  const auto all = static_cast<double>(candidates.size() * options.rounds);
  double done = 0;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    for (auto& candidate : candidates) {
      candidate->measure(sample);
      progress(++done / all);
    }
  }
  TuneReport report;
  report.sampled_tokens = sample.tokens();
  report.width = sample.spec.width();
  for (auto& candidate : candidates) report.rows.push_back(candidate->row(sample));
  choose(report);
  return report;
}

}  // namespace isthmus::data
