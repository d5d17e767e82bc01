#include "isthmus/data/tokenize.h"

#include <fmt/format.h>
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "isthmus/base/time.h"
#include "isthmus/data/tokenizer.h"
#include "queues/ordered_stage.h"
#include "store/block_codec.h"
#include "store/store_writer.h"
#include "text/documents.h"
#include "tokenize/text_batch.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t queued_batches = 2;

/// Where an interrupted run continues: reading from `place` gives the id number `token` first. The ids from
/// there to the end of the last block are already written, and must be the same again.
struct Resume {
  Place place;
  std::uint64_t token = 0;
  std::uint32_t checksum = 0;  ///< CRC32C of those ids
  template <class Archive>
  void serialize(Archive& ar) {
    ar(place, token, checksum);
  }
};

struct Block : IdBlock {
  Resume resume;  ///< where to continue after this block
};

struct Record {
  Bytes bytes;
  std::uint32_t tokens = 0, documents = 0, first = 0;
  Resume resume;
};

/// Blocks that keep a thread busy for about as long as one batch.
std::size_t blocks_of_a_batch(const StoreSpec& spec) {
  return std::max<std::size_t>(
      1, TextBatch::usual_bytes / (std::size_t{spec.block_tokens} * spec.stored_width()));
}

class Pipeline {
 public:
  Pipeline(const TokenizeOptions& options, const Tokenizer& tokenizer, const StoreSpec& spec,
           std::size_t threads, std::vector<DocumentFile> files, BadDocuments& bad, const Resume& from,
           std::uint64_t written)
      : spec_(spec),
        files_(std::move(files)),
        bad_(bad),
        from_(from),
        written_(written),
        tokenising_(threads, queued_batches,
                    [&] {
                      return [encoder = BatchEncoder(tokenizer, spec)](
                                 TextBatch& batch, TokenBatch& out) mutable { encoder(batch, out); };
                    }),
        compressing_(threads, queued_batches * blocks_of_a_batch(spec), [&] {
          return [encoder = std::make_shared<store::BlockEncoder>(spec), &spec](Block& block, Record& out) {
            encoder->encode(block.ids, block.starts, out.bytes);
            out.tokens = static_cast<std::uint32_t>(block.ids.size() / spec.stored_width());
            out.documents = static_cast<std::uint32_t>(block.starts.size());
            out.first = 0;
            std::memcpy(&out.first, block.ids.data(), spec.stored_width());
            out.resume = block.resume;
          };
        }) {
    document_options_.text_field = options.text_field;
    document_options_.require_utf8 = reads_utf8(options.tokenizer);
    reading_ = std::thread([this] { end_stage(tokenising_, [this] { read(); }); });
    cutting_ = std::thread([this] { end_stage(compressing_, [this] { cut(); }); });
  }
  ~Pipeline() {
    tokenising_.stop();
    compressing_.stop();
    reading_.join();
    cutting_.join();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Returns false at the end, when end() is known. Throws an error of any stage.
  bool next(Record& record) { return compressing_.pop(record); }
  [[nodiscard]] const Place& end() const { return end_; }

 private:
  /// Runs a thread's work; its end or its error closes the stage that it feeds.
  template <class Stage, class Work>
  static void end_stage(Stage& stage, Work work) {
    std::optional<Fault> fault;
    try {
      work();
    } catch (const Error& error) {
      fault = Fault{error.kind(), error.what()};
    } catch (const std::exception& error) {
      fault = Fault{ErrorKind::data, error.what()};
    }
    stage.close(std::move(fault));
  }

  void read() {
    BatchCollector batches([this](TextBatch& batch) { return tokenising_.push(batch); });
    end_ = for_each_document(files_, document_options_, bad_, from_.place,
                             [&](const Piece& piece) { return batches.add(piece); });
    batches.pass_on(end_);
  }

  void cut() {
    const auto width = spec_.stored_width();
    Block block;
    TokenBatch tokens;
    auto resume = from_;
    resume.checksum = 0;
    auto position = from_.token;
    while (tokenising_.pop(tokens)) {
      const auto ids = std::span(tokens.ids);
      const auto count = ids.size() / width;
      auto at = pass_over(tokens, position);
      resume.checksum = crc32c(ids.first(at * width), resume.checksum);
      while (at < count) {
        const auto taken = block.take(tokens, at, spec_);
        resume.checksum = crc32c(ids.subspan(at * width, taken * width), resume.checksum);
        block.resume = resume;
        at += taken;
        if (block.full(spec_) && !pass_on(block)) return;
      }
      position += count;
      if (tokens.resumable) resume = {tokens.end, position, 0};
    }
    if (position < written_) refuse_other_text();
    if (!block.ids.empty()) pass_on(block);
  }
  /// The number of ids at the start that were written before. Checks that they are the same.
  std::uint64_t pass_over(const TokenBatch& tokens, std::uint64_t position) {
    if (position >= written_) return 0;
    const auto width = spec_.stored_width();
    const auto known = std::min<std::uint64_t>(written_ - position, tokens.ids.size() / width);
    passed_over_ = crc32c(std::span(tokens.ids).first(known * width), passed_over_);
    if (position + known == written_ && passed_over_ != from_.checksum) refuse_other_text();
    return known;
  }
  [[noreturn]] static void refuse_other_text() {
    data_error(
        "the text differs from what the interrupted run had read, although the sources' names, sizes "
        "and times do not; remove the folder that ends in .partial to start over");
  }
  bool pass_on(Block& block) {
    if (!compressing_.push(block)) return false;
    block.clear();
    return true;
  }

  const StoreSpec& spec_;
  DocumentOptions document_options_;
  std::vector<DocumentFile> files_;
  BadDocuments& bad_;
  Resume from_;
  std::uint64_t written_;  ///< ids that were written before
  std::uint32_t passed_over_ = 0;
  Place end_;
  OrderedStage<TextBatch, TokenBatch> tokenising_;
  OrderedStage<Block, Record> compressing_;
  std::thread reading_, cutting_;
};

/// A short description of the files, which differs if the files do.
std::string description(const std::vector<DocumentFile>& files) {
  Hasher hasher;
  for (const auto& file : files) {
    hasher.update(file.path + '\0').update(file.bytes).update(static_cast<std::uint64_t>(file.format));
    if (file.bytes == DocumentFile::unknown) continue;
    std::error_code ignored;
    hasher.update(
        static_cast<std::uint64_t>(fs::last_write_time(file.path, ignored).time_since_epoch().count()));
  }
  return fmt::format("{} files with the names, sizes and times {}", files.size(),
                     hasher.finish().hex().substr(0, 16));
}

std::uint64_t bytes_of(const std::vector<DocumentFile>& files) {
  std::uint64_t bytes = 0;
  for (const auto& file : files) {
    if (file.bytes == DocumentFile::unknown) return 0;
    bytes += file.bytes;
  }
  return bytes;
}

StoreSpec spec_of(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  StoreSpec spec;
  spec.vocab_size = tokenizer.vocab_size();
  spec.separator = tokenizer.separator();
  spec.tokenizer = tokenizer.fingerprint();
  spec.codec = options.codec;
  spec.level = options.codec == StoreCodec::none ? 0 : options.level;
  spec.block_tokens = options.block_tokens;
  check(spec);
  return spec;
}

StoreWriter::Task task_of(const TokenizeOptions& options, const StoreSpec& spec,
                          const std::vector<DocumentFile>& files) {
  return {{"the tokenizer", options.tokenizer + " (" + spec.tokenizer.hex().substr(0, 16) + ")"},
          {"--codec", std::string(store_codec_names[static_cast<std::size_t>(spec.codec)])},
          {"--level", std::to_string(spec.level)},
          {"--block", std::to_string(spec.block_tokens)},
          {"--text-field", options.text_field},
          {"SRC", description(files)}};
}

}  // namespace

