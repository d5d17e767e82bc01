#pragma once
// Opens the port of pages that a process serves over HTTP: metrics, or the coordinator's dashboard.

#include <memory>
#include <string>

#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/net/link/page_server.h"

namespace isthmus::app {

struct ServedPages {
  outer_sync::Address address;  ///< with the port that was opened
  std::unique_ptr<outer_sync::PageServer> server;
};

/// Uses the next free port, up to 63 further, if the first is taken: processes on one machine share a config.
/// Throws Error(config) naming `key` if none can be opened. Call it after the SignalThread was created, so
/// that the server's thread gets no signals.
[[nodiscard]] ServedPages serve_pages(const outer_sync::Address& first, const std::string& key,
                                      const outer_sync::PageServer::Pages& pages);

}  // namespace isthmus::app
