// Training on live streams of documents from a pipe and from sockets, killed and resumed.

#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <random>

#include "site.h"
#include "stream_server.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Words streaming(const std::string& path, int replicas) {
  return {"data.path=\"" + path + "\"", "replicas=" + std::to_string(replicas), "run.checkpoint_every=5"};
}

std::function<std::string(const std::string&)> endless_text() {
  return [](const std::string& reader) { return stream_of_lines(reader == "replica-0" ? 1 : 2, 20'000); };
}

/// `cat STREAM | isthmus launch WORDS`
Command piped(const Site& site, const std::string& words) {
  return {{"/bin/sh", "-c",
           "cat " + (site / "stream").string() + " | exec " + isthmus_program + " launch " + words},
          site / "piped.log"};
}

std::string quoted(const Words& words) {
  std::string text;
  for (const auto& word : words) text += " '" + word + "'";
  return text;
}

TEST(Stream, OfEachReplicaIsGoneOnWithAsIfNobodyHadBeenKilled) {
  Site whole, killed;
  StreamServer steady(whole / "feed", endless_text());
  ASSERT_EQ(whole.launch(streaming(steady.address(), 2)).status, 0) << whole.logs();

  StreamServer jittery(killed / "feed", endless_text(), {.seed = 5, .break_after = 20'000});
  auto settings = streaming(jittery.address(), 2);
  {
    auto first = killed.start_launch(settings);
    ASSERT_TRUE(eventually([&] {
      return killed.metric_lines() > 13 && killed.metric_lines("replica-1") > 13;
    })) << first.output()
        << killed.logs();
    first.signal(SIGKILL);  // its replicas end too
    first.wait();
    ASSERT_TRUE(eventually([&] { return killed.processes().empty(); }));
  }
  const auto end = killed.resume();
  ASSERT_EQ(end.status, 0) << end.report() << killed.logs();
  EXPECT_THAT(end.output, HasSubstr("resuming from the checkpoint of step "));
  EXPECT_EQ(killed.hash(), whole.hash());
  for (const auto* replica : {"replica-0", "replica-1"}) {
    EXPECT_THAT(read_all(killed.run() / replica / "worker.log"),
                HasSubstr(jittery.address() + ": connected, from byte "));
  }
}

TEST(Stream, OfStandardInputGivesWhatASocketDoes) {
  Site socket, pipe;
  StreamServer server(socket / "feed", endless_text());
  ASSERT_EQ(socket.launch(streaming(server.address(), 1)).status, 0) << socket.logs();

  const auto stream = endless_text()("replica-0");
  const auto words = quoted(with_settings({pipe.config().string()}, streaming("-", 1)));
  // A pipe that delivers as much as the first steps need, and then nothing.
  ASSERT_EQ(::mkfifo((pipe / "fifo").c_str(), 0600), 0);
  {
    Command first({"/bin/sh", "-c",
                   std::string("exec ") + isthmus_program + " launch" + words +
                       " --set run.stop_after=17 < " + (pipe / "fifo").string()},
                  pipe / "first.log");
    std::ofstream fifo(pipe / "fifo", std::ios::binary);
    fifo << stream.substr(0, 5000);
    fifo.flush();
    const auto stopped = first.wait();
    ASSERT_EQ(stopped.status, 0) << stopped.report() << pipe.logs();
  }
  // When resuming, standard input must be the same again.
  pipe.write("stream", endless_text()("replica-1"));
  const auto other = piped(pipe, "--resume " + pipe.run().string() + " --set run.stop_after=0").wait();
  EXPECT_EQ(other.status, 3) << other.report();
  EXPECT_THAT(pipe.logs(), HasSubstr("bytes differ from what the interrupted run had read"));
  pipe.write("stream", stream);
  const auto end = piped(pipe, "--resume " + pipe.run().string() + " --set run.stop_after=0").wait();
  ASSERT_EQ(end.status, 0) << end.report() << pipe.logs();
  EXPECT_EQ(pipe.hash(), socket.hash());
}

TEST(Stream, ThatEndsIsGoneOverAgainAndStaysAsAStore) {
  Site site;
  site.write("stream", stream_of_lines(1, 30));
  const auto words = quoted(with_settings({site.config().string()}, streaming("-", 1)));
  const auto end = piped(site, words).wait();
  ASSERT_EQ(end.status, 0) << end.report() << site.logs();
  EXPECT_THAT(site.logs(), HasSubstr("the stream has ended after 30 documents"));
  const auto shown = site.isthmus({"data", "show", (site.run() / "stores/replica-0").string(), "--verify"});
  EXPECT_EQ(shown.status, 0) << shown.report();
  EXPECT_THAT(shown.output, AllOf(HasSubstr("in 30 documents"), HasSubstr("verified: the checksums of all")));
}

TEST(Stream, ThatSendsGarbageEndsTheRunAndNamesIt) {
  Site site;
  StreamServer server(site / "feed", [](const std::string&) {
    return stream_of_lines(1, 20) + "SSH-2.0-OpenSSH_9.2p1\r\n" + stream_of_lines(2, 5000);
  });
  const auto end = site.launch(streaming(server.address(), 1));
  EXPECT_EQ(end.status, 3) << end.report() << site.logs();
  EXPECT_THAT(end.output, HasSubstr(server.address() + ", line 21, offset "));
}

TEST(Stream, OneStandardInputIsNotForTwo) {
  Site site;
  const auto two = site.launch(streaming("-", 2));
  EXPECT_EQ(two.status, 2) << two.report();
  EXPECT_THAT(two.output,
              HasSubstr("data.path is - for replica-0 and replica-1; expected a separate stream"));
}

TEST(Stream, WithoutItsStoreNoCheckpointIsGoneOnWith) {
  Site site;
  StreamServer server(site / "feed", endless_text());
  auto settings = streaming(server.address(), 1);
  settings.emplace_back("run.stop_after=20");
  ASSERT_EQ(site.launch(settings).status, 0) << site.logs();
  std::filesystem::remove_all(site.run() / "stores");
  const auto end = site.resume({"run.stop_after=0"});
  EXPECT_EQ(end.status, 3) << end.report();
  EXPECT_THAT(end.output, HasSubstr("was written after 80 sequences of data.path"));
}

}  // namespace
}  // namespace isthmus
