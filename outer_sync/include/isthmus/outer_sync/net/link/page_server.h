#pragma once
// Serves a few pages over HTTP/1.1 on its own thread, without state between requests. Answers only GET and
// HEAD. Resources are bounded: 32 connections (a new one displaces the oldest), 4 KiB per request without a
// body, 5 s until the answer is sent.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
  /// All pages at one address, and the rules for reading them.
  struct Pages {
    std::vector<Page> pages;
    std::string headers{};  ///< lines of every answer, each with CRLF at its end
    std::string token{};    ///< if not empty, a URL needs `?token=TOKEN`; others are answered with 403
    /// Answers 403 unless Host names this machine itself. Otherwise a web page from elsewhere, with a name
    /// that it points to 127.0.0.1, could make the browser of a user of this machine read these pages.
    bool only_for_loopback = false;
  };
  /// `key`: the config key of the address. Throws Error(config) if the address cannot be opened.
  PageServer(const Address& address, const std::string& key, Pages pages);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  /// The port that it listens on; chosen by the system if `address` has port 0.
  [[nodiscard]] std::uint16_t port() const;

 private:
  class Side;
  std::unique_ptr<Side> side_;
};

/// The HTTP response to a request's first line and headers, which are not trusted. Called by PageServer.
[[nodiscard]] std::string answer_to(std::string_view request, const PageServer::Pages& pages);

}  // namespace isthmus::outer_sync
