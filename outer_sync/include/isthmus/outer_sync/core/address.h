#pragma once
// HOST:PORT as people write it: "127.0.0.1:7000", "[::1]:7000", "coordinator.example:7000".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::outer_sync {

struct Address {
  std::string host;
  std::uint16_t port = 0;
  [[nodiscard]] std::string to_string() const;  ///< IPv6 in brackets
  /// No other machine can reach it. Names other than localhost count as reachable.
  [[nodiscard]] bool is_loopback() const;
};

/// Nothing for a text that is no address.
[[nodiscard]] std::optional<Address> address_in(std::string_view text);

/// Throws Error(config) naming `what` (a key or flag), the text and the form expected.
[[nodiscard]] Address parse_address(std::string_view text, std::string_view what);

/// One or more, with commas between them, and spaces where one likes. Throws like `parse_address`, with the
/// text of the one that is none.
[[nodiscard]] std::vector<Address> parse_addresses(std::string_view text, std::string_view what);

}  // namespace isthmus::outer_sync
