// HOST:PORT as users write it.

#include "isthmus/outer_sync/core/address.h"

#include <gmock/gmock.h>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync {
namespace {

TEST(Address, ReadsNamesAndNumbers) {
  for (const auto* text :
       {"127.0.0.1:7000", "coordinator.example:65535", "[::1]:7000", "[fe80::1%eth0]:1", "h:0"}) {
    EXPECT_EQ(parse_address(text, "flag").to_string(), text);
  }
  EXPECT_EQ(parse_address("[::1]:7000", "flag").host, "::1");
  EXPECT_EQ(parse_address("[::1]:7000", "flag").port, 7000);
}

TEST(Address, RefusesEverythingElseAndNamesTheKey) {
  for (const auto* text : {"", ":", "host", "host:", ":7000", "host:65536", "host:-1", "host:7000x",
                           "host: 7000", "::1:7000", "[::1]", "[]:7000", "[::1:7000", "a:b:7000"}) {
    try {
      static_cast<void>(parse_address(text, "network.listen"));
      FAIL() << "'" << text << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr("network.listen is '" + std::string(text) + "'"),
                                 testing::HasSubstr("HOST:PORT")));
    }
  }
}

TEST(Addresses, AreSeparatedByCommas) {
  const auto read = [](const char* text) {
    std::string out;
    for (const auto& address : parse_addresses(text, "flag")) out += address.to_string() + ";";
    return out;
  };
  EXPECT_EQ(read("a:1"), "a:1;");
  EXPECT_EQ(read("a:1,[::1]:2,c:3"), "a:1;[::1]:2;c:3;");
  EXPECT_EQ(read("  a:1 ,b:2,  c:3 "), "a:1;b:2;c:3;");
}

TEST(Addresses, EachOfThemMustBeOne) {
  for (const auto* text : {"", ",", "a:1,", ",a:1", "a:1,,b:2", "a:1 b:2", "a:1,b", "a:1;b:2", " "}) {
    try {
      static_cast<void>(parse_addresses(text, "network.coordinator"));
      FAIL() << "'" << text << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("network.coordinator is '"),
                                               testing::HasSubstr("HOST:PORT")));
    }
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
