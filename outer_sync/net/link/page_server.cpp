#include "isthmus/outer_sync/net/link/page_server.h"

#include <fmt/format.h>
#include <pthread.h>

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read_until.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <list>
#include <string_view>
#include <thread>
#include <utility>

#include "isthmus/base/say.h"
#include "net/link/listen.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync {

namespace {

constexpr std::size_t max_readers = 32, max_request = 4096;
constexpr auto time_for_one = std::chrono::seconds(5);
constexpr std::string_view end_of_request = "\r\n\r\n";

std::string answer_of(std::string_view head, std::string_view type, std::string_view text, bool with_text) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                     head, type, text.size(), with_text ? text : std::string_view());
}

std::string refusal(std::string_view status, std::string_view header = {}) {
  return answer_of(fmt::format("{}{}", status, header), "text/plain", fmt::format("{}\n", status), true);
}

/// Returns the HTTP response to a request.
std::string answer_to(std::string_view request, const PageServer::Page& page) {
  const auto line = request.substr(0, request.find("\r\n"));
  const auto method = line.substr(0, line.find(' '));
  const auto version = line.substr(line.rfind(' ') + 1);
  if (line.size() < method.size() + version.size() + 2 || !version.starts_with("HTTP/1."))
    return refusal("400 Bad Request");
  if (method != "GET" && method != "HEAD") return refusal("405 Method Not Allowed", "\r\nAllow: GET, HEAD");
  const auto target = line.substr(method.size() + 1, line.size() - method.size() - version.size() - 2);
  if (target.substr(0, target.find('?')) != page.path) return refusal("404 Not Found");
  return answer_of("200 OK", page.type, page.text(), method == "GET");
}

}  // namespace

class PageServer::Side {
 public:
  Side(const Address& address, const std::string& key, Page page)
      : key_(key), page_(std::move(page)), acceptor_(transport::listen_at(io_, address.to_string(), key)) {
    transport::spawn(io_.get_executor(), "serving " + page_.path,
                     transport::accept_all(
                         acceptor_, [this](asio::ip::tcp::socket socket) { take(std::move(socket)); },
                         [this](const std::string& text) { say_error(key_ + ": " + text); }));
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "page");  // shown by top -H
  }
  ~Side() {
    io_.stop();
    thread_.join();
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  [[nodiscard]] std::uint16_t port() const { return transport::bound_address(acceptor_).port; }

 private:
  struct Reader {
    explicit Reader(asio::ip::tcp::socket accepted)
        : socket(std::move(accepted)), limit(socket.get_executor(), time_for_one) {}
    void close() {
      asio::error_code ignored;
      socket.close(ignored);
    }
    asio::ip::tcp::socket socket;
    asio::steady_timer limit;
  };
  using Readers = std::list<std::shared_ptr<Reader>>;

  void run() {
    try {
      io_.run();
    } catch (const std::exception& error) {
      say_error(fmt::format("{}: the page is no longer served: {}", key_, error.what()));
    }
  }

  void take(asio::ip::tcp::socket socket) {
    // A genuine client sends its request at once, so the oldest connection is probably not one.
    if (readers_.size() == max_readers) {
      readers_.front()->close();
      readers_.pop_front();
    }
    const auto reader = readers_.emplace_back(std::make_shared<Reader>(std::move(socket)));
    reader->limit.async_wait([reader](const asio::error_code& cancelled) {
      if (!cancelled) reader->close();
    });
    transport::spawn(io_.get_executor(), "answering a reader of " + page_.path, serve(reader));
  }

  asio::awaitable<void> serve(std::shared_ptr<Reader> reader) {
    try {
      co_await answer(*reader);
    } catch (const std::exception& error) {
      say_error(fmt::format("{}: cannot answer a request: {}", key_, error.what()));
    }
    reader->limit.cancel();
    reader->close();
    readers_.remove(reader);
  }

  asio::awaitable<void> answer(Reader& reader) {
    asio::error_code error;
    std::string request;
    co_await asio::async_read_until(reader.socket, asio::dynamic_buffer(request, max_request), end_of_request,
                                    asio::redirect_error(asio::use_awaitable, error));
    if (error && error != asio::error::not_found) co_return;  // closed by the client, or too slow
    const auto answer = error ? refusal("431 Request Header Fields Too Large") : answer_to(request, page_);
    co_await asio::async_write(reader.socket, asio::buffer(answer),
                               asio::redirect_error(asio::use_awaitable, error));
    reader.socket.shutdown(asio::socket_base::shutdown_send, error);
  }

  std::string key_;
  Page page_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  Readers readers_;  ///< oldest first
  std::thread thread_;
};

PageServer::PageServer(const Address& address, const std::string& key, Page page)
    : side_(std::make_unique<Side>(address, key, std::move(page))) {}
PageServer::~PageServer() = default;
std::uint16_t PageServer::port() const { return side_->port(); }

}  // namespace isthmus::outer_sync
