#pragma once
// An optional lossless stage for encoded runs on the network. A codec's codes are not equally frequent and
// its scales are close together, so a Huffman code (Huffman 1952; zstd's, RFC 8878) saves another few
// percent. Packed bytes are never agreed state; only the unpacked bytes are. Every run is packed separately,
// as one zstd frame.

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

/// Packs one run after the other; used by one thread at a time.
class Packer {
 public:
  Packer();
  /// Packs into the front of `out`, which is at least as long as `bytes`. Returns the packed size, or nullopt
  /// unless it is smaller than `bytes`. The first `scales` bytes get their own Huffman code.
  [[nodiscard]] std::optional<std::size_t> pack(std::span<const std::byte> bytes, std::size_t scales,
                                                std::span<std::byte> out);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
};

/// Unpacks untrusted bytes; used by one thread at a time.
class Unpacker {
 public:
  Unpacker();
  /// Fills `out`. False, with `out` unspecified, unless `packed` is exactly one zstd frame that unpacks to
  /// exactly this number of bytes. Allocates nothing, regardless of what the frame declares.
  [[nodiscard]] bool unpack(std::span<const std::byte> packed, std::span<std::byte> out);

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
};

}  // namespace isthmus::quant
