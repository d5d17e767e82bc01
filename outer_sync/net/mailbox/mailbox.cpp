#include "net/mailbox/mailbox.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <future>
#include <random>
#include <utility>

#include "isthmus/base/error.h"
#include "net/mailbox/mail_names.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

/// Calls to the store at the same time. Each of eight lanes may store, read and remove an object, and looks
/// are calls too; with fewer threads a piece would wait for the calls of others.
constexpr std::size_t threads = 32;
constexpr std::size_t max_piece = std::size_t{1} << 20;
constexpr std::uint64_t max_pieces_waiting = 32, look_for_room_every = 16;
constexpr std::size_t max_streams = 256, max_ended = 16 * 1024;
constexpr std::uint64_t max_pieces_ahead = 1024, removal_lasts = 64;  // in pieces
constexpr auto first_retry = 500ms, longest_retry = 8000ms;
constexpr auto unread_lasts = 60s, farewell_lasts = 2s;
/// After that time in an outage, or after its own end without the other end's, a stream is given up.
/// Connections are dialled again all the while, and streams must not pile up.
constexpr auto outage_lasts = 120s, answer_lasts = 60s;
/// Between two looks for new objects: after a find, and at most.
constexpr std::chrono::milliseconds busy_pause{100}, idle_pause{1000};
constexpr int slower = 10;  ///< each look without news makes the pause a tenth longer
constexpr int local_buffer = 2 << 20;

void remove_below(ObjectStore& store, const std::string& prefix) {
  for (const auto& object : store.list(prefix)) store.remove(object.key);
}

std::uint64_t new_stream_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

struct Mailbox::Stream {
  Stream(tcp::socket socket, MailAddress sends, MailAddress receives)
      : local(std::move(socket)),
        out(std::move(sends)),
        in(std::move(receives)),
        news(local.get_executor()) {}
  tcp::socket local;
  MailAddress out, in;
  std::uint64_t next = 0;           ///< number of the piece to read next
  std::set<std::uint64_t> arrived;  ///< numbers of pieces in the store that are not read yet
  asio::steady_timer news;          ///< cancelled when a piece arrives, or the stream closes
  int sides = 2;                    ///< loops that still run
  bool closed = false;              ///< the socket has ended
  void close() {
    closed = true;
    asio::error_code ignored;
    local.close(ignored);
    news.cancel();
  }
};

asio::error_code connect_locally(tcp::socket& near, tcp::socket& far) {
  asio::error_code error;
  tcp::acceptor acceptor(near.get_executor());
  const tcp::endpoint loopback(asio::ip::address_v4::loopback(), 0);
  acceptor.open(loopback.protocol(), error);
  if (!error) acceptor.bind(loopback, error);
  if (!error) acceptor.listen(1, error);
  if (!error) near.connect(acceptor.local_endpoint(), error);
  const auto expected = error ? tcp::endpoint() : near.local_endpoint(error);
  while (!error) {
    far = acceptor.accept(error);
    if (!error && far.remote_endpoint(error) == expected) break;  // otherwise another process was faster
  }
  if (!error) far.set_option(tcp::no_delay(true), error);
  if (!error) far.set_option(asio::socket_base::receive_buffer_size(local_buffer), error);
  return error;
}

Mailbox::Mailbox(asio::io_context& io, MailboxPlace place)
    : io_(io),
      run_(std::move(place.run)),
      store_(open_object_store(place.store)),
      pause_(io),
      pool_(std::in_place, threads) {}

Mailbox::~Mailbox() { end(); }

void Mailbox::end() {
  if (!pool_) return;
  remove_inbox();
  store_->give_up();
  for (const auto& [in, stream] : streams_) stream->close();
  pool_->stop();
  pool_->join();
  pool_.reset();
}

void Mailbox::begin(std::string self, Take take, Say say) {
  self_ = std::move(self);
  take_ = std::move(take);
  say_ = std::move(say);
  asio::co_spawn(io_, look_loop(), asio::detached);
}

/// Removes objects that arrived too late. The others read and remove what this process has sent.
void Mailbox::remove_inbox() {
  if (!clean_) return;
  const auto done = std::make_shared<std::promise<void>>();
  asio::post(*pool_, [done, store = store_, inbox = mail_prefix(run_, self_)] {
    try {
      remove_below(*store, inbox);
    } catch (const Error&) {
      // The next process of this member removes it.
    }
    done->set_value();
  });
  done->get_future().wait_for(farewell_lasts);
}

// ---- calls to the store ----

template <class Work>
asio::awaitable<std::invoke_result_t<Work>> Mailbox::on_pool(Work work) {
  using Result = std::invoke_result_t<Work>;
  co_return co_await asio::co_spawn(
      *pool_, [](Work here) -> asio::awaitable<Result> { co_return here(); }(std::move(work)), use_awaitable);
}

