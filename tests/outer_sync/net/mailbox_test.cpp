// Streams through an object store: names that are not trusted, and bytes that arrive whole, in order, or not
// at all. tests/app/object_store_test.py runs whole processes over a real S3 server.

#include "net/mailbox/mailbox.h"

#include <gmock/gmock.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace isthmus::outer_sync::transport {
namespace {

using asio::use_awaitable;
using asio::ip::tcp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace std::chrono_literals;

const MailAddress from_eu{.from = "eu-1", .to = "us-1", .stream = 0xabc, .side = MailSide::dialler};

TEST(MailNames, AreReadBackAsTheyAreWritten) {
  EXPECT_EQ(mail_key("run", from_eu, 12), "run/mail/us-1/eu-1/0000000000000abc-d/000000000012");
  const auto piece = mail_piece("run", mail_key("run", from_eu, 12));
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->address, from_eu);
  EXPECT_EQ(piece->number, 12U);
  EXPECT_EQ(mail_prefix("run", "us-1"), "run/mail/us-1/");
}

TEST(MailNames, OthersAreNoPieces) {
  for (const auto* key :
       {"", "run", "run/mail/us-1", "run/mail/us-1/eu-1/0000000000000abc-d/",
        "run/mail/us-1/eu-1/0000000000000abc-d/x", "run/mail/us-1/eu-1/0000000000000abc-d/12",
        "run/mail/us-1/eu-1/0000000000000abc-x/000000000012",
        "run/mail/us-1/eu-1/0000000000000ABC-d/000000000012", "run/mail/us-1/eu-1/abc-d/000000000012",
        "run/mail//eu-1/0000000000000abc-d/000000000012",
        "other/mail/us-1/eu-1/0000000000000abc-d/000000000012",
        "run/mail/us-1/eu-1/0000000000000abc-d/000000000012/x",
        "run/mail/us-1/eu-1/0000000000000abc-d/-00000000012"})
    EXPECT_FALSE(mail_piece("run", key)) << key;
}

TEST(MailNames, AHostLeadsToAMailbox) {
  EXPECT_EQ(mailbox_host("eu.1"), "eu.1.mailbox");
  EXPECT_EQ(mailbox_name("eu.1.mailbox"), "eu.1");
  EXPECT_EQ(mailbox_name(".mailbox"), std::nullopt);
  EXPECT_EQ(mailbox_name("mailbox"), std::nullopt);
  EXPECT_EQ(mailbox_name("eu.example"), std::nullopt);
}

/// Two members and their store. The test's coroutine runs on the same io context.
class MailboxTest : public ::testing::Test {
 protected:
  struct Member {
    std::shared_ptr<Mailbox> box;
    std::vector<tcp::socket> taken;
    std::vector<std::string> said;
  };
  void begin(Member& member, const std::string& name) {
    open_object_store({.url = store_.string()})->put(of_an_earlier_process(name), {});
    member.box = std::make_shared<Mailbox>(io_, MailboxPlace{{.url = store_.string()}, "run"});
    member.box->begin(
        name, [&member](tcp::socket socket) { member.taken.push_back(std::move(socket)); },
        [&member](const std::string& line) { member.said.push_back(line); });
  }
  /// Runs the test's part until it ends, then ends the members.
  void run(const std::function<asio::awaitable<void>()>& test) {
    std::exception_ptr failure;
    bool ended = false;
    asio::co_spawn(io_, test(), [&](std::exception_ptr thrown) {
      failure = std::move(thrown);
      ended = true;
      io_.stop();
    });
    io_.run_for(60s);
    EXPECT_TRUE(ended) << "the test takes too long";
    for (auto* member : {&eu_, &us_}) {
      if (member->box) member->box->end();
    }
    if (failure) std::rethrow_exception(failure);
  }
  asio::awaitable<void> until(const std::function<bool()>& condition) {
    while (!condition()) {
      asio::steady_timer timer(io_, 10ms);
      co_await timer.async_wait(use_awaitable);
    }
  }
  static std::string of_an_earlier_process(const std::string& name) {
    return mail_key("run", {.from = "asia-1", .to = name, .stream = 1, .side = MailSide::dialler}, 0);
  }
  /// A stream from eu to us: its ends at eu and at us. The end at us appears with the first byte.
  asio::awaitable<std::pair<tcp::socket, tcp::socket>> connected() {
    // Until it has begun, us would remove what eu sends as an object of an earlier process.
    const auto store = open_object_store({.url = store_.string()});
    const std::function<bool()> begun = [&] { return !store->get(of_an_earlier_process("us-1"), 0, 1); };
    co_await until(begun);
    tcp::socket near(io_);
    const std::function<bool()> dialled = [&] { return !eu_.box->dial(near, "us-1"); };
    co_await until(dialled);
    const std::string hello = "h";
    co_await asio::async_write(near, asio::buffer(hello), use_awaitable);
    const auto before = us_.taken.size();
    const std::function<bool()> taken = [&] { return us_.taken.size() > before; };
    co_await until(taken);
    auto far = std::move(us_.taken.back());
    std::string got(1, ' ');
    co_await asio::async_read(far, asio::buffer(got), use_awaitable);
    co_return std::pair(std::move(near), std::move(far));
  }
  asio::awaitable<void> write(tcp::socket& socket, std::string text, bool& done) {
    co_await asio::async_write(socket, asio::buffer(text), use_awaitable);
    done = true;
  }
  std::size_t stored() { return open_object_store({.url = store_.string()})->list("run/mail/").size(); }

