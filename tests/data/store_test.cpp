// The chunk store: all ranges read back what was written, and an error about damage names the place.

#include "isthmus/data/store.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "data_support.h"
#include "store/block_codec.h"
#include "store/store_format.h"
#include "store/store_reader.h"
#include "store/store_writer.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

using Starts = std::vector<std::uint64_t>;

StoreSpec spec_of(std::uint32_t vocab_size, StoreCodec codec, std::uint32_t block_tokens = 16) {
  StoreSpec spec;
  spec.vocab_size = vocab_size;
  spec.tokenizer = Hasher().update("some tokenizer").finish();
  spec.codec = codec;
  spec.level = codec == StoreCodec::none ? 0 : 1;
  spec.block_tokens = block_tokens;
  return spec;
}

/// Repetitive ids, so that they compress; they use the whole vocabulary.
Ids some_ids(std::size_t count, std::uint32_t vocab_size) {
  Ids ids(count);
  std::mt19937 random(count);
  for (auto& id : ids) id = random() % 4 == 0 ? random() % vocab_size : vocab_size - 1 - random() % 2;
  return ids;
}

Ids read_ids(const TokenSource& source, std::uint64_t begin, std::uint64_t count) {
  std::vector<std::byte> bytes(count * source.width());
  source.read(begin, count, bytes.data());
  Ids ids(count, 0);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(&ids[i], bytes.data() + i * source.width(), source.width());
  return ids;
}

Starts read_starts(const StoreReader& reader) {
  Starts all;
  for (std::uint64_t block = 0; block < reader.info().blocks(); ++block) {
    for (const auto start : reader.document_starts(block))
      all.push_back(block * reader.block_tokens() + start);
  }
  return all;
}

void write_file(const fs::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << bytes;
}

/// Opens the store and reads all of it. Returns the first error message.
std::string problem_with(const fs::path& folder) {
  try {
    const auto reader = open_store(folder);
    for (std::uint64_t block = 0; block < reader->info().blocks(); ++block) (void)reader->verify(block);
    (void)read_ids(*reader, 0, reader->tokens());
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
    return error.what();
  }
}

