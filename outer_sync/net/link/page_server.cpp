#include "isthmus/outer_sync/net/link/page_server.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <pthread.h>

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read_until.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cctype>
#include <chrono>
#include <list>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "net/link/listen.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync {

namespace {

constexpr std::size_t max_readers = 32, max_request = 4096;
constexpr auto time_for_one = std::chrono::seconds(5);
constexpr std::string_view end_of_line = "\r\n", end_of_request = "\r\n\r\n";

/// `headers`: lines with CRLF at their ends.
std::string response(std::string_view status, std::string_view type, std::string_view text,
                     std::string_view headers, bool with_text = true) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
                     status, type, text.size(), headers, with_text ? text : std::string_view());
}

std::string refusal(std::string_view status, std::string_view headers, std::string_view hint = {}) {
  return response(status, "text/plain; charset=utf-8",
                  fmt::format("{}{}{}\n", status, hint.empty() ? "" : ": ", hint), headers);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// The value of the first header with this name; nullopt if the request has no such header.
std::optional<std::string_view> http_header(std::string_view request, std::string_view name) {
  for (auto at = request.find(end_of_line); at != request.npos; at = request.find(end_of_line, at)) {
    at += end_of_line.size();
    const auto line = request.substr(at, request.find(end_of_line, at) - at);
    const auto colon = line.find(':');
    if (colon != line.npos && equal_ignoring_case(line.substr(0, colon), name))
      return trimmed(line.substr(colon + 1));
  }
  return std::nullopt;
}

/// Whether "HOST" or "HOST:PORT" is a name of this machine itself.
bool names_this_machine(std::string_view host) {
  const auto colon = host.rfind(':');
  const bool has_port = colon != host.npos && host.find(']', colon) == host.npos;
  if (has_port) host = host.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return Address{std::string(host), 0}.is_loopback();
}

/// Whether the query, "a=b&token=TOKEN", has this token. Takes equally long for every wrong one.
bool has_token(std::string_view query, std::string_view token) {
  constexpr std::string_view name = "token=";
  while (!query.empty()) {
    const auto part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (!part.starts_with(name)) continue;
    const auto given = part.substr(name.size());
    return given.size() == token.size() && CRYPTO_memcmp(given.data(), token.data(), token.size()) == 0;
  }
  return false;
}

}  // namespace

std::string answer_to(std::string_view request, const PageServer::Pages& pages) {
  const auto line = request.substr(0, request.find(end_of_line));
  const auto method = line.substr(0, line.find(' '));
  const auto version = line.substr(line.rfind(' ') + 1);
  if (line.size() < method.size() + version.size() + 2 || !version.starts_with("HTTP/1."))
    return refusal("400 Bad Request", pages.headers);
  if (method != "GET" && method != "HEAD")
    return refusal("405 Method Not Allowed", "Allow: GET, HEAD\r\n" + pages.headers);
  const auto target = line.substr(method.size() + 1, line.size() - method.size() - version.size() - 2);
  const auto path = target.substr(0, target.find('?'));
  const auto query = path.size() < target.size() ? target.substr(path.size() + 1) : std::string_view();
  if (!pages.token.empty() && !has_token(query, pages.token))
    return refusal("403 Forbidden", pages.headers, "open the URL with the token that this program printed");
  if (const auto host = http_header(request, "Host");
      pages.only_for_loopback && host && !names_this_machine(*host))
    return refusal("403 Forbidden", pages.headers, "open it at 127.0.0.1 or localhost");
  const auto page = std::ranges::find(pages.pages, path, &PageServer::Page::path);
  if (page == pages.pages.end()) return refusal("404 Not Found", pages.headers);
  return response("200 OK", page->type, page->text(), pages.headers, method == "GET");
}

class PageServer::Side {
 public:
  Side(const Address& address, const std::string& key, Pages pages)
      : key_(key), pages_(std::move(pages)), acceptor_(transport::listen_at(io_, address.to_string(), key)) {
    transport::spawn(io_.get_executor(), "serving " + key_,
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
    transport::spawn(io_.get_executor(), "answering a reader of " + key_, serve(reader));
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
    const auto answer =
        error ? refusal("431 Request Header Fields Too Large", pages_.headers) : answer_to(request, pages_);
    co_await asio::async_write(reader.socket, asio::buffer(answer),
                               asio::redirect_error(asio::use_awaitable, error));
    reader.socket.shutdown(asio::socket_base::shutdown_send, error);
  }

  std::string key_;
  Pages pages_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  Readers readers_;  ///< oldest first
  std::thread thread_;
};

PageServer::PageServer(const Address& address, const std::string& key, Pages pages)
    : side_(std::make_unique<Side>(address, key, std::move(pages))) {}
PageServer::~PageServer() = default;
std::uint16_t PageServer::port() const { return side_->port(); }

}  // namespace isthmus::outer_sync
