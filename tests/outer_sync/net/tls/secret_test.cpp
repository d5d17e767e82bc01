// How both ends of a connection prove that they know the run's secret.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/use_awaitable.hpp>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/link/run_secret.h"
#include "net/link/run_secret.h"
#include "temporary_folder.h"

namespace isthmus::outer_sync::transport {
namespace {

using asio::ip::tcp;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Shown {
  std::string dialler, acceptor;  ///< error messages; empty: accepted
};

asio::awaitable<void> show(tcp::socket socket, RunSecret& secret, const std::string* dialled,
                           std::string& problem) {
  try {
    co_await show_secret(socket, secret, dialled);
  } catch (const Error& error) {
    problem = error.what();
  }
}

/// One end dials and expects the name `meant`; the other end has the name `name`.
Shown meet(const std::filesystem::path& file, const std::string& meant, const std::string& name) {
  Shown shown;
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  RunSecret here(file), there(file);
  there.answer_as(name);
  tcp::socket dialler(io);
  dialler.connect(acceptor.local_endpoint());
  asio::co_spawn(io, show(acceptor.accept(), there, nullptr, shown.acceptor), asio::detached);
  asio::co_spawn(io, show(std::move(dialler), here, &meant, shown.dialler), asio::detached);
  io.run();
  return shown;
}

TEST(SecretProof, IsOfTheProcessThatWasMeant) {
  const TemporaryFolder folder;
  const auto file = folder / "run.secret";
  make_run_secret(file);
  const auto good = meet(file, "coordinator", "coordinator");
  EXPECT_THAT(good.dialler, IsEmpty());
  EXPECT_THAT(good.acceptor, IsEmpty());
}

/// Another account that has taken over the port of an ended process relays the messages of both ends.
TEST(SecretProof, CannotBePassedOnToAnotherProcess) {
  const TemporaryFolder folder;
  const auto file = folder / "run.secret";
  make_run_secret(file);
  const auto relayed = meet(file, "worker-1", "coordinator");
  EXPECT_THAT(relayed.dialler, HasSubstr("or it is not worker-1"));
  EXPECT_THAT(relayed.acceptor, HasSubstr("it has not shown the run's secret"));
  EXPECT_THAT(meet(file, "coordinator", "worker-1").dialler, HasSubstr("or it is not coordinator"));
  EXPECT_THAT(meet(file, "worker-1", "").dialler, HasSubstr("or it is not worker-1"))
      << "a process without a name yet";
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
