// A live stream of documents over real sockets and pipes, with senders that are slow, disconnect, or send
// something else.

#include "corpus/token_stream.h"

#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>

#include "data_support.h"
#include "isthmus/data/sampler.h"
#include "isthmus/data/tokenize.h"
#include "stream_server.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t window = 16, batch = 3;
constexpr std::uint64_t heldout = 5 * window + 1;

/// Messages of a stream, from any of its threads.
class Said {
 public:
  void operator()(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ += text + "\n";
  }
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// The stream and loader of one worker.
class Reader {
 public:
  Reader(const std::string& path, const fs::path& store, std::uint64_t first = 0, std::int64_t threads = 2,
         const std::string& on_bad = "fail")
      : corpus(config(path, threads, on_bad), options(store)),
        track(0, first),
        loader(corpus, loading(threads), track, *device, trace) {}

  static DataConfig config(const std::string& path, std::int64_t threads, const std::string& on_bad) {
    DataConfig config;
    config.path = path;
    config.seq_len = window;
    config.threads = threads;
    config.on_bad = on_bad;
    return config;
  }
  StreamOptions options(const fs::path& store) {
    return {store, "reader-0", heldout, 2 * batch * window + 1,
            [this](const std::string& text) { said(text); }};
  }
  static LoaderOptions loading(std::int64_t threads) {
    LoaderOptions options;
    options.seq_len = window;
    options.batch = batch;
    options.seed = 3;
    options.threads = threads;
    return options;
  }
  /// The ids of the next batches, concatenated.
  std::vector<std::int64_t> next(std::size_t batches) {
    std::vector<std::int64_t> ids;
    for (std::size_t i = 0; i < batches; ++i) {
      const auto inputs = inputs_of(loader.next());
      ids.insert(ids.end(), inputs.begin(), inputs.end());
    }
    return ids;
  }

  Said said;
  std::unique_ptr<Device> device = make_cpu_device();
  Trace trace;
  Corpus corpus;
  OneTrack track;
  Loader loader;
};

std::function<std::string(const std::string&)> gives(std::string stream) {
  return [stream = std::move(stream)](const std::string&) { return stream; };
}

/// The ids that `isthmus data tokenize` stores for the same stream.
struct Expected {
  explicit Expected(const TemporaryFolder& folder, const std::string& lines) {
    TokenizeOptions options;
    options.sources = {folder.write("expected.jsonl", lines).string()};
    options.out = folder / "expected";
    tokenize(options, [](const TokenizeProgress&) {});
    const auto store = open_store(options.out);
    std::vector<std::uint16_t> narrow(store->tokens());
    store->read(0, narrow.size(), reinterpret_cast<std::byte*>(narrow.data()));
    ids.assign(narrow.begin(), narrow.end());
    begin = heldout;
    while (begin < 2 * heldout && ids[begin - 1] != 0) ++begin;
  }
  [[nodiscard]] std::vector<std::int64_t> inputs(std::size_t from_batch, std::size_t batches) const {
    const auto first = static_cast<std::ptrdiff_t>(begin + from_batch * batch * window);
    return {ids.begin() + first, ids.begin() + first + static_cast<std::ptrdiff_t>(batches * batch * window)};
  }
  [[nodiscard]] std::uint64_t windows() const { return window_count(ids.size() - begin, window); }
  std::vector<std::int64_t> ids;
  std::uint64_t begin = 0;  ///< begin of the training part
};

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(TokenStream, GivesTheSameBatchesAndStoreWhateverBecomesOfItsConnections) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(1, 2500);
  const Expected expected(folder, lines);
  const auto batches = expected.windows() / batch;
  for (const std::size_t break_after : {0, 100'000}) {
    for (const std::int64_t threads : {1, 3}) {
      const TemporaryFolder own;
      StreamServer server(own / "socket", gives(lines + end_of_stream),
                          {.seed = static_cast<std::uint32_t>(threads), .break_after = break_after});
      Reader reader(server.address(), own / "store", 0, threads);
      EXPECT_EQ(reader.corpus.tokens(Split::heldout), expected.begin);
      ASSERT_EQ(reader.next(batches), expected.inputs(0, batches)) << break_after << ", " << threads;
      reader.next(1);  // asks for more than the stream has
      EXPECT_THAT(reader.said.text(), HasSubstr("the stream has ended after 2500 documents"));
      EXPECT_GE(server.connections(), break_after > 0 ? 2U : 1U);
      for (const auto* name : {"index", "blocks"})
        EXPECT_EQ(bytes_of(own / "store" / name), bytes_of(folder / "expected" / name)) << name;
    }
  }
}

TEST(TokenStream, ThatHasEndedIsGoneOverInEpochs) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(2, 400);
  const Expected expected(folder, lines);
  StreamServer server(folder / "socket", gives(lines + end_of_stream));
  Reader reader(server.address(), folder / "store");
  const auto windows = expected.windows();
  std::vector<std::vector<std::int64_t>> rows;
  std::vector<std::uint64_t> epochs;
  while (rows.size() < 3 * windows) {
    const auto& made = reader.loader.next();
    for (std::int64_t i = 0; i < made.sequences(); ++i) rows.push_back(row_of(made, i));
    epochs.push_back(made.epoch);
  }
  const auto rows_of = [&](std::uint64_t epoch) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(epoch * windows);
    return std::multiset<std::vector<std::int64_t>>(begin, begin + static_cast<std::ptrdiff_t>(windows));
  };
  EXPECT_EQ(rows_of(1), rows_of(0));
  EXPECT_EQ(rows_of(2), rows_of(0));
  EXPECT_FALSE(std::equal(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(windows),
                          rows.begin() + static_cast<std::ptrdiff_t>(windows)))
      << "each epoch has its own order";
  EXPECT_EQ(epochs.front(), 0U);
  EXPECT_EQ(epochs.back(), 2U);

  // A stream that is already stored is not requested again.
  Reader again(server.address(), folder / "store", batch);
  EXPECT_EQ(row_of(again.loader.next(), 0), rows[batch]);
  EXPECT_EQ(server.connections(), 1U);
  Reader late(server.address(), folder / "store", windows + 5);
  EXPECT_EQ(row_of(late.loader.next(), 0), rows[windows + 5]);
}