/// Repeats what fails because the store cannot be reached, as long as the stream is open, and for a limited
/// time.
template <class Work>
asio::awaitable<std::invoke_result_t<Work>> Mailbox::until_it_works(StreamPtr stream, Work work) {
  auto pause = std::chrono::milliseconds(first_retry);
  const auto until = Clock::now() + outage_lasts;
  for (;;) {
    const auto begun = Clock::now();
    std::string why;
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
        co_await on_pool(work);
        works_again(begun);
        co_return;
      } else {
        auto result = co_await on_pool(work);
        works_again(begun);
        co_return std::move(result);
      }
    } catch (const Error& error) {
      if (stream->closed || Clock::now() > until) throw;
      why = error.what();
    }
    failed(begun, why);
    asio::steady_timer timer(io_, pause);
    pause = std::min<std::chrono::milliseconds>(2 * pause, longest_retry);
    co_await timer.async_wait(use_awaitable);
  }
}

/// A call that began before the last report says nothing about the time since: many calls run at once.
void Mailbox::failed(Clock::time_point begun, const std::string& why) {
  if (unreachable_ || begun < reported_) return;
  unreachable_ = true;
  reported_ = Clock::now();
  if (say_) say_("the mailbox is not reachable: " + why + "; trying again");
}

void Mailbox::works_again(Clock::time_point begun) {
  if (!unreachable_ || begun < reported_) return;
  unreachable_ = false;
  reported_ = Clock::now();
  if (say_) say_("the mailbox is reachable again");
}

/// Removes the objects of earlier processes of this member, in both directions.
asio::awaitable<void> Mailbox::remove_old() {
  const auto work = [store = store_, run = run_, self = self_] {
    for (const auto& object : store->list(mail_prefix(run))) {
      const auto piece = mail_piece(run, object.key);
      if (piece && (piece->address.from == self || piece->address.to == self)) store->remove(object.key);
    }
  };
  co_await on_pool(work);
}

/// If a removal fails, a later look finds the object again.
void Mailbox::remove_soon(std::vector<std::string> keys) {
  const auto work = [](std::shared_ptr<Mailbox> mailbox,
                       std::vector<std::string> rubbish) -> asio::awaitable<void> {
    const auto remove = [store = mailbox->store_, rubbish] {
      for (const auto& key : rubbish) store->remove(key);
    };
    try {
      co_await mailbox->on_pool(remove);
    } catch (const Error&) {
    }
  };
  asio::co_spawn(io_, work(shared_from_this(), std::move(keys)), asio::detached);
}

/// Removes what the other end of a stream has not read some time after its end.
asio::awaitable<void> Mailbox::remove_unread(StreamPtr stream) {
  const auto self = shared_from_this();
  asio::steady_timer timer(io_, unread_lasts);
  co_await timer.async_wait(use_awaitable);
  const auto work = [store = store_, prefix = mail_prefix(run_, stream->out)] {
    remove_below(*store, prefix);
  };
  try {
    co_await on_pool(work);
  } catch (const Error&) {
    // The next process of this member removes it.
  }
}

// ---- streams ----

asio::error_code Mailbox::dial(tcp::socket& socket, const std::string& to) {
  if (!clean_) return asio::error::try_again;
  if (streams_.size() >= max_streams) return asio::error::no_buffer_space;
  tcp::socket far(io_);
  if (const auto error = connect_locally(socket, far)) return error;
  start(std::move(far), {.from = self_, .to = to, .stream = new_stream_number(), .side = MailSide::dialler});
  return {};
}

void Mailbox::accept(const MailAddress& in) {
  tcp::socket near(io_), far(io_);
  if (connect_locally(near, far)) return;
  start(std::move(far), {.from = self_, .to = in.from, .stream = in.stream, .side = MailSide::acceptor});
  take_(std::move(near));
}

Mailbox::StreamPtr Mailbox::start(tcp::socket local, MailAddress out) {
  MailAddress in{.from = out.to,
                 .to = out.from,
                 .stream = out.stream,
                 .side = out.side == MailSide::dialler ? MailSide::acceptor : MailSide::dialler};
  auto stream = std::make_shared<Stream>(std::move(local), std::move(out), in);
  streams_.emplace(std::move(in), stream);
  asio::co_spawn(io_, send_loop(stream), asio::detached);
  asio::co_spawn(io_, receive_loop(stream), asio::detached);
  pause_.cancel();  // answers are expected
  return stream;
}

/// Stores what the socket gives, one piece at a time: what is written meanwhile makes the next piece larger.
asio::awaitable<void> Mailbox::send_loop(StreamPtr stream) {
  const auto self = shared_from_this();
  try {
    for (std::uint64_t number = 0;; ++number) {
      co_await stream->local.async_wait(tcp::socket::wait_read, use_awaitable);
      const auto piece = std::make_shared<Bytes>(std::min(stream->local.available(), max_piece));
      if (!piece->empty()) piece->resize(stream->local.read_some(asio::buffer(*piece)));
      const auto put = [store = store_, piece, key = mail_key(run_, stream->out, number)] {
        store->put(key, *piece);
      };
      co_await until_it_works(stream, put);
      if (piece->empty()) break;  // the empty piece ends the stream at the other end
      // After a piece rather than before one, so that a piece that ends a pause is not delayed.
      if (number % look_for_room_every == look_for_room_every - 1) co_await await_room(stream);
    }
    asio::co_spawn(io_, close_later(stream), asio::detached);
  } catch (const std::exception&) {
    stream->close();
  }
  side_ended(stream);
}