  TemporaryFolder folder_{memory()};
  std::filesystem::path store_ = folder_ / "store";
  asio::io_context io_;
  Member eu_, us_;
};

TEST_F(MailboxTest, BytesPassBothWaysInOrderAndNothingIsLeft) {
  begin(eu_, "eu-1");
  begin(us_, "us-1");
  std::string there(5'000'000, ' '), back(3'000'000, ' ');
  for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<char>(i * i >> 7);
  for (std::size_t i = 0; i < back.size(); ++i) back[i] = static_cast<char>(i * 31 >> 3);
  run([&]() -> asio::awaitable<void> {
    auto [near, far] = co_await connected();
    bool first = false, second = false;
    asio::co_spawn(io_, write(near, there, first), asio::detached);
    asio::co_spawn(io_, write(far, back, second), asio::detached);
    std::string got_there(there.size(), ' '), got_back(back.size(), ' ');
    co_await asio::async_read(far, asio::buffer(got_there), use_awaitable);
    co_await asio::async_read(near, asio::buffer(got_back), use_awaitable);
    EXPECT_TRUE(got_there == there);
    EXPECT_TRUE(got_back == back);
    near.shutdown(tcp::socket::shutdown_send);
    char byte = 0;
    asio::error_code ended;
    co_await asio::async_read(far, asio::buffer(&byte, 1), asio::redirect_error(use_awaitable, ended));
    EXPECT_EQ(ended, asio::error::eof);
    far.close();
    const std::function<bool()> empty = [&] { return stored() == 0; };
    co_await until(empty);
  });
}

TEST_F(MailboxTest, ObjectsOfEarlierProcessesAreRemovedAndOthersStay) {
  const auto store = open_object_store({.url = store_.string()});
  const auto put = [&](const std::string& key) { store->put(key, {}); };
  put(mail_key("run", from_eu, 0));
  put(mail_key("run", {.from = "us-1", .to = "eu-1", .stream = 1, .side = MailSide::acceptor}, 7));
  put("run/mail/us-1/rubbish");
  put("run/eu-1/checkpoints/x");
  const MailAddress of_others{.from = "us-1", .to = "asia-1", .stream = 1, .side = MailSide::dialler};
  put(mail_key("run", of_others, 0));
  begin(eu_, "eu-1");
  run([&]() -> asio::awaitable<void> {
    const std::function<bool()> removed = [&] { return store->list("run/").size() == 3; };
    co_await until(removed);
    EXPECT_THAT(store->list("run/mail/asia-1/"), SizeIs(1));
  });
}

TEST_F(MailboxTest, AStreamContinuesAfterAnOutage) {
  begin(eu_, "eu-1");
  begin(us_, "us-1");
  run([&]() -> asio::awaitable<void> {
    auto [near, far] = co_await connected();
    std::filesystem::rename(store_, folder_ / "away");
    std::ofstream(store_) << "a file where the folder was";
    const std::string text = "sent during the outage";
    co_await asio::async_write(near, asio::buffer(text), use_awaitable);
    const std::function<bool()> reported = [&] { return !eu_.said.empty() && !us_.said.empty(); };
    co_await until(reported);
    EXPECT_THAT(eu_.said, ElementsAre(HasSubstr("the mailbox is not reachable: ")));
    std::filesystem::remove(store_);
    std::filesystem::rename(folder_ / "away", store_);
    std::string got(text.size(), ' ');
    co_await asio::async_read(far, asio::buffer(got), use_awaitable);
    EXPECT_EQ(got, text);
    const std::function<bool()> back = [&] { return eu_.said.size() == 2 && us_.said.size() == 2; };
    co_await until(back);
    EXPECT_EQ(us_.said.back(), "the mailbox is reachable again");
  });
}

TEST_F(MailboxTest, AStrangersObjectsAreIgnored) {
  const auto store = open_object_store({.url = store_.string()});
  store->put(mail_key("run", from_eu, 5), {});
  begin(us_, "us-1");
  run([&]() -> asio::awaitable<void> {
    // Until then objects count as those of an earlier process.
    const std::function<bool()> begun = [&] { return stored() == 0; };
    co_await until(begun);
    auto late = from_eu;
    late.stream = 2;
    store->put(mail_key("run", late, 1'000'000), {});  // its beginning never comes
    const std::string large((1 << 20) + 1, 'x');
    store->put(mail_key("run", from_eu, 0), std::as_bytes(std::span(large)));
    store->put("run/mail/us-1/eu-1/what-is-this/0", {});
    auto small = from_eu;
    small.stream = 3;
    store->put(mail_key("run", small, 0), std::as_bytes(std::span(std::string_view("hello"))));
    const std::function<bool()> taken = [&] { return !us_.taken.empty(); };
    co_await until(taken);
    EXPECT_THAT(us_.taken, SizeIs(1)) << "the one of a proper size with a beginning";
    EXPECT_THAT(us_.said, IsEmpty());
  });
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
