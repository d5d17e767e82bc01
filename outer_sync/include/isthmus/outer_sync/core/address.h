#pragma once
// Network addresses in text form: "127.0.0.1:7000", "[::1]:7000", "coordinator.example:7000".

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
  /// True if no other machine can reach the address. Host names other than localhost count as reachable.
  [[nodiscard]] bool is_loopback() const;
};

/// Whether this host in an address, NAME.mailbox, leads through the mailbox (network.mailbox).
[[nodiscard]] inline bool is_mailbox_host(std::string_view host) { return host.ends_with(".mailbox"); }

/// Returns nullopt if the text is not an address.
[[nodiscard]] std::optional<Address> address_in(std::string_view text);

/// Throws Error(config) that names `what` (a key or flag), the text and the expected form.
[[nodiscard]] Address parse_address(std::string_view text, std::string_view what);

/// Parses one or more addresses separated by commas; spaces around them are allowed. Throws like
/// `parse_address`, with the text of the invalid address.
[[nodiscard]] std::vector<Address> parse_addresses(std::string_view text, std::string_view what);

}  // namespace isthmus::outer_sync
