#include "isthmus/data/corpus.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <filesystem>

#include "isthmus/base/error.h"
#include "mapped_file.h"
#include "text_files.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::data, message); }

/// Ids in as few bytes as the vocabulary allows.
class TokenArray {
 public:
  explicit TokenArray(std::uint32_t vocab_size) : narrow_ids_(vocab_size <= 65536) {}
  void append(std::span<const std::uint32_t> ids) {
    if (narrow_ids_) {
      narrow_.insert(narrow_.end(), ids.begin(), ids.end());
    } else {
      wide_.insert(wide_.end(), ids.begin(), ids.end());
    }
  }
  void reserve(std::uint64_t tokens) { narrow_ids_ ? narrow_.reserve(tokens) : wide_.reserve(tokens); }
  [[nodiscard]] std::uint64_t size() const { return narrow_ids_ ? narrow_.size() : wide_.size(); }
  void copy(std::uint64_t begin, std::span<std::int64_t> out) const {
    if (narrow_ids_) {
      std::copy_n(narrow_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    } else {
      std::copy_n(wide_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    }
  }

 private:
  bool narrow_ids_;
  std::vector<std::uint16_t> narrow_;
  std::vector<std::uint32_t> wide_;
};

/// How many of a document's tokens are held out at its end: the fraction, but at least one window.
std::uint64_t tail_tokens(std::uint64_t tokens, const DataConfig& config) {
  if (config.heldout <= 0) return 0;
  const auto fraction = static_cast<std::uint64_t>(static_cast<double>(tokens) * config.heldout);
  return std::min(tokens, std::max(fraction, static_cast<std::uint64_t>(config.seq_len) + 1));
}

/// A number from the first bytes of the name's hash: an order of files that has nothing to do with their
/// names.
std::uint64_t hash_of_name(const std::string& name) {
  std::uint64_t number = 0;
  std::memcpy(&number, Hasher().update(name).finish().bytes.data(), sizeof number);
  return number;
}

/// Which files are held out: in the order of their hashes, each one that brings the sum nearer to the wanted
/// fraction of the bytes; the smallest file if none does.
std::vector<bool> choose_heldout(const std::vector<TextFile>& files, double fraction) {
  std::vector<bool> chosen(files.size(), false);
  if (fraction <= 0 || files.size() < 2) return chosen;
  std::vector<std::size_t> order(files.size());
  std::vector<std::uint64_t> hash(files.size());
  double total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    order[i] = i;
    hash[i] = hash_of_name(files[i].name);
    total += static_cast<double>(files[i].bytes);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return hash[a] < hash[b]; });
  double left = total * fraction;
  for (const auto i : order) {
    const auto bytes = static_cast<double>(files[i].bytes);
    if (bytes == 0 || bytes / 2 > left) continue;
    chosen[i] = true;
    left -= bytes;
  }
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) {
    const auto smallest = std::min_element(
        files.begin(), files.end(), [](const TextFile& a, const TextFile& b) { return a.bytes < b.bytes; });
    chosen[static_cast<std::size_t>(smallest - files.begin())] = true;
  }
  return chosen;
}

/// Drops empty files and what lies beyond `limit` bytes. Returns a note if that was something.
std::string apply_limit(std::vector<TextFile>& files, std::uint64_t limit) {
  std::erase_if(files, [](const TextFile& file) { return file.bytes == 0; });
  const auto count = files.size();
  std::uint64_t total = 0;
  std::uint64_t left = limit;
  for (auto& file : files) {
    total += file.bytes;
    file.bytes = std::min(file.bytes, left);
    left -= file.bytes;
  }
  if (total <= limit) return {};
  std::erase_if(files, [](const TextFile& file) { return file.bytes == 0; });
  return "data.max_bytes: of " + std::to_string(total) + " bytes of text in " + std::to_string(count) +
         " files only the first " + std::to_string(limit) + " bytes, in " + std::to_string(files.size()) +
         " files, are used";
}

}  // namespace

