#include "run/metrics/page_port.h"

#include <fmt/format.h>

#include "isthmus/base/error.h"

namespace isthmus::app {

ServedPages serve_pages(const outer_sync::Address& first, const std::string& key,
                        const outer_sync::PageServer::Pages& pages) {
  constexpr int max_tries = 64;
  ServedPages out{.address = first, .server = nullptr};
  std::string why;
  for (int tries = 0; tries < max_tries && out.server == nullptr; ++tries) {
    try {
      // Not prometheus-cpp's own server: its threads have stacks of 100 KB, too small for the thread-local
      // storage of libtorch with CUDA, so they cannot start in the same process.
      out.server = std::make_unique<outer_sync::PageServer>(out.address, key, pages);
    } catch (const Error& error) {
      why = error.what();
      if (out.address.port == 0 || out.address.port == 65535) break;
      ++out.address.port;
    }
  }
  if (out.server == nullptr)
    config_error(fmt::format(
        "{} is '{}', and neither that port nor one of the next can be opened; expected an address of this "
        "machine with a free port ({})",
        key, first.to_string(), why));
  out.address.port = out.server->port();
  return out;
}

}  // namespace isthmus::app
