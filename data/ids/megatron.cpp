#include "ids/megatron.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "ids/id_files.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

fs::path with_ending(fs::path path, const char* ending) { return path += ending; }

/// The .idx file: a header, int32 lengths and int64 byte offsets of sequences, and for each document its
/// first sequence as int64, the last entry being the number of sequences; then, for multimodal data, a mode
/// for each sequence.
class Index {
 public:
  explicit Index(const fs::path& path) : file_(path, File::Mode::read) {
    constexpr std::string_view magic("MMIDIDX\0\0", 9);
    std::array<char, 34> header{};
    if (!file_.read_at(0, std::as_writable_bytes(std::span(header))))
      refuse(0, "the file ends within its header of 34 bytes");
    if (std::string_view(header.data(), magic.size()) != magic)
      refuse(0, "is not a Megatron index: expected MMIDIDX and two zero bytes");
    if (const auto version = number<std::uint64_t>(header, 9); version != 1)
      refuse(9, fmt::format("has version {}; expected 1", version));
    code_ = static_cast<unsigned char>(header[17]);
    if (code_ != 8 && code_ != 4)
      refuse(17, fmt::format("has ids of type {}; expected 8 (uint16) or 4 (int32)", code_));
    sequences_ = number<std::uint64_t>(header, 18);
    documents_ = number<std::uint64_t>(header, 26);
    check_size();
    tokens_ = check_sequences();
    check_documents();
  }

  [[nodiscard]] std::uint32_t width() const { return code_ == 8 ? 2 : 4; }
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  [[nodiscard]] const File& file() const { return file_; }

  /// The start of the last document that begins at or before `token`.
  [[nodiscard]] std::uint64_t document_before(std::uint64_t token) const {
    std::uint64_t low = 0, high = documents_ - 1;  // the last entry is the end of the last document
    while (high - low > 1) {
      const auto middle = low + (high - low) / 2;
      (begin_of(middle) <= token ? low : high) = middle;
    }
    return begin_of(low);
  }

 private:
  static constexpr std::uint64_t header_bytes = 34;

  template <class Number, std::size_t size>
  static Number number(const std::array<char, size>& bytes, std::size_t at) {
    Number value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }

  [[noreturn]] void refuse(std::uint64_t offset, const std::string& why) const {
    data_error(fmt::format("{}, offset {}: {}", file_.path().string(), offset, why));
  }

  [[nodiscard]] std::uint64_t offsets_at() const { return header_bytes + 4 * sequences_; }
  [[nodiscard]] std::uint64_t documents_at() const { return offsets_at() + 8 * sequences_; }

  void check_size() const {
    const auto size = file_.size();
    // No overflow: each number is at most the file's size.
    if (sequences_ > size || documents_ > size || documents_at() + 8 * documents_ > size) {
      refuse(18, fmt::format("the header has {} sequences and {} documents, more than fit into the file's {} "
                             "bytes: it was truncated",
                             sequences_, documents_, size));
    }
    const auto rest = size - documents_at() - 8 * documents_;
    if (rest != 0 && rest != sequences_)
      refuse(size - rest, fmt::format("{} bytes follow the arrays that the header describes", rest));
    if (documents_ == 0) refuse(26, "has no documents; expected at least the entry that ends the last one");
  }

  /// Numbers of the file from `offset` on, read in pieces.
  template <class Number>
  class Stream {
   public:
    Stream(const Index& index, std::uint64_t offset, std::uint64_t count)
        : index_(index), offset_(offset), left_(count) {}
    Number next() {
      if (at_ == piece_.size()) load();
      return piece_[at_++];
    }

