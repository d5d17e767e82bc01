#pragma once
// A log's header: everything that turns its records into a model again.
//
// The file "log.header", little-endian: 8 bytes magic "ISTHRLOG", u32 version, the fields of LogHeader in the
// bounded archive (base/archive.h), 32 bytes SHA-256 of all of the above.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/versions.h"
#include "isthmus/quant/codec.h"

namespace isthmus::outer_sync::log {

inline constexpr std::uint32_t log_version = 2;
inline constexpr const char* header_name = "log.header";

/// A named tensor's place in the flat parameter buffer.
struct LoggedTensor {
  std::string name;                 ///< unique; 1 to 255 characters of printable ASCII
  std::vector<std::int64_t> shape;  ///< row-major; its product is range.size
  Range range;                      ///< elements of the flat buffer
  friend bool operator==(const LoggedTensor&, const LoggedTensor&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, shape, range);
  }
};

struct LogHeader {
  std::string run;
  std::uint32_t numerics = protocol::numerics_version;
  Digest model;                  ///< the model's fingerprint
  std::vector<Range> fragments;  ///< as in FragmentLayout
  std::uint64_t chunk_elements = 0;
  quant::CodecSpec codec;             ///< of the rounds after the warm-up
  protocol::Round warmup_rounds = 0;  ///< per fragment; they are not in the log
  std::vector<LoggedTensor> tensors;
  friend bool operator==(const LogHeader&, const LogHeader&) = default;

  /// Length of the flat buffer.
  [[nodiscard]] std::uint64_t buffer_size() const { return fragments.empty() ? 0 : fragments.back().end(); }
  /// Bytes of the results of one round of a fragment, all chunks.
  [[nodiscard]] std::uint64_t result_size(FragmentId fragment) const;
};

/// Why the header is invalid; empty if it is valid. No sum or product of a valid header's numbers overflows.
[[nodiscard]] std::string problem_of(const LogHeader& header);

/// The bytes of the header file.
[[nodiscard]] Bytes to_file(const LogHeader& header);
/// Throws Error(data) naming `file` and the reason unless the bytes are a valid header.
[[nodiscard]] LogHeader header_from(std::span<const std::byte> bytes, const std::filesystem::path& file);

}  // namespace isthmus::outer_sync::log