/// Ends the stream even if the other end never does: that process may be gone.
asio::awaitable<void> Mailbox::close_later(StreamPtr stream) {
  asio::steady_timer timer(io_, answer_lasts);
  co_await timer.async_wait(use_awaitable);
  stream->close();
}

/// Waits until the other end has read enough of what is stored.
asio::awaitable<void> Mailbox::await_room(StreamPtr stream) {
  const auto count = [store = store_, prefix = mail_prefix(run_, stream->out)] {
    return store->list(prefix).size();
  };
  while (!stream->closed) {
    const auto waiting = co_await until_it_works(stream, count);
    if (waiting < max_pieces_waiting) co_return;
    asio::steady_timer timer(io_, busy_pause);
    co_await timer.async_wait(use_awaitable);
  }
}

asio::awaitable<void> Mailbox::receive_loop(StreamPtr stream) {
  const auto self = shared_from_this();
  try {
    while (co_await receive_piece(stream)) ++stream->next;
  } catch (const std::exception&) {
    stream->close();
  }
  side_ended(stream);
}

/// Returns whether more may follow.
asio::awaitable<bool> Mailbox::receive_piece(StreamPtr stream) {
  while (!stream->closed && !stream->arrived.contains(stream->next)) {
    asio::error_code woken;
    stream->news.expires_at(std::chrono::steady_clock::time_point::max());
    co_await stream->news.async_wait(asio::redirect_error(use_awaitable, woken));
  }
  if (stream->closed) co_return false;
  const auto key = mail_key(run_, stream->in, stream->next);
  const auto get = [store = store_, key] { return store->get(key, 0, max_piece); };
  const auto bytes = co_await until_it_works(stream, get);
  stream->arrived.erase(stream->next);
  if (!bytes) throw Error(ErrorKind::network, key + " is gone");
  remove_soon({key});
  if (bytes->empty()) {
    asio::error_code ignored;
    stream->local.shutdown(tcp::socket::shutdown_send, ignored);
    co_return false;
  }
  co_await asio::async_write(stream->local, asio::buffer(*bytes), use_awaitable);
  co_return true;
}

/// Once both loops have ended, pieces that arrive later are removed.
void Mailbox::side_ended(const StreamPtr& stream) {
  if (--stream->sides > 0) return;
  stream->close();
  streams_.erase(stream->in);
  if (ended_.size() >= max_ended) ended_.erase(ended_.begin());
  ended_.insert(stream->in);
  asio::co_spawn(io_, remove_unread(stream), asio::detached);
}

// ---- looking for objects ----

asio::awaitable<void> Mailbox::look_loop() {
  const auto self = shared_from_this();
  const auto look = [store = store_, inbox = mail_prefix(run_, self_)] { return store->list(inbox); };
  auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(busy_pause);
  for (;;) {
    bool news = false;
    auto begun = Clock::now();
    try {
      if (!clean_) co_await remove_old();
      clean_ = true;
      begun = Clock::now();
      const auto objects = co_await on_pool(look);
      news = sort(objects);
      works_again(begun);
    } catch (const Error& error) {
      failed(begun, error.what());
    }
    pause = news ? busy_pause : std::min<std::chrono::milliseconds>(pause + pause / slower, idle_pause);
    pause_.expires_after(pause);
    asio::error_code woken;
    co_await pause_.async_wait(asio::redirect_error(use_awaitable, woken));
    if (woken) pause = busy_pause;
  }
}

/// Gives each piece to its stream. Returns whether there is a new one.
bool Mailbox::sort(const std::vector<ObjectEntry>& objects) {
  bool news = false;
  std::vector<std::string> rubbish;
  for (const auto& object : objects) {
    const auto piece = mail_piece(run_, object.key);
    if (!piece || piece->address.to != self_ || object.size > max_piece) continue;
    const auto& [address, number] = *piece;
    auto known = streams_.find(address);
    const bool dialled = address.side == MailSide::dialler && !ended_.contains(address);
    if (known == streams_.end() && dialled && take_ && number == 0 && streams_.size() < max_streams) {
      accept(address);
      known = streams_.find(address);
    }
    if (known == streams_.end()) {
      if (!dialled) rubbish.push_back(object.key);
      continue;
    }
    auto& stream = *known->second;
    if (number < stream.next) {
      // It is being removed, unless that has failed.
      if (number + removal_lasts < stream.next) rubbish.push_back(object.key);
      continue;
    }
    if (number > stream.next + max_pieces_ahead || !stream.arrived.insert(number).second) continue;
    news = true;
    stream.news.cancel();
  }
  if (!rubbish.empty()) remove_soon(std::move(rubbish));
  return news;
}

}  // namespace isthmus::outer_sync::transport
