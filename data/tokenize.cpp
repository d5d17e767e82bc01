#include "isthmus/data/tokenize.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "block_codec.h"
#include "documents.h"
#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "isthmus/data/tokenizer.h"
#include "ordered_stage.h"
#include "store_writer.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t batch_bytes = std::size_t{1} << 20;
constexpr std::size_t waiting_batches = 2;
constexpr std::size_t most_batch_pieces = std::size_t{1} << 16;

/// From where an interrupted run goes on: reading from `place` gives the id number `token` first. From there
/// to the last block's end are ids that are written already, and must come once more.
struct Resume {
  Place place;
  std::uint64_t token = 0;
  std::uint32_t checksum = 0;  ///< CRC32C of these
  template <class Archive>
  void serialize(Archive& ar) {
    ar(place, token, checksum);
  }
};

/// Some pieces of documents, one behind the other.
struct Batch {
  struct End {
    std::size_t at;  ///< in the text
    bool first, last;
  };
  std::string text;
  std::vector<End> pieces;
  Place place;  ///< of the first of them
  bool resumable = false;
};

/// What became of a batch.
struct Tokens {
  Bytes ids;  ///< in stored_width() bytes each
  std::vector<std::uint32_t> starts;
  Place place;
  bool resumable = false;
};

struct Block {
  Bytes ids;
  std::vector<std::uint32_t> starts;
  Resume resume;  ///< behind it
};

struct Record {
  Bytes bytes;
  std::uint32_t tokens = 0, documents = 0, first = 0;
  Resume resume;
};

/// One thread's: text to ids, as few bytes wide as the vocabulary allows.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const StoreSpec& spec) : tokenizer_(tokenizer), spec_(spec) {}

  void operator()(Batch& batch, Tokens& out) {
    out.ids.clear();
    out.starts.clear();
    out.place = batch.place;
    out.resumable = batch.resumable;
    std::size_t begin = 0;
    for (const auto& piece : batch.pieces) {
      ids_.clear();
      tokenizer_.encode(std::string_view(batch.text).substr(begin, piece.at - begin), ids_);
      if (piece.last) ids_.push_back(spec_.separator);
      begin = piece.at;
      if (piece.first)
        out.starts.push_back(static_cast<std::uint32_t>(out.ids.size() / spec_.stored_width()));
      append(out.ids);
    }
  }

 private:
  void append(Bytes& out) const {
    check();
    const auto at = out.size();
    out.resize(at + ids_.size() * spec_.stored_width());
    switch (spec_.stored_width()) {
      case 1:
        return narrow<std::uint8_t>(out.data() + at);
      case 2:
        return narrow<std::uint16_t>(out.data() + at);
      default:
        return narrow<std::uint32_t>(out.data() + at);
    }
  }
  void check() const {
    // No id is above what all of them make together, which vectors of any machine can tell.
    std::uint32_t all = 0;
    for (const auto id : ids_) all |= id;
    if (all < spec_.vocab_size) return;
    for (const auto id : ids_) {
      if (id < spec_.vocab_size) continue;
      throw Error(ErrorKind::data, "the tokenizer gives id " + std::to_string(id) +
                                       ", which is outside its vocabulary of " +
                                       std::to_string(spec_.vocab_size));
    }
  }
  template <class T>
  void narrow(std::byte* out) const {
    auto* const to = reinterpret_cast<T*>(out);  // which begins at a whole number of ids
    for (std::size_t i = 0; i < ids_.size(); ++i) to[i] = static_cast<T>(ids_[i]);
  }

  const Tokenizer& tokenizer_;
  const StoreSpec& spec_;
  std::vector<std::uint32_t> ids_;
};