RC_GTEST_PROP(Store, GivesWhatWasWrittenInAnyRange, ()) {
  const TemporaryFolder folder(memory());
  const auto vocab = *rc::gen::element<std::uint32_t>(2, 255, 256, 257, 65535, 65536, 65537, 0xFFFF'FFFF);
  const auto codec = *rc::gen::element(StoreCodec::none, StoreCodec::zstd, StoreCodec::lz4);
  const auto block = *rc::gen::inRange<std::uint32_t>(16, 80);
  const auto count = *rc::gen::inRange<std::size_t>(1, 400);
  const auto ids = some_ids(count, vocab);
  Starts starts = {0};
  for (std::size_t i = 1; i < count; ++i) {
    if (*rc::gen::inRange(0, 8) == 0) starts.push_back(i);
  }
  const auto spec = spec_of(vocab, codec, block);
  write_store(folder / "s", spec, ids, starts);
  const auto reader = open_store(folder / "s");
  RC_ASSERT(reader->info().spec == spec);
  RC_ASSERT(reader->tokens() == count);
  RC_ASSERT(reader->info().documents == starts.size());
  RC_ASSERT(read_starts(*reader) == starts);
  for (int i = 0; i < 8; ++i) {
    const auto begin = *rc::gen::inRange<std::size_t>(0, count + 1);
    const auto length = *rc::gen::inRange<std::size_t>(0, count - begin + 1);
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    RC_ASSERT(read_ids(*reader, begin, length) == Ids(from, from + static_cast<std::ptrdiff_t>(length)));
  }
  const auto wanted = *rc::gen::inRange<std::uint64_t>(1, count + 1);
  const auto at = reader->heldout_begin(wanted);
  if (wanted >= count) {
    RC_ASSERT(at == 0U);
  } else {
    // Applies the rule to all document starts.
    std::uint64_t expected = count - wanted;
    for (const auto start : starts) {
      if (start > 0 && start <= count - wanted && start + 2 * wanted >= count) expected = start;
    }
    const bool any = std::any_of(starts.begin(), starts.end(), [&](auto start) {
      return start > 0 && start <= count - wanted && start + 2 * wanted >= count;
    });
    RC_ASSERT(at == (any ? expected : count - wanted));
  }
  RC_ASSERT(problem_with(folder / "s").empty());
}

TEST(Store, ASmallOnesBlocksAreUnpackedOnceHoweverItsWindowsAreDrawn) {
  const TemporaryFolder folder(memory());
  const auto ids = some_ids(16 * 1024, 40000);
  write_store(folder / "s", spec_of(40000, StoreCodec::zstd, 1024), ids, Starts{0});
  const auto reader = open_store(folder / "s");
  const auto window = [&](std::size_t begin) {
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    return read_ids(*reader, begin, 100) == Ids(from, from + 100);
  };
  for (std::size_t block = 0; block < 16; ++block) EXPECT_TRUE(window(block * 1024 + 7));
  fs::resize_file(folder / "s" / store::blocks_name, 0);  // no data left on disk
  for (std::size_t block = 16; block-- > 0;) EXPECT_TRUE(window(block * 1024 + 500));
}

TEST(Store, IsReadByManyThreadsAtOnce) {
  const TemporaryFolder folder(memory());
  const auto ids = some_ids(50000, 40000);
  write_store(folder / "s", spec_of(40000, StoreCodec::zstd, 1024), ids, Starts{0});
  const auto reader = open_store(folder / "s");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 300; ++i) {
        const auto begin = random() % ids.size(),
                   length = std::min<std::size_t>(random() % 3000, ids.size() - begin);
        const auto from = ids.begin() + static_cast<std::ptrdiff_t>(begin);
        wrong[t] += read_ids(*reader, begin, length) != Ids(from, from + static_cast<std::ptrdiff_t>(length));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0), 0);
}

TEST(Store, IsTheSameBytesForTheSameIds) {
  const TemporaryFolder folder(memory());
  const auto ids = some_ids(3000, 300);
  const auto spec = spec_of(300, StoreCodec::zstd, 256);
  for (const auto* name : {"a", "b"}) write_store(folder / name, spec, ids, Starts{0, 77, 2000});
  EXPECT_EQ(open_store(folder / "a")->fingerprint(), open_store(folder / "b")->fingerprint());
  EXPECT_EQ(read_all(folder / "a" / "blocks"), read_all(folder / "b" / "blocks"));
  write_store(folder / "c", spec, ids, Starts{0, 78, 2000});
  EXPECT_FALSE(open_store(folder / "a")->fingerprint() == open_store(folder / "c")->fingerprint());
}

class DamagedStore : public ::testing::TestWithParam<StoreCodec> {
 protected:
  DamagedStore() {
    write_store(folder_ / "s", spec_of(300, GetParam(), 64), some_ids(150, 300), Starts{0, 5, 70, 149});
    for (const auto* name : {"index", "blocks"}) sound_[name] = read_all(path(name));
  }
  fs::path path(const std::string& name) const { return folder_ / "s" / name; }
  /// Restores both files.
  void mend() const {
    for (const auto& [name, bytes] : sound_) write_file(path(name), bytes);
  }

  TemporaryFolder folder_{memory()};
  std::map<std::string, std::string> sound_;
};

TEST_P(DamagedStore, NoticesEveryByteThatIsNotAsItWas) {
  ASSERT_EQ(problem_with(folder_ / "s"), "");
  for (const auto& [name, bytes] : sound_) {
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (const int bit : {0, 3, 7}) {
        auto damaged = bytes;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
        write_file(path(name), damaged);
        EXPECT_THAT(problem_with(folder_ / "s"), ::testing::HasSubstr(path(name).string()))
            << name << ", byte " << at << ", bit " << bit;
      }
    }
    mend();
  }
}

