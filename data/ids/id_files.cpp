#include "ids/id_files.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::data {
namespace {

struct Form {
  std::uint64_t header_bytes = 0;
  std::uint32_t width = 2;
};

constexpr std::uint64_t llmc_header_bytes = 1024;

/// The form that llm.c's header describes; nullopt if the file has no such header.
std::optional<Form> llmc_form(const File& file) {
  struct Kind {
    std::int32_t magic, version;
    std::uint32_t width;
  };
  constexpr std::array kinds = {Kind{20240520, 1, 2}, Kind{20240801, 7, 4}};
  std::array<std::int32_t, 3> header{};
  if (file.size() < sizeof header || !file.read_at(0, std::as_writable_bytes(std::span(header)))) return {};
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.magic == header[0]; });
  if (kind == kinds.end()) return {};
  const auto name = file.path().string();
  if (header[1] != kind->version) {
    data_error(fmt::format("{}: llm.c's header has version {} at offset 4; expected {} with magic {}", name,
                           header[1], kind->version, kind->magic));
  }
  const auto expected =
      llmc_header_bytes + std::uint64_t{kind->width} * static_cast<std::uint32_t>(header[2]);
  if (header[2] < 0 || file.size() != expected) {
    data_error(
        fmt::format("{}: llm.c's header says {} ids at offset 8, which makes {} bytes, but the file has {}: "
                    "it was truncated, or data was appended",
                    name, header[2], expected, file.size()));
  }
  return Form{llmc_header_bytes, kind->width};
}

Form form_of(const File& file) {
  if (const auto llmc = llmc_form(file)) return *llmc;
  if (file.size() % 2 == 0) return {};
  data_error(fmt::format("{}: {} bytes are not a whole number of uint16 ids: half an id is at offset {}",
                         file.path().string(), file.size(), file.size() - 1));
}

std::uint64_t begin_of_heldout(const TokenSource& source, std::uint64_t wanted,
                               std::optional<std::uint32_t> separator) {
  const auto plain = source.tokens() - std::min(wanted, source.tokens());
  return separator ? begin_of_document(source, wanted, *separator).value_or(plain) : plain;
}

class IdFile : public TokenSource {
 public:
  IdFile(const std::filesystem::path& path, std::optional<std::uint32_t> separator)
      : file_(path, File::Mode::read),
        form_(form_of(file_)),
        tokens_((file_.size() - form_.header_bytes) / form_.width),
        separator_(separator),
        fingerprint_(sampled_hash(file_, "ids corpus")) {
    file_.expect_random_reads();
  }
  std::uint64_t tokens() const override { return tokens_; }
  std::uint32_t width() const override { return form_.width; }
  std::uint64_t block_tokens() const override { return block_bytes / form_.width; }
  std::uint64_t heldout_begin(std::uint64_t wanted) const override {
    return begin_of_heldout(*this, wanted, separator_);
  }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    if (file_.read_at(offset(begin), {out, count * form_.width})) return;
    data_error(fmt::format(
        "{}: cannot read {} ids at offset {}: the file has become shorter since it was opened (now {} bytes)",
        file_.path().string(), count, offset(begin), file_.size()));
  }
  std::string place(std::uint64_t token) const override {
    return fmt::format("{}, offset {}", file_.path().string(), offset(token));
  }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  [[nodiscard]] std::uint64_t offset(std::uint64_t token) const {
    return form_.header_bytes + token * form_.width;
  }

  File file_;
  Form form_;
  std::uint64_t tokens_;
  std::optional<std::uint32_t> separator_;
  Digest fingerprint_;
};