TEST(TokenStream, GoesOnWhereItsStoreEnds) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(3, 4000);
  const Expected expected(folder, lines);
  StreamServer server(folder / "socket", gives(lines + end_of_stream));
  std::size_t done = 0;
  for (const std::size_t batches : {700, 1, 300, 900}) {
    Reader reader(server.address(), folder / "store", done * batch);
    EXPECT_GE(reader.corpus.stored_sequences(window).value(), done * batch);
    ASSERT_EQ(reader.next(batches), expected.inputs(done, batches)) << done;
    reader.corpus.commit();
    done += batches;
  }
  // Also from an old checkpoint.
  Reader reader(server.address(), folder / "store", 600 * batch);
  EXPECT_EQ(reader.next(1000), expected.inputs(600, 1000));
}

TEST(TokenStream, GoesOnWithOneLongDocumentToo) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(4, 3) + R"({"text": ")" + std::string(3'500'000, 'x') + "\"}\n" +
                     stream_of_lines(5, 2000);
  const Expected expected(folder, lines);
  StreamServer server(folder / "socket", gives(lines + end_of_stream));
  std::size_t done = 0;
  for (const std::size_t batches : {30'000, 25'000, 18'000}) {  // all end within the document
    Reader reader(server.address(), folder / "store", done * batch);
    ASSERT_EQ(reader.next(batches), expected.inputs(done, batches)) << done;
    done += batches;
  }
  const auto rest = expected.windows() / batch - done;
  Reader reader(server.address(), folder / "store", done * batch);
  EXPECT_EQ(reader.next(rest), expected.inputs(done, rest));
}

TEST(TokenStream, BadLinesEndItOrAreLeftOut) {
  const TemporaryFolder folder;
  const auto good = stream_of_lines(6, 500), more = stream_of_lines(7, 500);
  const std::string garbage = "GET / HTTP/1.1\r\n\x01\xff\xfe\n[]\n{\"text\": 7}\n";
  StreamServer server(folder / "socket", gives(good + garbage + more + end_of_stream));
  {
    Reader reader(server.address(), folder / "failed");
    EXPECT_THAT(error_of(ErrorKind::data, [&] { reader.next(5000); }),
                HasSubstr(server.address() + ", line 501, offset " + std::to_string(good.size()) +
                          ": not a line of JSON"));
  }
  const Expected expected(folder, good + more);
  Reader reader(server.address(), folder / "store", 0, 2, "skip");
  const auto batches = expected.windows() / batch;
  EXPECT_EQ(reader.next(batches), expected.inputs(0, batches));
  reader.next(1);
  EXPECT_EQ(store_info(folder / "store").source.skipped, 4U);
}