TEST_P(DamagedStore, NoticesEveryLengthThatIsNotItsOwn) {
  for (const auto& [name, bytes] : sound_) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      write_file(path(name), bytes.substr(0, size));
      EXPECT_THAT(problem_with(folder_ / "s"), ::testing::HasSubstr(path(name).string()))
          << name << ", " << size;
    }
    write_file(path(name), bytes + "x");
    EXPECT_THAT(problem_with(folder_ / "s"), ::testing::HasSubstr("it was extended")) << name;
    mend();
  }
}

TEST_P(DamagedStore, IsNoticedWhereItShrinksWhileItIsOpen) {
  const auto reader = open_store(folder_ / "s");
  fs::resize_file(path("blocks"), sound_["blocks"].size() - 1);
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)read_ids(*reader, 130, 10); }),
              ::testing::AllOf(::testing::HasSubstr(path("blocks").string() + ", offset "),
                               ::testing::HasSubstr("block 2"), ::testing::HasSubstr("shorter")));
  EXPECT_EQ(read_ids(*reader, 0, 64).size(), 64U) << "earlier blocks are still readable";
  fs::resize_file(path("index"), 3);
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)read_ids(*reader, 0, 64); }),
              ::testing::HasSubstr("shorter"));
}

INSTANTIATE_TEST_SUITE_P(Codecs, DamagedStore,
                         ::testing::Values(StoreCodec::none, StoreCodec::zstd, StoreCodec::lz4),
                         [](const auto& test) {
                           return std::string(store_codec_names[static_cast<int>(test.param)]);
                         });

/// The error for a header with a correct checksum after `change`.
template <class Change>
std::string header_problem(Change change) {
  const TemporaryFolder folder(memory());
  write_store(folder / "s", spec_of(300, StoreCodec::zstd, 64), some_ids(150, 300), Starts{0});
  auto info = store_info(folder / "s");
  change(info);
  const auto header = store::header_of(info);
  auto bytes = read_all(folder / "s" / "index");
  std::memcpy(bytes.data(), header.data(), header.size());
  write_file(folder / "s" / "index", bytes);
  return problem_with(folder / "s");
}

TEST(Store, BelievesNoCountsOfAHeaderThatWasMadeToFit) {
  EXPECT_EQ(header_problem([](StoreInfo&) {}), "");
  using ::testing::HasSubstr;
  const std::uint64_t huge = ~std::uint64_t{0};
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.tokens = huge; }), HasSubstr("number of ids"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.tokens = huge / 16; }),
              HasSubstr("number of blocks"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.tokens = 0; }),
              HasSubstr("more documents than ids"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.tokens += 64; }), HasSubstr("truncated"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.tokens += 1; }), HasSubstr("do not decompress"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.documents = 2; }),
              HasSubstr("counts in the header"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.documents = 0; }), HasSubstr("but no document"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.data_bytes += 1; }), HasSubstr("truncated"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.largest_record = 0xFFFF'FFFF; }),
              HasSubstr("at most"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.largest_record = 5; }), HasSubstr("does not match"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.block_tokens = 0; }),
              HasSubstr("expected 16 to"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.block_tokens = 1U << 30; }),
              HasSubstr("expected 16 to"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.vocab_size = 0; }), HasSubstr("vocabulary"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.separator = 300; }), HasSubstr("separator"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.codec = static_cast<StoreCodec>(9); }),
              HasSubstr("codec's number"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.level = 99; }), HasSubstr("level of zstd"));
  EXPECT_THAT(header_problem([&](StoreInfo& info) { info.spec.codec = StoreCodec::lz4; }),
              HasSubstr("do not decompress"));
}

TEST(Store, TakesNoIdOutsideTheVocabularyThatItNames) {
  EXPECT_THAT(header_problem([](StoreInfo& info) { info.spec.vocab_size = 299; }),
              ::testing::HasSubstr("outside the store's vocabulary"));
}

