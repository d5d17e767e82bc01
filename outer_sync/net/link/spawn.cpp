#include "net/link/spawn.h"

#include <asio/co_spawn.hpp>
#include <asio/post.hpp>
#include <exception>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync::transport {

namespace {

[[noreturn]] void rethrow(const std::exception_ptr& failed, const std::string& what) {
  try {
    std::rethrow_exception(failed);
  } catch (const Error& error) {
    throw Error(error.kind(), what + " failed: " + error.what());
  } catch (const std::exception& error) {
    throw Error(ErrorKind::network, what + " failed: " + error.what());
  }
}

}  // namespace

void spawn(const asio::any_io_executor& executor, std::string what, asio::awaitable<void> work) {
  // Posted, because the coroutine that calls the completion handler would catch an exception from it.
  asio::co_spawn(executor, std::move(work),
                 [executor, what = std::move(what)](const std::exception_ptr& failed) {
                   if (failed) asio::post(executor, [failed, what] { rethrow(failed, what); });
                 });
}

}  // namespace isthmus::outer_sync::transport
