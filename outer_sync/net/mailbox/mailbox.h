#pragma once
// Byte streams between members that cannot connect to each other, through an object store: what one end
// writes, it stores as numbered objects, which the other end lists, reads and removes. Each stream ends in a
// local TCP socket, so connections use it like a socket of the network, with TLS inside: the store's owner
// can neither read nor change what passes, only stop it. All functions run on the io thread; calls to the
// store, which block, run on threads of the mailbox.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "isthmus/base/object_store.h"
#include "isthmus/outer_sync/net/mailbox/mailbox_place.h"
#include "net/mailbox/mail_names.h"

namespace isthmus::outer_sync::transport {

class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  /// Takes lines for the log.
  using Say = std::function<void(const std::string&)>;
  using Take = std::function<void(asio::ip::tcp::socket)>;

  /// Throws as open_object_store does.
  Mailbox(asio::io_context& io, MailboxPlace place);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Begins to look for objects addressed to `self`, after the objects of its earlier processes are removed.
  /// `take` gets each stream that another member has dialled; it may be empty.
  void begin(std::string self, Take take, Say say);
  /// Ends all streams and calls to the store. Call it once the io context has stopped, and before it is
  /// destroyed.
  void end();
  /// Connects the socket to a new stream to the member. The stream exists once the member has answered in it.
  [[nodiscard]] asio::error_code dial(asio::ip::tcp::socket& socket, const std::string& to);

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream;
  using StreamPtr = std::shared_ptr<Stream>;
  template <class Work>
  [[nodiscard]] asio::awaitable<std::invoke_result_t<Work>> on_pool(Work work);
  template <class Work>
  [[nodiscard]] asio::awaitable<std::invoke_result_t<Work>> until_it_works(StreamPtr stream, Work work);

  StreamPtr start(asio::ip::tcp::socket local, MailAddress out);
  [[nodiscard]] asio::awaitable<void> look_loop();
  [[nodiscard]] asio::awaitable<void> send_loop(StreamPtr stream);
  [[nodiscard]] asio::awaitable<void> receive_loop(StreamPtr stream);
  [[nodiscard]] asio::awaitable<void> close_later(StreamPtr stream);
  [[nodiscard]] asio::awaitable<bool> receive_piece(StreamPtr stream);
  [[nodiscard]] asio::awaitable<void> await_room(StreamPtr stream);
  [[nodiscard]] asio::awaitable<void> remove_old();
  [[nodiscard]] asio::awaitable<void> remove_unread(StreamPtr stream);
  void remove_soon(std::vector<std::string> keys);
  [[nodiscard]] bool sort(const std::vector<ObjectEntry>& objects);
  void accept(const MailAddress& in);
  void side_ended(const StreamPtr& stream);
  void remove_inbox();
  void failed(Clock::time_point begun, const std::string& why);
  void works_again(Clock::time_point begun);

  asio::io_context& io_;
  std::string run_;
  std::shared_ptr<ObjectStore> store_;
  std::string self_;
  Take take_;
  Say say_;
  std::map<MailAddress, StreamPtr> streams_;  ///< by the side that arrives here
  std::set<MailAddress> ended_;               ///< sides that arrive here, of streams that have ended
  asio::steady_timer pause_;
  bool clean_ = false;          ///< the objects of earlier processes are removed
  bool unreachable_ = false;    ///< as last reported
  Clock::time_point reported_;  ///< when that changed
  std::optional<asio::thread_pool> pool_;
};

/// Connects `near` to a new socket of this process, over loopback.
[[nodiscard]] asio::error_code connect_locally(asio::ip::tcp::socket& near, asio::ip::tcp::socket& far);

}  // namespace isthmus::outer_sync::transport
