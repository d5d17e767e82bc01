#include "isthmus/outer_sync/transport/address.h"

#include <charconv>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync {

std::string Address::to_string() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Address parse_address(std::string_view text, std::string_view what) {
  const auto refuse = [&] {
    throw Error(ErrorKind::config,
                std::string(what) + " is '" + std::string(text) +
                    "'; expected HOST:PORT, with an IPv6 host in brackets and a port from 0 to 65535");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) refuse();
  auto host = text.substr(0, colon);
  const auto port = text.substr(colon + 1);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find_first_of(":[]") != std::string_view::npos) refuse();
  Address address{.host = std::string(host), .port = 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || port.empty()) refuse();
  return address;
}

}  // namespace isthmus::outer_sync
