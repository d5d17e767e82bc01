#include "store/store_format.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <limits>

#include "isthmus/base/error.h"
#include "store/block_codec.h"

namespace isthmus::data {

namespace {

[[noreturn]] void fail(const std::string& name, const std::string& why) { data_error(name + ": " + why); }

struct Levels {
  std::int64_t min, max;
};

Levels levels_of(StoreCodec codec) {
  switch (codec) {
    case StoreCodec::zstd:
      return {-7, 19};
    case StoreCodec::lz4:
      return {1, 12};
    case StoreCodec::none:
      break;
  }
  return {0, 0};
}

/// Returns what is wrong with the spec, or an empty string.
std::string problem_of(const StoreSpec& spec) {
  const auto outside = [](const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
    return fmt::format("{} is {}; expected {} to {}", what, value, least, most);
  };
  if (static_cast<std::size_t>(spec.codec) >= std::size(store_codec_names))
    return outside("the codec's number", static_cast<std::int64_t>(spec.codec), 0,
                   std::int64_t{std::size(store_codec_names)} - 1);
  const auto levels = levels_of(spec.codec);
  if (spec.level < levels.min || spec.level > levels.max) {
    return outside(("the level of " + std::string(store_codec_names[static_cast<int>(spec.codec)])).c_str(),
                   spec.level, levels.min, levels.max);
  }
  if (spec.block_tokens < min_block_tokens || spec.block_tokens > max_block_tokens)
    return outside("the number of ids in a block", spec.block_tokens, min_block_tokens, max_block_tokens);
  if (spec.vocab_size < 2)
    return outside("the vocabulary", spec.vocab_size, 2, std::numeric_limits<std::uint32_t>::max());
  if (spec.separator >= spec.vocab_size)
    return outside("the separator", spec.separator, 0, std::int64_t{spec.vocab_size} - 1);
  return {};
}

/// Also checks everything else in the info.
std::string problem_of(const StoreInfo& info) {
  if (auto problem = problem_of(info.spec); !problem.empty()) return problem;
  const auto min_record = store::record_head_bytes;
  if (info.tokens > std::numeric_limits<std::uint64_t>::max() / 16)
    return fmt::format("its number of ids is {}", info.tokens);
  if (info.documents > info.tokens) return "it has more documents than ids";
  if (info.documents == 0 && info.tokens > 0) return "it has ids, but no document";
  if (info.largest_record > store::max_record_bytes(info.spec)) {
    return fmt::format("its largest block has {} bytes; expected {} at most", info.largest_record,
                       store::max_record_bytes(info.spec));
  }
  if (info.data_bytes / std::max<std::uint64_t>(1, info.largest_record) > info.blocks() ||
      info.data_bytes < info.blocks() * min_record)
    return "its number of blocks does not match its number of bytes";
  return {};
}

}  // namespace

void check(const StoreSpec& spec) {
  if (const auto problem = problem_of(spec); !problem.empty()) config_error(problem);
}

StoreCodec store_codec(std::string_view name) {
  const auto* found = std::find(std::begin(store_codec_names), std::end(store_codec_names), name);
  if (found == std::end(store_codec_names)) {
    config_error("unknown codec \"" + std::string(name) + "\", expected one of none zstd lz4");
  }
  return static_cast<StoreCodec>(found - std::begin(store_codec_names));
}

bool is_store(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder / store::index_name, ignored);
}

namespace store {

Bytes header_of(const StoreInfo& info) {
  BinaryWriter out;
  out.raw(magic.data(), magic.size());
  out(version, info);
  auto bytes = out.take();
  const auto digest = hash_of(bytes);
  const auto at = bytes.size();
  bytes.resize(at + digest.bytes.size());
  std::memcpy(bytes.data() + at, digest.bytes.data(), digest.bytes.size());
  assert(bytes.size() == header_bytes);
  return bytes;
}

StoreInfo parse_header(std::span<const std::byte, header_bytes> bytes, const std::string& name) {
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    fail(name, "offset 0: not the index of a store; expected it to begin with " + std::string(magic));
  BoundedReader in(bytes.subspan(magic.size()));
  std::uint32_t found = 0;
  in(found);
  if (found != version) {
    fail(name,
         fmt::format("offset 8: version {} of the format; this program reads version {}", found, version));
  }
  const auto digest = hash_of(bytes.first(header_bytes - sizeof(Digest::bytes)));
  if (std::memcmp(digest.bytes.data(), bytes.last<sizeof(Digest::bytes)>().data(), digest.bytes.size()) != 0)
    fail(name, "offset 0: the header does not match its checksum: the file is damaged");
  StoreInfo info;
  in(info);
  info.fingerprint = Hasher()
                         .update("store")
                         .update(info.spec.tokenizer.hex())
                         .update(info.tokens)
                         .update(info.entries.hex())
                         .finish();
  if (const auto problem = problem_of(info); !problem.empty()) fail(name, "offset 12: " + problem);
  return info;
}

std::uint64_t max_record_bytes(const StoreSpec& spec) {
  constexpr std::uint64_t max_varint = 5;
  return record_head_bytes + spec.block_tokens * (spec.stored_width() + max_varint);
}

}  // namespace store
}  // namespace isthmus::data
