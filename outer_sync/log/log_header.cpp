#include "isthmus/outer_sync/log/log_header.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync::log {
namespace {

constexpr std::array magic = {'I', 'S', 'T', 'H', 'R', 'L', 'O', 'G'};
constexpr std::size_t digest_size = sizeof(Digest::bytes);
// Far beyond any model, and small enough that byte counts do not overflow 64 bits.
constexpr std::uint64_t max_elements = std::uint64_t{1} << 48;
// Padding is memory that no record backs, so it is limited.
constexpr std::uint64_t max_padding = 4096;
constexpr std::size_t longest_name = 255;

/// CodecSpec for the archive: enumerators are stored as numbers, to be checked before conversion.
struct SavedCodec {
  std::uint8_t kind = 0, scale = 0, rounding = 0;
  std::uint32_t block = 0, top_k = 0;
  float clip = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, scale, rounding, block, top_k, clip);
  }
};

struct SavedHeader {
  LogHeader header;
  SavedCodec codec;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(header.run, header.numerics, header.model, header.fragments, header.chunk_elements, codec,
       header.warmup_rounds, header.tensors);
  }
};

SavedCodec saved(const quant::CodecSpec& spec) {
  return {static_cast<std::uint8_t>(spec.kind),
          static_cast<std::uint8_t>(spec.scale),
          static_cast<std::uint8_t>(spec.rounding),
          spec.block,
          spec.top_k,
          spec.clip};
}

std::string problem_of(const SavedCodec& codec) {
  if (codec.kind >= std::size(quant::codec_names)) return "a codec that this program does not know";
  if (codec.scale >= std::size(quant::scale_names)) return "a scale format that this program does not know";
  if (codec.rounding > static_cast<std::uint8_t>(quant::Rounding::stochastic))
    return "a rounding that this program does not know";
  return {};
}

quant::CodecSpec spec_of(const SavedCodec& codec) {
  return {.kind = static_cast<quant::CodecKind>(codec.kind),
          .block = codec.block,
          .scale = static_cast<quant::ScaleFormat>(codec.scale),
          .clip = codec.clip,
          .rounding = static_cast<quant::Rounding>(codec.rounding),
          .top_k = codec.top_k};
}

std::string problem_of(const std::vector<Range>& fragments) {
  if (fragments.empty()) return "no fragments";
  std::uint64_t end = 0;
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    const auto& fragment = fragments[p];
    const bool fits = fragment.size > 0 && fragment.size <= max_elements && fragment.begin >= end &&
                      fragment.begin - end <= max_padding && fragment.end() <= max_elements;
    if (!fits) return "a fragment " + std::to_string(p) + " with an invalid range";
    end = fragment.end();
  }
  return {};
}

/// Whether the product of the shape is `elements`; computes no product that overflows.
bool holds(const std::vector<std::int64_t>& shape, std::uint64_t elements) {
  std::uint64_t product = 1;
  for (const auto extent : shape) {
    if (extent < 1 || static_cast<std::uint64_t>(extent) > max_elements / product) return false;
    product *= static_cast<std::uint64_t>(extent);
  }
  return product == elements;
}

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= longest_name &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

std::string problem_of(const std::vector<LoggedTensor>& tensors, std::uint64_t buffer_size) {
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    if (!is_name(tensor.name)) return "a tensor whose name is not 1 to 255 characters of printable ASCII";
    if (!names.insert(tensor.name).second) return "two tensors named " + tensor.name;
    const bool inside =
        tensor.range.begin <= buffer_size && tensor.range.size <= buffer_size - tensor.range.begin;
    if (!inside || !holds(tensor.shape, tensor.range.size))
      return "a tensor " + tensor.name + " whose shape does not match its range";
  }
  return {};
}

}  // namespace

std::uint64_t LogHeader::result_size(FragmentId fragment) const {
  const auto size = fragments.at(fragment).size;
  const auto rest = size % chunk_elements;
  return size / chunk_elements * quant::encoded_size(codec, chunk_elements) +
         (rest == 0 ? 0 : quant::encoded_size(codec, rest));
}

std::string problem_of(const LogHeader& header) {
  if (header.numerics != protocol::numerics_version) {
    return "numerics version " + std::to_string(header.numerics) + "; this program computes with version " +
           std::to_string(protocol::numerics_version);
  }
  if (auto problem = problem_of(saved(header.codec)); !problem.empty()) return problem;
  if (auto problem = quant::problem_of(header.codec); !problem.empty()) return problem;
  if (header.chunk_elements == 0 || header.chunk_elements > max_elements)
    return "chunks of " + std::to_string(header.chunk_elements) + " elements";
  if (auto problem = problem_of(header.fragments); !problem.empty()) return problem;
  return problem_of(header.tensors, header.buffer_size());
}

Bytes to_file(const LogHeader& header) {
  BinaryWriter out;
  out.raw(magic.data(), magic.size());
  out(log_version, SavedHeader{header, saved(header.codec)});
  auto bytes = out.take();
  const auto digest = hash_of(bytes);
  const auto checksum = std::as_bytes(std::span(digest.bytes));
  bytes.insert(bytes.end(), checksum.begin(), checksum.end());
  return bytes;
}

LogHeader header_from(std::span<const std::byte> bytes, const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorKind::data, file.string() + " is not the header of a log: " + reason);
  };
  if (bytes.size() < magic.size() + sizeof(log_version) + digest_size) refuse("it is too short");
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    refuse("it does not begin with the expected magic bytes");
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + magic.size(), sizeof version);
  if (version != log_version) {
    refuse("it has format version " + std::to_string(version) + "; this program reads version " +
           std::to_string(log_version));
  }
  const auto checked = bytes.first(bytes.size() - digest_size);
  const auto digest = hash_of(checked);
  if (std::memcmp(digest.bytes.data(), bytes.data() + checked.size(), digest_size) != 0)
    refuse("its checksum is wrong: it is damaged");
  SavedHeader read;
  try {
    read = from_bytes<SavedHeader>(checked.subspan(magic.size() + sizeof version));
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (const auto problem = problem_of(read.codec); !problem.empty()) refuse("it has " + problem);
  read.header.codec = spec_of(read.codec);
  if (const auto problem = problem_of(read.header); !problem.empty()) refuse("it has " + problem);
  return std::move(read.header);
}

}  // namespace isthmus::outer_sync::log
