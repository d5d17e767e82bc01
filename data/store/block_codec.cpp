#include "store/block_codec.h"

#include <lz4.h>
#include <lz4hc.h>
#include <zstd.h>

#include <array>
#include <cassert>
#include <cstring>
#include <new>

namespace isthmus::data::store {
namespace {

constexpr int min_hc_level = 3;

void put_varint(std::uint32_t number, Bytes& out) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<std::byte>(number | 0x80));
  out.push_back(static_cast<std::byte>(number));
}

/// False if the bytes end early, or are not the shortest form of a 32-bit number.
bool get_varint(std::span<const std::byte>& bytes, std::uint32_t& number) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 5 && i < bytes.size(); ++i) {
    const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
    value |= (byte & 0x7F) << (7 * i);
    if ((byte & 0x80) != 0) continue;
    if ((byte == 0 && i > 0) || value > 0xFFFF'FFFF) return false;
    number = static_cast<std::uint32_t>(value);
    bytes = bytes.subspan(i + 1);
    return true;
  }
  return false;
}

/// The two parts of a record; `sound` is false if its header is invalid.
struct Parts {
  std::span<const std::byte> ids, starts;
  bool sound = false;
};

Parts parts_of(std::span<const std::byte> record) {
  std::uint32_t size = 0;
  if (record.size() < record_head_bytes) return {};
  std::memcpy(&size, record.data(), sizeof size);
  const auto rest = record.subspan(record_head_bytes);
  if (size > rest.size()) return {};
  return {rest.first(size), rest.subspan(size), true};
}

/// Widens bytes that fill the second half of `out` to two-byte numbers that fill all of it.
void widen_in_place(std::span<std::byte> out) {
  constexpr std::size_t together = 64;
  const auto count = out.size() / 2;
  std::size_t i = 0;
  // As long as a whole group is left, the bytes written end before the bytes still to be read.
  for (; i + together <= count; i += together) {
    std::array<std::uint8_t, together> from;
    std::array<std::uint16_t, together> to;
    std::memcpy(from.data(), out.data() + count + i, sizeof from);
    for (std::size_t k = 0; k < together; ++k) to[k] = from[k];
    std::memcpy(out.data() + 2 * i, to.data(), sizeof to);
  }
  for (; i < count; ++i) {
    const auto id = std::to_integer<std::uint16_t>(out[count + i]);
    std::memcpy(out.data() + 2 * i, &id, sizeof id);
  }
}

}  // namespace

struct BlockEncoder::Context {
  ZSTD_CCtx* zstd = nullptr;
  std::vector<std::byte> lz4;
  ~Context() { ZSTD_freeCCtx(zstd); }
};