TEST(Store, TakesNoFirstIdThatDoesNotFitItsWidth) {
  const TemporaryFolder folder(memory());
  write_store(folder / "s", spec_of(300, StoreCodec::zstd, 64), some_ids(150, 300), Starts{0});
  for (const std::uint64_t beyond : {std::uint64_t{300}, std::uint64_t{1} << 16, std::uint64_t{1} << 32}) {
    auto info = store_info(folder / "s");
    auto bytes = read_all(folder / "s" / "index");
    // The low bytes still match the first id of the block.
    const auto at = store::header_bytes + store::entry_bytes + offsetof(store::Entry, first);
    std::uint64_t first = 0;
    std::memcpy(&first, bytes.data() + at, sizeof first);
    first += beyond;
    std::memcpy(bytes.data() + at, &first, sizeof first);
    info.entries = hash_of(std::as_bytes(std::span(bytes).subspan(store::header_bytes)));
    const auto header = store::header_of(info);
    std::memcpy(bytes.data(), header.data(), header.size());
    const TemporaryFolder other(memory());
    std::filesystem::copy(folder / "s", other / "s");
    write_file(other / "s" / "index", bytes);
    EXPECT_THAT(problem_with(other / "s"), ::testing::HasSubstr("the first id of block 1 is"));
  }
}

TEST(Store, SaysOfWhatVersionItIs) {
  const TemporaryFolder folder(memory());
  write_store(folder / "s", spec_of(300, StoreCodec::zstd, 64), some_ids(150, 300), Starts{0});
  const auto sound = read_all(folder / "s" / "index");
  auto other = sound;
  other[8] = 7;
  write_file(folder / "s" / "index", other);
  EXPECT_THAT(problem_with(folder / "s"), ::testing::HasSubstr("offset 8: version 7 of the format"));
  other = sound;
  other[0] = 'X';
  write_file(folder / "s" / "index", other);
  EXPECT_THAT(problem_with(folder / "s"), ::testing::HasSubstr("offset 0: not the index of a store"));
}

TEST(Store, KeepsItsNameForWhatIsComplete) {
  const TemporaryFolder folder(memory());
  const auto spec = spec_of(300, StoreCodec::zstd, 16);
  {
    StoreWriter writer(folder / "s", spec, {});
    EXPECT_FALSE(fs::exists(folder / "s"));
    EXPECT_THAT(error_of(ErrorKind::data, [&] { const StoreWriter second(folder / "s", spec, {}); }),
                ::testing::HasSubstr("another process is writing it"));
  }
  write_store(folder / "s", spec, some_ids(40, 300), Starts{0});
  EXPECT_FALSE(fs::exists(folder / "s.partial"));
  EXPECT_THAT(error_of(ErrorKind::data, [&] { const StoreWriter again(folder / "s", spec, {}); }),
              ::testing::HasSubstr("already exists"));
}

/// Appends the blocks of `ids` up to `to`, and commits when `commit_at` blocks are written.
void append_blocks(StoreWriter& writer, const StoreSpec& spec, const Ids& ids, std::uint64_t to,
                   std::uint64_t commit_at) {
  store::BlockEncoder encoder(spec);
  Bytes record;
  for (auto block = writer.blocks(); block < to; ++block) {
    Bytes bytes(spec.block_tokens);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(ids[block * spec.block_tokens + i]);
    const std::uint32_t start = 0;
    encoder.encode(bytes, std::span(&start, block % 2 == 0 ? 1 : 0), record);
    writer.append(record, spec.block_tokens, block % 2 == 0 ? 1 : 0, static_cast<std::uint32_t>(bytes[0]));
    if (block + 1 == commit_at) writer.commit(to_bytes(std::string("position")));
  }
}

