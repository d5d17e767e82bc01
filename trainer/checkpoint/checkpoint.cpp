#include "isthmus/trainer/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::trainer {
namespace {

constexpr std::array magic = {'I', 'S', 'T', 'H', 'C', 'K', 'P', 'T'};
constexpr std::uint32_t max_sections = 64;
constexpr std::size_t max_name = 255;
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

struct SectionEntry {
  std::string name;
  std::uint64_t length = 0;
  Digest digest;
};

struct Header {
  Digest model;
  std::uint64_t step = 0;
  std::vector<SectionEntry> sections;
};

Bytes to_bytes(const Header& header) {
  BinaryWriter out;
  out.raw(magic.data(), magic.size());
  out(checkpoint_version, header.model, header.step, static_cast<std::uint32_t>(header.sections.size()));
  for (const auto& section : header.sections) {
    out(static_cast<std::uint16_t>(section.name.size()));
    out.raw(section.name.data(), section.name.size());
    out(section.length, section.digest);
  }
  auto bytes = out.take();
  const auto digest = hash_of(bytes);
  const auto* begin = reinterpret_cast<const std::byte*>(digest.bytes.data());
  bytes.insert(bytes.end(), begin, begin + digest.bytes.size());
  return bytes;
}

/// Reads a file, or its first bytes, from the start, and never more bytes than there are.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& file)
      : shown_(file.string()), open_(std::in_place, file, File::Mode::read), left_(open_->size()) {}
  FileReader(std::span<const std::byte> beginning, std::string shown)
      : shown_(std::move(shown)), beginning_(beginning), left_(beginning.size()) {}
  [[noreturn]] void refuse(const std::string& reason) const {
    data_error("checkpoint " + shown_ + " cannot be used: " + reason);
  }
  void take(std::span<std::byte> out, const std::string& what) {
    if (out.size() > left_ || !read(out)) refuse("it ends inside " + what);
    left_ -= out.size();
  }
  template <class T>
  T number(const std::string& what, Hasher& hasher) {
    T value{};
    take(std::as_writable_bytes(std::span(&value, 1)), what);
    hasher.update(std::as_bytes(std::span(&value, 1)));
    return value;
  }
  /// At most as many as are left; only in a file.
  void skip(std::uint64_t bytes) {
    open_->skip(bytes);
    left_ -= bytes;
  }
  [[nodiscard]] std::uint64_t left() const { return left_; }

 private:
  [[nodiscard]] bool read(std::span<std::byte> out) {
    if (open_) return open_->read(out);
    std::ranges::copy(beginning_.last(left_).first(out.size()), out.begin());
    return true;
  }

  std::string shown_;
  std::optional<File> open_;
  std::span<const std::byte> beginning_;  ///< if there is no file
  std::uint64_t left_;
};

SectionEntry read_entry(FileReader& in, Hasher& hasher) {
  SectionEntry entry;
  const auto length = in.number<std::uint16_t>("the table of sections", hasher);
  if (length == 0 || length > max_name)
    in.refuse("a section's name has " + std::to_string(length) + " bytes");
  entry.name.resize(length);
  in.take(std::as_writable_bytes(std::span(entry.name)), "the table of sections");
  hasher.update(entry.name);
  entry.length = in.number<std::uint64_t>("the table of sections", hasher);
  entry.digest.bytes = in.number<decltype(Digest::bytes)>("the table of sections", hasher);
  return entry;
}

Header read_header(FileReader& in) {
  const std::string where = "the header";
  Hasher hasher;
  if (in.number<std::array<char, magic.size()>>(where, hasher) != magic) {
    in.refuse("it does not begin as a checkpoint; expected ISTHCKPT");
  }
  const auto version = in.number<std::uint32_t>(where, hasher);
  if (version != checkpoint_version) {
    in.refuse("it has format version " + std::to_string(version) + "; this program reads version " +
              std::to_string(checkpoint_version));
  }
  Header header;
  header.model.bytes = in.number<decltype(Digest::bytes)>(where, hasher);
  header.step = in.number<std::uint64_t>(where, hasher);
  const auto sections = in.number<std::uint32_t>(where, hasher);
  if (sections > max_sections)
    in.refuse("it claims " + std::to_string(sections) + " sections, more than a checkpoint can have");
  for (std::uint32_t i = 0; i < sections; ++i) header.sections.push_back(read_entry(in, hasher));
  const auto expected = hasher.finish();
  Digest digest;
  in.take(std::as_writable_bytes(std::span(digest.bytes)), where);
  if (digest != expected) in.refuse("the checksum of its header is wrong");
  return header;
}

std::string name_of(const SectionEntry& entry) { return "section " + entry.name; }

void refuse_other_model(const FileReader& in, const Header& header, const Digest& model) {
  if (header.model == model) return;
  in.refuse("it belongs to another model (fingerprint " + header.model.hex().substr(0, 16) +
            ", this run's is " + model.hex().substr(0, 16) + ")");
}

void refuse_other_length(const FileReader& in, const Header& header) {
  auto left = in.left();
  for (const auto& entry : header.sections) {
    if (entry.length > left) in.refuse("it ends inside " + name_of(entry));
    left -= entry.length;
  }
  if (left != 0) in.refuse(std::to_string(left) + " bytes follow its end");
}