/// As many as a thread is busy with for about as long as with a batch.
std::size_t blocks_of_a_batch(const StoreSpec& spec) {
  return std::max<std::size_t>(1, batch_bytes / (std::size_t{spec.block_tokens} * spec.stored_width()));
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
        tokenising_(threads, waiting_batches,
                    [&] {
                      return [encoder = Encoder(tokenizer, spec)](Batch& batch, Tokens& out) mutable {
                        encoder(batch, out);
                      };
                    }),
        compressing_(threads, waiting_batches * blocks_of_a_batch(spec), [&] {
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
    // Each byte is an id of its own there; all others take text for what it means.
    document_options_.require_utf8 = options.tokenizer != "bytes";
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

  /// False at the end, when end() is known. Throws what went wrong in any stage.
  bool next(Record& record) { return compressing_.pop(record); }
  [[nodiscard]] const Place& end() const { return end_; }

 private:
  /// Whatever ends a thread's work ends the stage that it feeds.
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
    Batch batch;
    const auto clear = [&] {
      batch.text.clear();
      batch.pieces.clear();
    };
    end_ = for_each_document(files_, document_options_, bad_, from_.place, [&](const Piece& piece) {
      if (batch.pieces.empty()) {
        batch.place = piece.place;
        batch.resumable = piece.resumable;
      }
      batch.text += piece.text;
      batch.pieces.push_back({batch.text.size(), piece.first, piece.last});
      if (batch.text.size() < batch_bytes && batch.pieces.size() < most_batch_pieces) return true;
      if (!tokenising_.push(batch)) return false;
      clear();
      return true;
    });
    if (!batch.pieces.empty()) tokenising_.push(batch);
  }

  void cut() {
    const auto width = spec_.stored_width();
    const std::size_t full = std::size_t{spec_.block_tokens} * width;
    Block block;
    Tokens tokens;
    auto resume = from_;
    resume.checksum = 0;
    auto position = from_.token;
    for (; tokenising_.pop(tokens); position += tokens.ids.size() / width) {
      if (tokens.resumable) resume = {tokens.place, position, 0};
      const auto known = pass_over(tokens, position) * width;
      resume.checksum = crc32c(std::span(tokens.ids).first(known), resume.checksum);
      auto start = std::lower_bound(tokens.starts.begin(), tokens.starts.end(), known / width);
      for (std::size_t at = known; at < tokens.ids.size();) {
        const auto part =
            std::span(tokens.ids).subspan(at, std::min(full - block.ids.size(), tokens.ids.size() - at));
        const auto filled = block.ids.size();
        for (; start != tokens.starts.end() && *start < (at + part.size()) / width; ++start)
          block.starts.push_back(static_cast<std::uint32_t>(*start - at / width + filled / width));
        block.ids.resize(filled + part.size());
        std::memcpy(block.ids.data() + filled, part.data(), part.size());
        resume.checksum = crc32c(part, resume.checksum);
        block.resume = resume;
        at += part.size();
        if (block.ids.size() == full && !pass_on(block)) return;
      }
    }
    if (position < written_) refuse_other_text();
    if (!block.ids.empty()) pass_on(block);
  }
  /// How many ids at the begin are in blocks that were written before. They must be the same.
  std::uint64_t pass_over(const Tokens& tokens, std::uint64_t position) {
    if (position >= written_) return 0;
    const auto width = spec_.stored_width();
    const auto known = std::min<std::uint64_t>(written_ - position, tokens.ids.size() / width);
    passed_over_ = crc32c(std::span(tokens.ids).first(known * width), passed_over_);
    if (position + known == written_ && passed_over_ != from_.checksum) refuse_other_text();
    return known;
  }
  [[noreturn]] static void refuse_other_text() {
    throw Error(
        ErrorKind::data,
        "the text is not what it was when the interrupted run read it, though nothing else has changed; "
        "remove the folder that ends in .partial to begin anew");
  }
  bool pass_on(Block& block) {
    if (!compressing_.push(block)) return false;
    block.ids.clear();
    block.starts.clear();
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
  OrderedStage<Batch, Tokens> tokenising_;
  OrderedStage<Block, Record> compressing_;
  std::thread reading_, cutting_;
};

/// What the files are, in a few words that differ where they do.
std::string description(const std::vector<DocumentFile>& files) {
  Hasher hasher;
  for (const auto& file : files) {
    hasher.update(file.path + '\0').update(file.bytes).update(static_cast<std::uint64_t>(file.format));
    if (file.bytes == DocumentFile::unknown) continue;
    std::error_code ignored;
    hasher.update(
        static_cast<std::uint64_t>(fs::last_write_time(file.path, ignored).time_since_epoch().count()));
  }
  return std::to_string(files.size()) + " files with the names, sizes and times " +
         hasher.finish().hex().substr(0, 16);
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
      throw Error(ErrorKind::data, "there is no text in what was named: " + std::to_string(files.size()) +
                                       " files, of which " + std::to_string(end.empty) +
                                       " documents are empty and " + std::to_string(end.bad) + " are bad");
    }
    report.bytes_read = end.bytes - from.place.bytes;
    writer.finish({end.bytes, end.empty, end.bad});
  }
  report.bad = bad.first();
  report.info = store_info(options.out);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace isthmus::data