TEST(Store, GoesOnFromItsLastCommitAndEndsWithTheSameBytes) {
  const auto spec = spec_of(200, StoreCodec::lz4, 32);
  const auto ids = some_ids(32 * 10, 200);
  const TemporaryFolder folder(memory());
  {
    StoreWriter writer(folder / "whole", spec, {{"sources", "x"}});
    append_blocks(writer, spec, ids, 10, 0);
    writer.finish({.bytes = 7, .empty = 0, .skipped = 0});
  }
  {
    StoreWriter writer(folder / "s", spec, {{"sources", "x"}});
    EXPECT_FALSE(writer.resumed());
    append_blocks(writer, spec, ids, 7, 4);
  }
  EXPECT_THAT(error_of(ErrorKind::data,
                       [&] {
                         const StoreWriter other(folder / "s", spec, {{"sources", "y"}});
                       }),
              ::testing::AllOf(::testing::HasSubstr("sources is y, but was x"),
                               ::testing::HasSubstr("remove " + (folder / "s.partial").string())));
  {
    StoreWriter writer(folder / "s", spec, {{"sources", "x"}});
    ASSERT_TRUE(writer.resumed());
    EXPECT_EQ(from_bytes<std::string>(*writer.resumed()), "position");
    EXPECT_EQ(writer.blocks(), 4U);
    EXPECT_EQ(writer.tokens(), 128U);
    EXPECT_EQ(writer.documents(), 2U);
    append_blocks(writer, spec, ids, 10, 0);
    writer.finish({.bytes = 7, .empty = 0, .skipped = 0});
  }
  for (const auto* name : {"index", "blocks"})
    EXPECT_EQ(read_all(folder / "s" / name), read_all(folder / "whole" / name)) << name;
}

TEST(Store, RefusesADamagedJournal) {
  const auto spec = spec_of(200, StoreCodec::lz4, 32);
  const TemporaryFolder folder(memory());
  {
    StoreWriter writer(folder / "s", spec, {});
    append_blocks(writer, spec, some_ids(64, 200), 2, 2);
  }
  const auto journal = folder / "s.partial" / "journal";
  const auto sound = read_all(journal);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    auto damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 16);
    write_file(journal, damaged);
    EXPECT_THAT(error_of(ErrorKind::data, [&] { const StoreWriter writer(folder / "s", spec, {}); }),
                ::testing::HasSubstr(journal.string()));
    write_file(journal, sound.substr(0, at));
    EXPECT_THAT(error_of(ErrorKind::data, [&] { const StoreWriter writer(folder / "s", spec, {}); }),
                ::testing::HasSubstr(journal.string()));
  }
  write_file(journal, sound);
  fs::resize_file(folder / "s.partial" / "store" / "blocks", 3);
  EXPECT_THAT(error_of(ErrorKind::data, [&] { const StoreWriter writer(folder / "s", spec, {}); }),
              ::testing::HasSubstr("less data than it records"));
}

RC_GTEST_PROP(BlockDecoder, BelievesNothingOfARecord, ()) {
  // Valid records with arbitrary damage, without the checksum that protects the decoder.
  const auto spec = spec_of(300, *rc::gen::element(StoreCodec::none, StoreCodec::zstd, StoreCodec::lz4), 64);
  store::BlockEncoder encoder(spec);
  store::BlockDecoder decoder(spec);
  Bytes ids(128, std::byte{1}), record, out(128);
  encoder.encode(ids, std::vector<std::uint32_t>{0, 9, 63}, record);
  const auto edits = *rc::gen::inRange(0, 6);
  for (int i = 0; i < edits && !record.empty(); ++i) {
    record[*rc::gen::inRange<std::size_t>(0, record.size())] =
        static_cast<std::byte>(*rc::gen::arbitrary<char>());
    if (*rc::gen::inRange(0, 8) == 0) record.resize(*rc::gen::inRange<std::size_t>(0, record.size() + 1));
  }
  std::vector<std::uint32_t> starts;
  const auto problem = decoder.ids(record, out);
  const auto starts_problem = store::BlockDecoder::starts(record, 64, 3, starts);
  if (edits == 0) RC_ASSERT(problem.empty() && starts_problem.empty());
  if (!starts_problem.empty()) return;
  RC_ASSERT(starts.size() == 3U && std::is_sorted(starts.begin(), starts.end()) && starts.back() < 64U);
}

}  // namespace
}  // namespace isthmus::data
