#include "isthmus/outer_sync/core/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"

namespace isthmus::outer_sync {

std::string Address::to_string() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Address::is_loopback() const {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24U == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return host == "localhost";
}

std::optional<Address> address_in(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  auto host = text.substr(0, colon);
  const auto port = text.substr(colon + 1);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find_first_of(":[]") != std::string_view::npos) return std::nullopt;
  if (std::ranges::any_of(host, [](unsigned char c) { return c <= ' ' || c == 0x7f; })) return std::nullopt;
  Address address{.host = std::string(host), .port = 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || port.empty()) return std::nullopt;
  return address;
}

Address parse_address(std::string_view text, std::string_view what) {
  if (auto address = address_in(text)) return *address;
  throw Error(ErrorKind::config, std::string(what) + " is '" + std::string(text) +
                                     "'; expected HOST:PORT, with an IPv6 host in brackets and a port from "
                                     "0 to 65535");
}

std::vector<Address> parse_addresses(std::string_view text, std::string_view what) {
  std::vector<Address> addresses;
  for (;;) {
    const auto comma = text.find(',');
    addresses.push_back(parse_address(trimmed(text.substr(0, comma), " "), what));
    if (comma == std::string_view::npos) return addresses;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace isthmus::outer_sync
