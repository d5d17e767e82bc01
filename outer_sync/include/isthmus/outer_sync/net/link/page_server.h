#pragma once
// Serves one page of text over HTTP/1.1 on its own thread, without state between requests. Answers only GET
// and HEAD. Resources are bounded: 32 connections (a new one displaces the oldest), 4 KiB per request without
// a body, 5 s until the answer is sent.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "isthmus/outer_sync/core/address.h"

namespace isthmus::outer_sync {

class PageServer {
 public:
  struct Page {
    std::string path;  ///< "/metrics"
    std::string type;  ///< Content-Type
    /// Called on the server's thread for each request.
    std::function<std::string()> text;
  };
  /// `key`: the config key of the address. Throws Error(config) if the address cannot be opened.
  PageServer(const Address& address, const std::string& key, Page page);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  /// The port that it listens on; chosen by the system if `address` has port 0.
  [[nodiscard]] std::uint16_t port() const;

 private:
  class Side;
  std::unique_ptr<Side> side_;
};

}  // namespace isthmus::outer_sync