   private:
    void load() {
      piece_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left_, 64 << 10)));
      if (!index_.file_.read_at(offset_, std::as_writable_bytes(std::span(piece_))))
        index_.refuse(offset_, "the file has become shorter while it was read");
      offset_ += piece_.size() * sizeof(Number);
      left_ -= piece_.size();
      at_ = 0;
    }
    const Index& index_;
    std::uint64_t offset_, left_;
    std::vector<Number> piece_;
    std::size_t at_ = 0;
  };

  /// Returns the number of ids.
  std::uint64_t check_sequences() const {
    Stream<std::int32_t> lengths(*this, header_bytes, sequences_);
    Stream<std::int64_t> offsets(*this, offsets_at(), sequences_);
    std::uint64_t ids = 0;
    for (std::uint64_t i = 0; i < sequences_; ++i) {
      const auto length = lengths.next();
      const auto offset = offsets.next();
      if (length < 0) refuse(header_bytes + 4 * i, fmt::format("sequence {} has {} ids", i, length));
      if (offset < 0 || static_cast<std::uint64_t>(offset) != ids * width()) {
        refuse(offsets_at() + 8 * i,
               fmt::format(
                   "sequence {} begins at byte {} of the .bin file; expected {}, the end of the one before",
                   i, offset, ids * width()));
      }
      ids += static_cast<std::uint32_t>(length);
    }
    return ids;
  }

  void check_documents() const {
    Stream<std::int64_t> firsts(*this, documents_at(), documents_);
    std::int64_t last = 0;
    for (std::uint64_t i = 0; i < documents_; ++i) {
      const auto first = firsts.next();
      const bool is_end = i + 1 == documents_;
      const auto expected = static_cast<std::int64_t>(sequences_);
      if (first < last || first > expected || (i == 0 && first != 0) || (is_end && first != expected)) {
        refuse(documents_at() + 8 * i,
               fmt::format("document {} begins with sequence {} of {}, after one that begins with {}", i,
                           first, sequences_, last));
      }
      last = first;
    }
  }

  [[nodiscard]] std::uint64_t begin_of(std::uint64_t document) const {
    const auto sequence = read_number(documents_at() + 8 * document);
    return sequence == sequences_ ? tokens_ : read_number(offsets_at() + 8 * sequence) / width();
  }
  [[nodiscard]] std::uint64_t read_number(std::uint64_t offset) const {
    std::array<std::uint64_t, 1> value{};
    if (!file_.read_at(offset, std::as_writable_bytes(std::span(value))))
      refuse(offset, "the file has become shorter while it was read");
    return value[0];
  }

  File file_;
  unsigned code_ = 0;
  std::uint64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
};

class Megatron : public TokenSource {
 public:
  explicit Megatron(const fs::path& prefix)
      : index_(with_ending(prefix, ".idx")), ids_(with_ending(prefix, ".bin"), File::Mode::read) {
    const auto expected = index_.tokens() * index_.width();
    if (ids_.size() != expected) {
      data_error(
          fmt::format("{}: has {} bytes, but its index describes {}: the files do "
                      "not belong together, or one was truncated",
                      ids_.path().string(), ids_.size(), expected));
    }
    ids_.expect_random_reads();
    fingerprint_ = Hasher()
                       .update("megatron corpus")
                       .update(sampled_hash(index_.file(), "index").hex())
                       .update(sampled_hash(ids_, "ids").hex())
                       .finish();
  }
  std::uint64_t tokens() const override { return index_.tokens(); }
  std::uint32_t width() const override { return index_.width(); }
  std::uint64_t block_tokens() const override { return block_bytes / width(); }
  std::uint64_t heldout_begin(std::uint64_t wanted) const override {
    const auto plain = tokens() - std::min(wanted, tokens());
    const auto begin = index_.document_before(plain);
    // One long document at the end must not take the rest with it.
    return begin > 0 && tokens() - begin <= 2 * wanted ? begin : plain;
  }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    if (ids_.read_at(begin * width(), {out, count * width()})) return;
    data_error(
        fmt::format("{}: cannot read {} ids at offset {}: the file has become shorter since it was opened",
                    ids_.path().string(), count, begin * width()));
  }
  std::string place(std::uint64_t token) const override {
    return fmt::format("{}, offset {}", ids_.path().string(), token * width());
  }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  Index index_;
  File ids_;
  Digest fingerprint_;
};

}  // namespace

std::optional<fs::path> megatron_prefix(const fs::path& path) {
  std::error_code ignored;
  auto prefix = path;
  if (path.extension() == ".idx" || path.extension() == ".bin") prefix.replace_extension();
  if (!fs::is_regular_file(with_ending(prefix, ".idx"), ignored)) return {};
  return prefix;
}

std::unique_ptr<TokenSource> open_megatron(const fs::path& prefix) {
  return std::make_unique<Megatron>(prefix);
}

}  // namespace isthmus::data
