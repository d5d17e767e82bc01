// Exceptions of coroutines: they end the connection that the coroutine serves, or its node, and are reported.

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <filesystem>
#include <new>

#include "mesh_node.h"
#include "net/link/connection.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync::transport {
namespace {

using asio::use_awaitable;
using testing::AllOf;
using testing::HasSubstr;

/// The error that a context's `run` throws if its only coroutine throws `thrown`.
template <class Thrown>
Error error_after(const Thrown& thrown) {
  asio::io_context io;
  const auto work = [&io, &thrown]() -> asio::awaitable<void> {
    asio::steady_timer timer(io, 1ms);
    co_await timer.async_wait(use_awaitable);
    throw thrown;
  };
  spawn(io.get_executor(), "watching nothing", work());
  try {
    io.run();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::config, "nothing was thrown"};
}

TEST(Spawn, AnExceptionLeavesTheContextWithTheNameOfWhatFailed) {
  const auto of_files = error_after(
      std::filesystem::filesystem_error("cannot look", std::make_error_code(std::errc::io_error)));
  EXPECT_THAT(of_files.what(), AllOf(HasSubstr("watching nothing failed: "), HasSubstr("cannot look")));
  EXPECT_EQ(of_files.kind(), ErrorKind::network);
  EXPECT_THAT(error_after(std::bad_alloc()).what(), HasSubstr("watching nothing failed: std::bad_alloc"));
  const auto own = error_after(Error(ErrorKind::data, "no such file"));
  EXPECT_STREQ(own.what(), "watching nothing failed: no such file");
  EXPECT_EQ(own.kind(), ErrorKind::data);
}

/// Two ends of a connection in one context.
struct Pair {
  Pair() {
    asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    asio::ip::tcp::socket to(io);
    to.connect(acceptor.local_endpoint());
    here = start_connection(std::move(to), counters, {}, trace, {.dialled = true});
    there = start_connection(acceptor.accept(), counters, {}, trace, {});
  }
  /// The error with which waiting for a frame ends at this end.
  std::string end_of_receive() {
    std::string how;
    const auto listen = [this, &how]() -> asio::awaitable<void> {
      try {
        (void)co_await here->receive(100);
        how = "a frame came";
      } catch (const std::exception& error) {
        how = error.what();
      }
      there->close();
    };
    spawn(io.get_executor(), "listening", listen());
    io.run_for(patience);
    return how;
  }
  asio::io_context io;
  WireCounters counters;
  Trace trace;
  ConnectionPtr here, there;
};

TEST(Spawn, AWriterThatCannotGoOnEndsItsConnectionAndSaysWhy) {
  Pair pair;
  pair.here->when_ready([] { throw std::bad_alloc(); });
  pair.here->send({FrameType::control, Bytes(10), nullptr});
  EXPECT_THAT(pair.end_of_receive(), HasSubstr("nothing more can be sent to it: std::bad_alloc"));
  EXPECT_FALSE(pair.here->open());
}

TEST(Spawn, OneWhoIsDroppedIsToldOfByTheReader) {
  Pair pair;
  pair.here->drop("too many");
  pair.here->drop("another reason");
  EXPECT_EQ(pair.end_of_receive(), "too many");
}

TEST(Spawn, WhatAHandlerThrowsEndsOneConnectionOfAMesh) {
  auto node = nodes(2);
  node[0]->set_peers({node[1]->info()});
  node[1]->set_peers({node[0]->info()});
  ASSERT_TRUE(node[0]->sees({node[1]->info()}));
  node[1]->fail_when_heard();
  node[0]->send_to(node[1]->info().id, 3);
  EXPECT_TRUE(node[1]->says("dropped a connection of a "));
  EXPECT_TRUE(node[1]->says("no memory for it"));
  EXPECT_TRUE(node[1]->hears(node[0]->info().id, 3))
      << "the lane must be dialled again and the chunk sent again";
}

/// While an object exists, this process cannot open any file or socket.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = ::dup(STDERR_FILENO);
    ::close(lowest_free);
    auto less = before_;
    less.rlim_cur = static_cast<rlim_t>(lowest_free);
    ::setrlimit(RLIMIT_NOFILE, &less);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(Spawn, AListenerWithoutDescriptorsWaitsForThemAndSaysSoOnce) {
  Node node("a");
  const auto at = parse_address(node.info().address, "address");
  asio::io_context io;
  asio::ip::tcp::socket caller(io, asio::ip::tcp::v4());
  {
    const NoDescriptors none;
    caller.connect({asio::ip::make_address(at.host), at.port});
    ASSERT_TRUE(node.says("cannot accept connections at present: Too many open files; retrying"));
    ASSERT_TRUE(node.ticks(30));
  }
  const std::string junk(100, 'x');
  asio::write(caller, asio::buffer(junk));
  EXPECT_TRUE(node.says("dropped a connection from 127.0.0.1"));
  EXPECT_EQ(node.times_said("cannot accept connections"), 1U);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
