#pragma once
// An optional lossless stage for encoded runs on their way through the network. A codec's codes are not
// equally frequent and its scales lie close together, so that a Huffman code (Huffman 1952; zstd's, RFC 8878)
// takes off another few percent. Packed bytes are never agreed state: what counts is what they unpack to.
// Every run is packed alone, as one zstd frame.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "isthmus/quant/codec.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace isthmus::quant {

enum class Lossless : std::uint8_t { none, zstd };
inline constexpr std::string_view lossless_names[] = {"none", "zstd"};
/// Throws Error(config) for any other name.
[[nodiscard]] Lossless lossless(std::string_view name);

/// Packs one run after the other; belongs to one thread at a time.
class Packer {
 public:
  Packer();
  /// Writes to the front of `out`, which is as long as `bytes` or longer. The size of what was written;
  /// nothing unless it is smaller than `bytes`. Bytes before `scales` get a Huffman code of their own.
  [[nodiscard]] std::optional<std::size_t> pack(std::span<const std::byte> bytes, std::size_t scales,
                                                std::span<std::byte> out);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
};

/// Unpacks what strangers may have sent; belongs to one thread at a time.
class Unpacker {
 public:
  Unpacker();
  /// Fills `out`. False, with `out` in an unspecified state, unless `packed` is one zstd frame, nothing more
  /// or less, that unpacks to exactly as many bytes. Allocates nothing, whatever the frame says about itself.
  [[nodiscard]] bool unpack(std::span<const std::byte> packed, std::span<std::byte> out);

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
};

}  // namespace isthmus::quant
