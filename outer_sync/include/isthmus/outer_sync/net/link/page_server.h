#pragma once
// One page of text over HTTP/1.1, on a thread of its own; nothing is kept between two readers. Bounded
// whoever connects: 32 connections, of which the oldest makes room for a new one, 4 KiB of request each and
// no body, and 5 s until it has its answer. Only GET and HEAD are answered.

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
    /// Called on the server's thread for each reader.
    std::function<std::string()> text;
  };
  /// `key` is the config key that the address is of. Throws Error(config) if it cannot be opened.
  PageServer(const Address& address, const std::string& key, Page page);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  /// That it listens at; what `address` left open, the system has chosen.
  [[nodiscard]] std::uint16_t port() const;

 private:
  class Side;
  std::unique_ptr<Side> side_;
};

}  // namespace isthmus::outer_sync