TokenizeReport tokenize(const TokenizeOptions& options,
                        const std::function<void(const TokenizeProgress&)>& progress) {
  const auto begin = Clock::now();
  const auto tokenizer = make_tokenizer(options.tokenizer);
  const auto spec = spec_of(options, *tokenizer);
  BadDocuments bad(options.skip_bad ? BadDocuments::Policy::skip : BadDocuments::Policy::fail);
  const auto files = find_documents(options.sources, options.standard_input, bad);
  StoreWriter writer(options.out, spec, task_of(options, spec, files));
  TokenizeReport report;
  report.resumed_at = writer.tokens();
  if (writer.was_complete()) {
    report.info = store_info(options.out);
    report.resumed_at = report.info.tokens;
    return report;
  }
  Resume from;
  from.place.bad = bad.count();
  if (writer.resumed()) from = from_bytes<Resume>(*writer.resumed());
  const auto threads =
      options.threads > 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
  {
    Pipeline pipeline(options, *tokenizer, spec, threads, files, bad, from, writer.tokens());
    TokenizeProgress now;
    now.all_source_bytes = bytes_of(files);
    auto committed = Clock::now();
    for (Record record; pipeline.next(record);) {
      writer.append(record.bytes, record.tokens, record.documents, record.first);
      if (Clock::now() - committed >= std::chrono::duration<double>(options.commit_every)) {
        writer.commit(to_bytes(record.resume));
        committed = Clock::now();
      }
      now.source_bytes = record.resume.place.bytes;
      now.tokens = writer.tokens();
      now.documents = writer.documents();
      now.stored_bytes = writer.bytes();
      progress(now);
    }
    const auto& end = pipeline.end();
    if (writer.tokens() == 0) {
      data_error(fmt::format("the sources contain no text: {} files, with {} empty and {} bad documents",
                             files.size(), end.empty, end.bad));
    }
    report.bytes_read = end.bytes - from.place.bytes;
    writer.finish({end.bytes, end.empty, end.bad});
  }
  report.bad = bad.first();
  report.info = store_info(options.out);
  report.seconds = seconds_since(begin);
  return report;
}

}  // namespace isthmus::data