Bytes read_section(FileReader& in, const SectionEntry& entry) {
  if (entry.length > in.left()) in.refuse("it ends inside " + name_of(entry));
  Bytes bytes(entry.length);
  in.take(bytes, name_of(entry));
  if (hash_of(bytes) != entry.digest) in.refuse("the checksum of " + name_of(entry) + " is wrong");
  return bytes;
}

/// Reads the section in pieces through `memory`.
void check_section(FileReader& in, const SectionEntry& entry, std::span<std::byte> memory) {
  Hasher hasher;
  for (auto left = entry.length; left > 0;) {
    const auto piece = memory.first(std::min<std::uint64_t>(left, memory.size()));
    in.take(piece, name_of(entry));
    hasher.update(piece);
    left -= piece.size();
  }
  if (hasher.finish() != entry.digest) in.refuse("the checksum of " + name_of(entry) + " is wrong");
}

Header header_of(const Digest& model, std::uint64_t step, std::span<const SectionView> sections) {
  Header header{model, step, {}};
  for (const auto& section : sections) {
    header.sections.push_back({section.name, section.bytes.size(), hash_of(section.bytes)});
  }
  return header;
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Digest& model, std::uint64_t step,
                      std::span<const SectionView> sections) {
  replace_file(file, [&](const File& out) {
    out.write(to_bytes(header_of(model, step, sections)));
    for (const auto& section : sections) out.write(section.bytes);
  });
}

const Bytes& Checkpoint::section(const std::string& name) const {
  const auto found = sections.find(name);
  if (found == sections.end()) {
    data_error("checkpoint " + file.string() + " has no section " + name);
  }
  return found->second;
}

namespace {

Checkpoint read_sections(const std::filesystem::path& file, FileReader& in, const Header& header) {
  Checkpoint checkpoint{file, header.model, header.step, {}};
  for (const auto& entry : header.sections) {
    if (!checkpoint.sections.emplace(entry.name, read_section(in, entry)).second) {
      in.refuse("it has two sections " + entry.name);
    }
  }
  if (in.left() != 0) in.refuse(std::to_string(in.left()) + " bytes follow its end");
  return checkpoint;
}

}  // namespace

Checkpoint read_checkpoint(const std::filesystem::path& file, const Digest& model) {
  FileReader in(file);
  const auto header = read_header(in);
  refuse_other_model(in, header, model);
  return read_sections(file, in, header);
}

Checkpoint read_checkpoint(const std::filesystem::path& file) {
  FileReader in(file);
  const auto header = read_header(in);
  return read_sections(file, in, header);
}

void check_checkpoint(const std::filesystem::path& file, const Digest& model) {
  FileReader in(file);
  const auto header = read_header(in);
  refuse_other_model(in, header, model);
  refuse_other_length(in, header);
  Bytes memory(piece_bytes);
  for (const auto& entry : header.sections) check_section(in, entry, memory);
}

void check_checkpoint_header(const std::filesystem::path& file, const Digest& model) {
  FileReader in(file);
  const auto header = read_header(in);
  refuse_other_model(in, header, model);
  refuse_other_length(in, header);
}

namespace {

std::optional<Digest> digest_of(const Header& header, const std::string& name) {
  const auto found = std::ranges::find(header.sections, name, &SectionEntry::name);
  return found == header.sections.end() ? std::nullopt : std::optional(found->digest);
}

}  // namespace

config::Source config_of(const Checkpoint& checkpoint) {
  const auto& yaml = checkpoint.section(config_section);
  const std::string_view text(reinterpret_cast<const char*>(yaml.data()), yaml.size());
  return config::Source::from_text(text, checkpoint.file.string());
}

std::optional<Digest> section_digest(const std::filesystem::path& file, const std::string& name) {
  FileReader in(file);
  const auto header = read_header(in);
  refuse_other_length(in, header);
  return digest_of(header, name);
}

std::map<std::string, Digest> section_digests(const std::filesystem::path& file) {
  FileReader in(file);
  const auto header = read_header(in);
  refuse_other_length(in, header);
  std::map<std::string, Digest> digests;
  for (const auto& section : header.sections) digests[section.name] = section.digest;
  return digests;
}

std::optional<Digest> section_digest(std::span<const std::byte> beginning, const std::string& shown,
                                     const std::string& name) {
  FileReader in(beginning, shown);
  return digest_of(read_header(in), name);
}

void copy_sections(const std::filesystem::path& file, std::span<const std::string> names,
                   const PartialCopy& to) {
  FileReader in(file);
  const auto header = read_header(in);
  refuse_other_length(in, header);
  Header copy{header.model, header.step, {}};
  std::uint64_t length = 0;
  for (const auto& entry : header.sections) {
    if (std::ranges::find(names, entry.name) == names.end()) continue;
    copy.sections.push_back(entry);
    length += entry.length;
  }
  if (copy.sections.size() != names.size()) in.refuse("it lacks a section of the run's state");
  const auto bytes = to_bytes(copy);
  to.length(bytes.size() + length);
  to.bytes(bytes);
  Bytes memory(piece_bytes);
  for (const auto& entry : header.sections) {
    if (std::ranges::find(names, entry.name) == names.end()) {
      in.skip(entry.length);
      continue;
    }
    for (auto left = entry.length; left > 0;) {
      const auto piece = std::span(memory).first(std::min<std::uint64_t>(left, memory.size()));
      in.take(piece, name_of(entry));
      to.bytes(piece);
      left -= piece.size();
    }
  }
}

}  // namespace isthmus::trainer