struct Corpus::Contents {
  explicit Contents(const DataConfig& config)
      : tokenizer(make_tokenizer(config.tokenizer)), tokens(tokenizer->vocab_size()) {
    path = config.path;
    if (path.empty()) fail("data.path is not set: name a text file, a folder of text files or a .bin file");
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) {
      fail("data.path " + path + " does not exist: name a text file, a folder of text files or a .bin file");
    }
    if (fs::is_directory(status)) {
      read_text(find_text_files(path), config);
    } else if (!fs::is_regular_file(status)) {
      fail("data.path " + path + (error ? ": " + error.message() : " is neither a file nor a folder"));
    } else if (fs::path(path).extension() == ".bin") {
      map_ids(config);
    } else {
      read_text({{path, "", fs::file_size(path)}}, config);
    }
    check_length(config);
  }

  void read_text(std::vector<TextFile> files, const DataConfig& config) {
    if (auto note = apply_limit(files, static_cast<std::uint64_t>(config.max_bytes)); !note.empty())
      notes.push_back(note);
    if (files.empty()) fail("data.path " + path + " holds no text");
    const auto heldout = choose_heldout(files, config.heldout);
    std::vector<Digest> digests(files.size());
    std::uint64_t bytes = 0;
    for (const auto& file : files) bytes += file.bytes + 1;
    if (config.tokenizer == "bytes") tokens.reserve(bytes);
    for (const bool split : {false, true}) {
      if (split) train_tokens = tokens.size();
      for (std::size_t i = 0; i < files.size(); ++i) {
        if (heldout[i] == split) digests[i] = read_document(files[i]);
      }
    }
    if (files.size() == 1) train_tokens = tokens.size() - tail_tokens(tokens.size(), config);
    heldout_tokens = tokens.size() - train_tokens;
    Hasher hasher;
    hasher.update("text corpus");
    for (std::size_t i = 0; i < files.size(); ++i)
      hasher.update(files[i].name + '\0').update(digests[i].hex());
    fingerprint = hasher.finish();
  }

  /// Appends the document and a separator. Returns the hash of its text.
  Digest read_document(const TextFile& file) {
    Hasher hasher;
    std::vector<std::uint32_t> ids;
    read_in_pieces(file.path, file.bytes, [&](std::string_view text) {
      hasher.update(text);
      ids.clear();
      tokenizer->encode(text, ids);
      tokens.append(ids);
    });
    const auto separator = tokenizer->separator();
    tokens.append({&separator, 1});
    return hasher.finish();
  }

  void map_ids(const DataConfig& config) {
    mapped = MappedFile(path);
    const auto bytes = mapped.bytes();
    if (bytes.size() % 2 != 0) {
      fail(path + ": " + std::to_string(bytes.size()) +
           " bytes are no whole number of uint16 ids: half an id stands at offset " +
           std::to_string(bytes.size() - 1));
    }
    refuse_other_header();
    const auto count = bytes.size() / 2;
    heldout_tokens = tail_tokens(count, config);
    train_tokens = count - heldout_tokens;
    fingerprint = sampled_hash(bytes);
  }

  /// The other format with this ending would be read as ids without complaint.
  void refuse_other_header() const {
    constexpr std::int32_t magics[] = {20240520, 20240801};
    std::int32_t first = 0;
    if (mapped.bytes().size() < 1024) return;
    std::memcpy(&first, mapped.bytes().data(), sizeof first);
    if (std::find(std::begin(magics), std::end(magics), first) == std::end(magics)) return;
    fail(path +
         ": has the header of llm.c's format; expected ids only (drop the first 1024 bytes of a file of "
         "uint16 ids)");
  }

  static Digest sampled_hash(std::span<const std::byte> bytes) {
    constexpr std::uint64_t samples = 256;
    constexpr std::uint64_t sample_bytes = 1 << 20;
    Hasher hasher;
    hasher.update("ids corpus").update(std::uint64_t{bytes.size()});
    if (bytes.size() <= samples * sample_bytes) return hasher.update(bytes).finish();
    const auto stride = (bytes.size() - sample_bytes) / (samples - 1);
    for (std::uint64_t i = 0; i < samples; ++i) hasher.update(bytes.subspan(i * stride, sample_bytes));
    return hasher.finish();
  }

  void check_length(const DataConfig& config) const {
    const auto window = static_cast<std::uint64_t>(config.seq_len) + 1;
    const auto needs = " tokens, but one window of data.seq_len " + std::to_string(config.seq_len) +
                       " needs " + std::to_string(window) + ": ";
    if (train_tokens < window) {
      fail(path + ": the training part of the corpus has " + std::to_string(train_tokens) + needs +
           "use more text or a smaller data.seq_len");
    }
    if (config.heldout > 0 && heldout_tokens < window) {
      fail(path + ": the held-out part of the corpus has " + std::to_string(heldout_tokens) + needs +
           "use a larger data.heldout, more text or a smaller data.seq_len");
    }
  }

  [[nodiscard]] bool is_mapped() const { return !mapped.bytes().empty(); }

  void copy_mapped(std::uint64_t begin, std::span<std::int64_t> out) const {
    const auto* ids = reinterpret_cast<const std::uint16_t*>(mapped.bytes().data()) + begin;
    std::copy_n(ids, out.size(), out.begin());
    const auto vocab_size = tokenizer->vocab_size();
    const auto bad = std::find_if(out.begin(), out.end(), [&](std::int64_t id) { return id >= vocab_size; });
    if (bad == out.end()) return;
    const auto offset = 2 * (begin + static_cast<std::uint64_t>(bad - out.begin()));
    fail(path + ": token id " + std::to_string(*bad) + " at offset " + std::to_string(offset) +
         " is outside the vocabulary of " + std::to_string(vocab_size) +
         " ids: data.tokenizer must be the one that made the file, or vocab:N");
  }

  std::string path;
  std::unique_ptr<const Tokenizer> tokenizer;
  TokenArray tokens;  // the training part, then the held-out one
  MappedFile mapped;  // or this
  std::uint64_t train_tokens = 0, heldout_tokens = 0;
  Digest fingerprint;
  std::vector<std::string> notes;
};

Corpus::Corpus(const DataConfig& config) : contents_(std::make_unique<const Contents>(config)) {}
Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;

const Tokenizer& Corpus::tokenizer() const { return *contents_->tokenizer; }

std::uint64_t Corpus::tokens(Split split) const {
  return split == Split::train ? contents_->train_tokens : contents_->heldout_tokens;
}

void Corpus::read(Split split, std::uint64_t begin, std::span<std::int64_t> out) const {
  assert(begin <= tokens(split) && out.size() <= tokens(split) - begin);
  if (split == Split::heldout) begin += contents_->train_tokens;
  if (contents_->is_mapped()) {
    contents_->copy_mapped(begin, out);
  } else {
    contents_->tokens.copy(begin, out);
  }
}

const Digest& Corpus::fingerprint() const { return contents_->fingerprint; }

const std::vector<std::string>& Corpus::notes() const { return contents_->notes; }

}  // namespace isthmus::data
