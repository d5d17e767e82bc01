#pragma once
// The page of the dashboard, and the rules for reading it. Used by Dashboard.

#include <functional>
#include <string>
#include <string_view>

#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/net/link/page_server.h"

namespace isthmus::app {

/// The whole page. It loads nothing but its JSON, `status.json` next to it. `nonce` marks its own scripts and
/// styles for the Content-Security-Policy.
[[nodiscard]] std::string dashboard_page(std::string_view nonce);

/// The page at "/" and the JSON at "/status.json". `token` is required unless the address is loopback; there
/// only this machine's own names for itself are served. `json` is called on the server's thread.
[[nodiscard]] outer_sync::PageServer::Pages dashboard_pages(const outer_sync::Address& address,
                                                            const std::string& token,
                                                            const std::string& nonce,
                                                            std::function<std::string()> json);

/// The URL to open. `machine`: this machine's name, for an address that stands for all of its interfaces.
[[nodiscard]] std::string dashboard_url(outer_sync::Address address, const std::string& token,
                                        const std::string& machine);

}  // namespace isthmus::app