BlockEncoder::BlockEncoder(const StoreSpec& spec) : spec_(spec), context_(std::make_unique<Context>()) {
  if (spec.codec == StoreCodec::zstd) {
    context_->zstd = ZSTD_createCCtx();
    if (context_->zstd == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(context_->zstd, ZSTD_c_compressionLevel, spec.level);
    ZSTD_CCtx_setParameter(context_->zstd, ZSTD_c_contentSizeFlag, 0);  // the reader knows the size
  } else if (spec.codec == StoreCodec::lz4) {
    context_->lz4.resize(
        static_cast<std::size_t>(spec.level < min_hc_level ? LZ4_sizeofState() : LZ4_sizeofStateHC()));
  }
}

BlockEncoder::~BlockEncoder() = default;

/// Returns the number of bytes, or 0 if the ids do not fit into `out` or the codec is `none`.
std::size_t BlockEncoder::compress(std::span<const std::byte> ids, std::span<std::byte> out) {
  if (spec_.codec == StoreCodec::zstd) {
    const auto size = ZSTD_compress2(context_->zstd, out.data(), out.size(), ids.data(), ids.size());
    return ZSTD_isError(size) != 0 ? 0 : size;
  }
  if (spec_.codec == StoreCodec::none) return 0;
  const auto* from = reinterpret_cast<const char*>(ids.data());
  auto* to = reinterpret_cast<char*>(out.data());
  const auto size = static_cast<int>(ids.size()), room = static_cast<int>(out.size());
  auto* const state = context_->lz4.data();
  return static_cast<std::size_t>(spec_.level < min_hc_level
                                      ? LZ4_compress_fast_extState(state, from, to, size, room, 1)
                                      : LZ4_compress_HC_extStateHC(state, from, to, size, room, spec_.level));
}

void BlockEncoder::encode(std::span<const std::byte> ids, std::span<const std::uint32_t> starts,
                          Bytes& record) {
  assert(!ids.empty() && ids.size() % spec_.stored_width() == 0);
  record.resize(record_head_bytes + ids.size());
  const auto room = std::span(record).subspan(record_head_bytes);
  // Only a shorter result is of use.
  auto size = static_cast<std::uint32_t>(compress(ids, room.first(ids.size() - 1)));
  if (size == 0) {
    std::memcpy(room.data(), ids.data(), ids.size());
    size = static_cast<std::uint32_t>(ids.size());
  }
  std::memcpy(record.data(), &size, sizeof size);
  record.resize(record_head_bytes + size);
  std::uint32_t last = 0;
  for (const auto start : starts) {
    put_varint(start - last, record);
    last = start;
  }
}

struct BlockDecoder::Context {
  ZSTD_DCtx* zstd = nullptr;
  ~Context() { ZSTD_freeDCtx(zstd); }
};

BlockDecoder::BlockDecoder(const StoreSpec& spec) : spec_(spec), context_(std::make_unique<Context>()) {
  if (spec.codec != StoreCodec::zstd) return;
  context_->zstd = ZSTD_createDCtx();
  if (context_->zstd == nullptr) throw std::bad_alloc();
}

BlockDecoder::~BlockDecoder() = default;

bool BlockDecoder::decompress(std::span<const std::byte> packed, std::span<std::byte> out) {
  if (packed.size() == out.size()) {
    std::memcpy(out.data(), packed.data(), out.size());
    return true;
  }
  if (packed.size() > out.size()) return false;
  if (spec_.codec == StoreCodec::lz4) {
    const auto got =
        LZ4_decompress_safe(reinterpret_cast<const char*>(packed.data()), reinterpret_cast<char*>(out.data()),
                            static_cast<int>(packed.size()), static_cast<int>(out.size()));
    return got >= 0 && static_cast<std::size_t>(got) == out.size();
  }
  if (spec_.codec == StoreCodec::none) return false;
  // The library would also accept formats older than the standard, and frames that follow.
  std::uint32_t magic = 0;
  if (packed.size() < sizeof magic) return false;
  std::memcpy(&magic, packed.data(), sizeof magic);
  return magic == ZSTD_MAGICNUMBER &&
         ZSTD_findFrameCompressedSize(packed.data(), packed.size()) == packed.size() &&
         ZSTD_decompressDCtx(context_->zstd, out.data(), out.size(), packed.data(), packed.size()) ==
             out.size();
}

std::string_view BlockDecoder::ids(std::span<const std::byte> record, std::span<std::byte> out) {
  const auto parts = parts_of(record);
  if (!parts.sound) return "its header claims more bytes than it has";
  const bool widen = spec_.stored_width() < spec_.width();
  const auto target = widen ? out.subspan(out.size() / 2) : out;
  if (!decompress(parts.ids, target)) return "its ids do not decompress to the expected number of bytes";
  if (widen) widen_in_place(out);
  return {};
}

std::string_view BlockDecoder::starts(std::span<const std::byte> record, std::uint32_t tokens,
                                      std::uint32_t documents, std::vector<std::uint32_t>& out) {
  const auto parts = parts_of(record);
  if (!parts.sound) return "its header claims more bytes than it has";
  // Each start takes at least one byte.
  if (documents > parts.starts.size()) return "it has fewer documents than the index says";
  out.clear();
  auto rest = parts.starts;
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < documents; ++i) {
    std::uint32_t further = 0;
    if (!get_varint(rest, further)) return "the start of a document in it is not a valid number";
    if (i > 0 && further == 0) return "two documents in it begin at the same id";
    at += further;
    if (at >= tokens) return "a document in it begins after its end";
    out.push_back(static_cast<std::uint32_t>(at));
  }
  return rest.empty() ? std::string_view{} : "it has more documents than the index says";
}

}  // namespace isthmus::data::store