TEST(TokenStream, ALineThatNeverEndsIsRefused) {
  const TemporaryFolder folder;
  const auto good = stream_of_lines(8, 100);
  StreamServer server(folder / "socket", gives(good + R"({"text": ")" + std::string(70 << 20, 'x')));
  Reader reader(server.address(), folder / "store");
  EXPECT_THAT(error_of(ErrorKind::data, [&] { reader.next(5000); }),
              AllOf(HasSubstr(", line 101, offset " + std::to_string(good.size()) + ": a line of "),
                    HasSubstr(" bytes or more; expected 67108864 at most")));
}

TEST(TokenStream, SaysThatTrainingWaitsForIt) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(9, 800);
  const Expected expected(folder, lines);
  StreamServer server(folder / "socket", gives(lines), {.hold_at = 50'000});
  Reader reader(server.address(), folder / "store");
  std::thread releases([&] {
    while (reader.said.text().find("training waits") == std::string::npos) std::this_thread::yield();
    server.release();
  });
  const auto batches = expected.windows() / batch;
  EXPECT_EQ(reader.next(batches), expected.inputs(0, batches));
  releases.join();
  EXPECT_THAT(reader.said.text(),
              HasSubstr("data.path " + server.address() + ": training waits for the stream"));
  EXPECT_GT(reader.loader.waited_seconds(), 1);
}

TEST(TokenStream, IsStoppedWhileItWaits) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(10, 100);
  StreamServer server(folder / "socket", gives(lines), {.hold_at = lines.size() / 2});
  { const Reader reader(server.address(), folder / "store"); }
  const auto gone = "unix://" + (folder / "nobody").string();
  DataConfig config = Reader::config(gone, 1, "fail");
  StreamOptions options;
  options.store = folder / "other";
  Said said;
  options.say = std::ref(said);
  const Corpus corpus(config, options);  // nothing is held out, so construction does not wait for documents
  while (said.text().find("cannot connect: No such file or directory") == std::string::npos)
    std::this_thread::yield();
}

TEST(TokenStream, ThatIsTooShortIsRefused) {
  const TemporaryFolder folder;
  StreamServer server(folder / "socket", gives(stream_of_lines(11, 1, 1) + end_of_stream));
  EXPECT_THAT(error_of(ErrorKind::data, [&] { Reader(server.address(), folder / "store"); }),
              AllOf(HasSubstr("the stream has ended after "), HasSubstr("but the held-out part has 81")));
  StreamServer empty(folder / "empty", gives(end_of_stream));
  EXPECT_THAT(error_of(ErrorKind::data, [&] { Reader(empty.address(), folder / "none"); }),
              HasSubstr("has ended without a usable document"));
}

/// While it lives, no file can grow beyond `bytes`.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

TEST(TokenStream, AStoreThatCannotGrowEndsItAndIsGoneOnWith) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(12, 8000);
  const Expected expected(folder, lines);
  StreamServer server(folder / "socket", gives(lines + end_of_stream), {.hold_at = 50'000});
  constexpr std::size_t first = 100;
  {
    Reader reader(server.address(), folder / "store");
    ASSERT_EQ(reader.next(first), expected.inputs(0, first));
    reader.corpus.commit();
    const FileLimit limit(40'000);
    server.release();
    // The error is about the file of blocks or about the journal, which is written every few seconds with the
    // unfinished block.
    EXPECT_THAT(error_of(ErrorKind::data, [&] { reader.next(20'000); }),
                AllOf(HasSubstr("store.partial/"), HasSubstr("File too large")));
  }
  Reader reader(server.address(), folder / "store", first * batch);
  const auto rest = expected.windows() / batch - first;
  EXPECT_EQ(reader.next(rest), expected.inputs(first, rest));
}

TEST(TokenStream, AStoreOfAnotherStreamIsRefused) {
  const TemporaryFolder folder;
  const auto lines = stream_of_lines(13, 300);
  StreamServer server(folder / "socket", gives(lines), {.hold_at = lines.size() - 1});
  { Reader(server.address(), folder / "store").next(10); }
  auto config = Reader::config(server.address(), 1, "fail");
  config.text_field = "body";
  StreamOptions options;
  options.store = folder / "store";
  options.say = [](const std::string&) {};
  EXPECT_THAT(error_of(ErrorKind::data, [&] { const Corpus corpus(config, options); }),
              HasSubstr("data.text_field is body, but was text"));
}

TEST(TokenStream, SettingsThatCannotBeAreRefusedByName) {
  const auto refused = [](const std::function<void(DataConfig&)>& change) {
    auto config = Reader::config("unix:///nowhere", 1, "fail");
    change(config);
    return error_of(ErrorKind::config, [&] { config.check(); });
  };
  EXPECT_THAT(refused([](auto& c) { c.mixture = "a = 1; b = 1"; }), HasSubstr("data.mixture is set"));
  EXPECT_THAT(refused([](auto& c) { c.tokenizer = "vocab:300"; }), HasSubstr("which reads no text"));
  EXPECT_THAT(refused([](auto& c) { c.format = "text"; }), HasSubstr("data.format is text; expected jsonl"));
  for (const auto* path : {"", "corpus.txt", "./-", "/unix:/feed"})
    EXPECT_FALSE(Reader::config(path, 1, "fail").is_stream()) << path;
  for (const auto* path : {"tcp://", "tcp://host", "tcp://host:0", "tcp://host:70000", "tcp://host:port",
                           "unix://relative", "http://host:80"}) {
    EXPECT_THAT(refused([&](auto& c) { c.path = path; }),
                HasSubstr(std::string("data.path is \"") + path + "\"; expected - (standard input)"));
  }
  for (const auto* path : {"-", "tcp://host:7000", "tcp://[::1]:7000", "unix:///run/feed"})
    Reader::config(path, 1, "fail").check();
  EXPECT_THAT(error_of(ErrorKind::config, [] { const Corpus corpus(Reader::config("-", 1, "fail")); }),
              HasSubstr("only the workers of a run can read a stream"));
}

}  // namespace
}  // namespace isthmus::data
