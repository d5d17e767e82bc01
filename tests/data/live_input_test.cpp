// The greeting of a live input's reader.

#include "text/live_input.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "data_support.h"

namespace isthmus::data {
namespace {

/// Connects a reader with this name to a socket, and returns its first line.
std::string greeting_of(const std::string& reader) {
  const TemporaryFolder folder;
  const auto path = (folder / "socket").string();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listening, 1), 0);
  LiveInput input({"unix://" + path, reader, [](const std::string&) {}});
  EXPECT_TRUE(input.open(70, 3));
  const int connection = ::accept(listening, nullptr, nullptr);
  std::string line;
  for (char c = 0; ::recv(connection, &c, 1, 0) == 1 && c != '\n';) line += c;
  ::close(connection);
  ::close(listening);
  return line;
}

TEST(LiveInput, GreetsWithItsNameAndPlace) {
  EXPECT_EQ(greeting_of("us-1"), R"({"reader": "us-1", "bytes": 70, "lines": 3})");
}

TEST(LiveInput, GreetsWithJsonWhateverItsNameIs) {
  const std::string name = "a \"b\" \\ c\n";
  const auto greeting = nlohmann::json::parse(greeting_of(name), nullptr, false);
  ASSERT_TRUE(greeting.is_object());
  EXPECT_EQ(greeting["reader"], name);
  EXPECT_EQ(greeting["bytes"], 70);
  EXPECT_TRUE(nlohmann::json::accept(greeting_of("\xff")));
}

}  // namespace
}  // namespace isthmus::data