class Joined : public TokenSource {
 public:
  Joined(std::vector<std::unique_ptr<TokenSource>> sources, std::optional<std::uint32_t> separator)
      : sources_(std::move(sources)), separator_(separator) {
    Hasher hasher;
    hasher.update("joined corpus");
    for (const auto& source : sources_) {
      if (source->width() != width()) {
        data_error(fmt::format("{}: ids of {} bytes, but those of {} have {}: use one format for all",
                               source->place(0), source->width(), sources_.front()->place(0), width()));
      }
      begins_.push_back(tokens_);
      tokens_ += source->tokens();
      hasher.update(source->fingerprint().hex());
    }
    fingerprint_ = hasher.finish();
  }
  std::uint64_t tokens() const override { return tokens_; }
  std::uint32_t width() const override { return sources_.front()->width(); }
  std::uint64_t block_tokens() const override { return sources_.front()->block_tokens(); }
  std::uint64_t heldout_begin(std::uint64_t wanted) const override {
    return begin_of_heldout(*this, wanted, separator_);
  }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    for (auto part = part_of(begin); count > 0; ++part) {
      const auto here = std::min(count, begins_[part] + sources_[part]->tokens() - begin);
      sources_[part]->read(begin - begins_[part], here, out);
      begin += here;
      count -= here;
      out += here * width();
    }
  }
  std::string place(std::uint64_t token) const override {
    const auto part = part_of(token);
    return sources_[part]->place(token - begins_[part]);
  }
  Digest fingerprint() const override { return fingerprint_; }

 private:
  /// The last source that begins at or before `token`, which skips empty ones that begin there.
  [[nodiscard]] std::size_t part_of(std::uint64_t token) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), token);
    return static_cast<std::size_t>(after - begins_.begin()) - 1;
  }

  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::optional<std::uint32_t> separator_;
  std::vector<std::uint64_t> begins_;
  std::uint64_t tokens_ = 0;
  Digest fingerprint_;
};

}  // namespace

std::unique_ptr<TokenSource> open_id_file(const std::filesystem::path& file,
                                          std::optional<std::uint32_t> separator) {
  return std::make_unique<IdFile>(file, separator);
}

std::unique_ptr<TokenSource> join_sources(std::vector<std::unique_ptr<TokenSource>> sources,
                                          std::optional<std::uint32_t> separator) {
  assert(!sources.empty());
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_unique<Joined>(std::move(sources), separator);
}

std::optional<std::uint64_t> begin_of_document(const TokenSource& source, std::uint64_t wanted,
                                               std::uint32_t separator) {
  constexpr std::uint64_t piece = 64 << 10;
  // Bounded: one long document at the end must not take the rest with it.
  const auto farthest = std::min<std::uint64_t>(wanted, 4 << 20);
  auto end = source.tokens() - std::min(wanted, source.tokens());
  const auto least = end - std::min(end, farthest);
  std::vector<std::byte> ids(piece * source.width());
  while (end > least) {
    const auto begin = end - std::min(end - least, piece);
    source.read(begin, end - begin, ids.data());
    for (auto i = end - begin; i > 0; --i) {
      if (id_at(ids.data(), source.width(), i - 1) == separator) return begin + i;
    }
    end = begin;
  }
  return {};
}

Digest sampled_hash(const File& file, std::string_view kind) {
  constexpr std::uint64_t samples = 256;
  constexpr std::uint64_t sample_bytes = 1 << 20;
  const auto size = file.size();
  Hasher hasher;
  hasher.update(kind).update(size);
  std::vector<std::byte> sample(static_cast<std::size_t>(std::min(size, sample_bytes)));
  const bool all = size <= samples * sample_bytes;
  const auto stride = all ? sample_bytes : (size - sample_bytes) / (samples - 1);
  for (std::uint64_t i = 0; i < samples && i * stride < size; ++i) {
    const auto part = std::span(sample).first(std::min(sample_bytes, size - i * stride));
    if (!file.read_at(i * stride, part))
      data_error(file.path().string() + ": has become shorter while it was read");
    hasher.update(std::span<const std::byte>(part));
  }
  return hasher.finish();
}

}  // namespace isthmus::data
