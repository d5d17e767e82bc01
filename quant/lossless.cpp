#include "isthmus/quant/lossless.h"

#include <zstd.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <new>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::quant {
namespace {

/// Codes have no repeated strings worth a search, so matching is limited as far as the stable interface
/// allows; the Huffman code of the literals does the packing. Higher levels take longer and gain nothing
/// (docs/results/network.md, "Lossless compression").
void set_up(ZSTD_CCtx* context) {
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(context, ZSTD_c_strategy, ZSTD_fast);
  ZSTD_CCtx_setParameter(context, ZSTD_c_minMatch, 7);
  ZSTD_CCtx_setParameter(context, ZSTD_c_hashLog, 6);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);  // the receiver knows the size from the codec
}

/// Feeds the rest of `in`. Returns whether all of it, packed, fits into `out`.
bool feed(ZSTD_CCtx* context, ZSTD_inBuffer& in, ZSTD_outBuffer& out, ZSTD_EndDirective directive) {
  const auto still_to_write = ZSTD_compressStream2(context, &out, &in, directive);
  return still_to_write == 0 && in.pos == in.size;
}

/// Debian's library also accepts formats from before the standard; their decoders are not maintained.
bool is_standard_frame(std::span<const std::byte> packed) {
  std::uint32_t magic = 0;
  if (packed.size() < sizeof magic) return false;
  std::memcpy(&magic, packed.data(), sizeof magic);
  return magic == ZSTD_MAGICNUMBER;
}

}  // namespace

Lossless lossless(std::string_view name) {
  const auto* found = std::find(std::begin(lossless_names), std::end(lossless_names), name);
  if (found == std::end(lossless_names)) {
    throw Error(ErrorKind::config,
                "unknown lossless stage \"" + std::string(name) + "\", expected one of none zstd");
  }
  return static_cast<Lossless>(found - std::begin(lossless_names));
}

void Packer::Free::operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }

Packer::Packer() : context_(ZSTD_createCCtx()) {
  if (!context_) throw std::bad_alloc();
  set_up(context_.get());
}

std::optional<std::size_t> Packer::pack(std::span<const std::byte> bytes, std::size_t scales,
                                        std::span<std::byte> out) {
  assert(scales <= bytes.size() && out.size() >= bytes.size());
  if (bytes.empty()) return std::nullopt;
  ZSTD_CCtx_reset(context_.get(), ZSTD_reset_session_only);
  ZSTD_CCtx_setPledgedSrcSize(context_.get(), bytes.size());
  ZSTD_outBuffer written{out.data(), bytes.size() - 1, 0};  // a longer output is useless
  ZSTD_inBuffer read{bytes.data(), scales, 0};
  // A flush ends the block, and every block has its own code.
  if (scales > 0 && !feed(context_.get(), read, written, ZSTD_e_flush)) return std::nullopt;
  read.size = bytes.size();
  if (!feed(context_.get(), read, written, ZSTD_e_end)) return std::nullopt;
  return written.pos;
}

void Unpacker::Free::operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }

Unpacker::Unpacker() : context_(ZSTD_createDCtx()) {
  if (!context_) throw std::bad_alloc();
}

bool Unpacker::unpack(std::span<const std::byte> packed, std::span<std::byte> out) {
  if (!is_standard_frame(packed)) return false;
  // The decoder would continue with frames that follow, and skip those marked as skippable.
  if (ZSTD_findFrameCompressedSize(packed.data(), packed.size()) != packed.size()) return false;
  return ZSTD_decompressDCtx(context_.get(), out.data(), out.size(), packed.data(), packed.size()) ==
         out.size();
}

}  // namespace isthmus::quant
