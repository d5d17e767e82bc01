// Reading documents from files, folders and JSON lines, some of them bad.

#include "text/documents.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "data_support.h"
#include "text/text_files.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Policy = BadDocuments::Policy;

struct Found {
  std::vector<std::string> documents;
  std::vector<Piece> pieces;  ///< without their text
  Place end;
  BadDocuments bad;
};

Found read(const std::vector<std::string>& paths, Policy policy = Policy::fail,
           const DocumentOptions& options = {}) {
  Found found{{}, {}, {}, BadDocuments(policy)};
  const auto files = find_documents(paths, std::nullopt, found.bad);
  Place from;
  from.bad = found.bad.count();
  found.end = for_each_document(files, options, found.bad, from, [&](const Piece& piece) {
    EXPECT_EQ(piece.first, found.pieces.empty() || found.pieces.back().last);
    EXPECT_LE(piece.text.size(), std::size_t{1} << 20);
    if (piece.first) found.documents.emplace_back();
    found.documents.back() += piece.text;
    found.pieces.push_back(piece);
    found.pieces.back().text = {};
    return true;
  });
  EXPECT_EQ(found.end.bad, found.bad.count());
  return found;
}

std::string message_of(const std::vector<std::string>& paths, const DocumentOptions& options = {}) {
  return error_of(ErrorKind::data, [&] { (void)read(paths, Policy::fail, options); });
}

/// Text with many lines and UTF-8 characters of every length.
std::string some_text(std::size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i)
    text += "line " + std::to_string(i * 7919) + (i % 3 == 0 ? " ä€𝄞\n" : " ");
  return text;
}

TEST(Documents, AreTextFilesAndTheFilesOfFoldersInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  folder.write("c/b.txt", "second");
  folder.write("c/a/z.md", "first\n");
  folder.write("c/empty", "");
  folder.write("c/.hidden", "not this");
  const auto named = folder.write("alone.txt", "third");
  const auto found = read({(folder / "c").string(), named.string()});
  EXPECT_THAT(found.documents, ElementsAre("first\n", "second", "third"));
  EXPECT_EQ(found.end.empty, 1U);
  EXPECT_EQ(found.end.bytes, 17U);
}

TEST(Documents, AreTheLinesOfJsonl) {
  const TemporaryFolder folder;
  const auto file = folder.write("x.jsonl",
                                 "\xEF\xBB\xBF{\"text\": \"one\\nline \\u00e4\\ud834\\udd1e\"}\r\n"
                                 "\n  \n"
                                 "{\"id\": 3, \"text\": \"\"}\n"
                                 "{\"meta\": {\"text\": \"inner\"}, \"text\": \"two\"}\n"
                                 "{\"text\":\"without a newline\"}");
  const auto found = read({file.string()});
  EXPECT_THAT(found.documents, ElementsAre("one\nline ä𝄞", "two", "without a newline"));
  EXPECT_EQ(found.end.empty, 1U);
  EXPECT_EQ(found.end.bytes, fs::file_size(file));
  DocumentOptions options;
  options.text_field = "body";
  const auto other = folder.write("y.ndjson", "{\"body\":\"b\"}\n");
  EXPECT_THAT(read({other.string()}, Policy::fail, options).documents, ElementsAre("b"));
}

TEST(Documents, AreCutAtLineEndsTheSameWayAsTextAndAsAFieldOfJson) {
  const TemporaryFolder folder;
  for (const std::size_t bytes : {1U << 20, (1U << 20) - 1, 3'500'000U}) {
    auto text = some_text(bytes);
    text.resize(bytes);
    const auto plain = folder.write("plain.txt", text);
    // Only the line ends need escaping in JSON.
    std::string escaped;
    while ((static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
    folder.write("plain.txt", text);
    for (const char c : text) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
    const auto json = folder.write("x.jsonl", "{\"text\": \"" + escaped + "\"}\n");
    const auto a = read({plain.string()}), b = read({json.string()});
    EXPECT_THAT(a.documents, ElementsAre(text));
    EXPECT_EQ(a.documents, b.documents);
    EXPECT_EQ(a.pieces.size(), b.pieces.size());
  }
}

TEST(Documents, WithoutLinesAreCutBetweenCharacters) {
  const TemporaryFolder folder;
  std::string text = "x";
  while (text.size() < 3 * piece_bytes)
    text += "\xE2\x82\xAC";  // three bytes per character, so that cuts fall inside characters
  DocumentFile file{folder.write("text", text).string(), "text", text.size(), DocumentFormat::text};
  BadDocuments bad(BadDocuments::Policy::fail);
  std::string together;
  for_each_document({&file, 1}, {}, bad, {}, [&](const Piece& piece) {
    EXPECT_LE(piece.text.size(), piece_bytes);
    EXPECT_TRUE(piece.text.ends_with("\xE2\x82\xAC"));
    together += piece.text;
    return true;
  });
  EXPECT_EQ(together, text);
}

TEST(Documents, GoOnFromAnyPlace) {
  const TemporaryFolder folder;
  folder.write("d/a.txt", some_text(2'500'000));
  folder.write("d/b.jsonl", "{\"text\":\"x\"}\nbad\n{\"text\":\"\"}\n{\"text\":\"y\"}\n");
  folder.write("d/c.txt", "end");
  BadDocuments bad(Policy::skip);
  const std::vector<std::string> paths = {(folder / "d").string()};
  const auto files = find_documents(paths, std::nullopt, bad);
  std::vector<std::pair<Place, std::string>> all;
  const auto end = for_each_document(files, {}, bad, {}, [&](const Piece& piece) {
    EXPECT_TRUE(piece.resumable);
    all.emplace_back(piece.place, piece.text);
    return true;
  });
  ASSERT_EQ(all.size(), 6U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto expected = i;
    const auto again = for_each_document(files, {}, bad, all[i].first, [&](const Piece& piece) {
      EXPECT_EQ(piece.place, all[expected].first);
      EXPECT_EQ(piece.text, all[expected++].second);
      return true;
    });
    EXPECT_EQ(expected, all.size());
    EXPECT_EQ(again, end);
  }
}

TEST(Documents, StopWhenTold) {
  const TemporaryFolder folder;
  const auto file = folder.write("x.jsonl", "{\"text\":\"x\"}\n{\"text\":\"y\"}\n");
  BadDocuments bad(Policy::fail);
  const std::vector<std::string> paths = {file.string()};
  int calls = 0;
  (void)for_each_document(find_documents(paths, std::nullopt, bad), {}, bad, {}, [&](const Piece&) {
    ++calls;
    return false;
  });
  EXPECT_EQ(calls, 1);
}

TEST(Documents, ThatAreBadLinesOfJsonlAreNamedOrSkipped) {
  const TemporaryFolder folder;
  const std::string good = "{\"text\":\"good\"}\n";
  const std::pair<std::string, std::string> cases[] = {
      {"{\"text\":\"x\"", "not a line of JSON"},
      {"{\"text\":\"x\"} {}", "not a line of JSON"},
      {"nonsense", "not a line of JSON"},
      {"{\"text\":\"a\xff\"}", "not a line of JSON: The input is not valid UTF-8"},
      {"{\"text\":\"\\ud800\"}", "not a line of JSON"},
      {"[1]", "not an object"},
      {"{\"other\":\"x\"}", "has no field \"text\""},
      {"{\"text\":7}", "its field \"text\" is not a string"},
      {"{\"text\":null}", "its field \"text\" is not a string"},
      {"{\"text\":\"" + std::string(200, 'x') + "\"}", "a line of 212 bytes; expected 100 at most"},
      {std::string(2'500'000, '['), "a line of 2500001 bytes; expected 100 at most"},
      {std::string(99, '['), "not a line of JSON"},
  };
  DocumentOptions options;
  options.max_line = 100;
  for (const auto& [line, why] : cases) {
    const auto file = folder.write("x.jsonl", good + line + "\n" + good);
    EXPECT_THAT(message_of({file.string()}, options),
                HasSubstr(file.string() + ", line 2, offset 16: " + why))
        << line.substr(0, 50);
    const auto found = read({file.string()}, Policy::skip, options);
    EXPECT_THAT(found.documents, ElementsAre("good", "good"));
    EXPECT_EQ(found.bad.count(), 1U);
    EXPECT_EQ(found.end.bytes, fs::file_size(file));
    ASSERT_EQ(found.bad.first().size(), 1U);
    EXPECT_THAT(found.bad.first()[0], HasSubstr("line 2, offset 16: " + why));
  }
}

TEST(Documents, OfAFolderWithOneBadFileAmongMany) {
  const TemporaryFolder folder;
  for (int i = 0; i < 2000; ++i) folder.write("d/" + std::to_string(10000 + i), "text " + std::to_string(i));
  const auto link = folder / "d" / "10500x";
  fs::create_symlink("nowhere", link);
  const std::string path = (folder / "d").string();
  EXPECT_THAT(message_of({path}), HasSubstr(link.string() + ": broken symbolic link"));
  auto found = read({path}, Policy::skip);
  EXPECT_EQ(found.documents.size(), 2000U);
  EXPECT_THAT(found.bad.first(), ElementsAre(HasSubstr(link.string())));
  fs::remove(link);
  for (const auto* name : {"d/ids.bin", "d/table.parquet", "d/packed.gz"}) {
    const auto file = folder.write(name, "x");
    EXPECT_THAT(message_of({path}), HasSubstr(file.string()));
    found = read({path}, Policy::skip);
    EXPECT_EQ(found.documents.size(), 2000U);
    EXPECT_EQ(found.bad.count(), 1U);
    fs::remove(file);
  }
}

TEST(Documents, ThatCannotBeReadAreNamedOrSkipped) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of({(folder / "missing").string()}),
              HasSubstr((folder / "missing").string() + ": does not exist"));
  folder.write("d/a", "a");
  const auto gone = folder.write("d/b", "b");
  folder.write("d/c", "c");
  for (const auto policy : {Policy::fail, Policy::skip}) {
    folder.write("d/b", "b");
    BadDocuments bad(policy);
    const std::vector<std::string> paths = {(folder / "d").string()};
    const auto files = find_documents(paths, std::nullopt, bad);
    fs::remove(gone);
    std::string all;
    const auto read_them = [&] {
      (void)for_each_document(files, {}, bad, {}, [&](const Piece& piece) {
        all += piece.text;
        return true;
      });
    };
    if (policy == Policy::fail) {
      EXPECT_THAT(error_of(ErrorKind::data, read_them),
                  HasSubstr(gone.string() + ", offset 0: cannot be read: No such"));
    } else {
      read_them();
      EXPECT_EQ(all, "ac");
      EXPECT_EQ(bad.count(), 1U);
    }
  }
}

TEST(Documents, ThatShrinkWhileTheyAreReadAreNamedOrEnd) {
  const TemporaryFolder folder;
  const auto text = some_text(3'000'000);
  for (const auto* name : {"x.txt", "x.jsonl"}) {
    const auto file = folder.write(name, text);
    for (const std::uint64_t size : {0, 5, 1'500'000}) {
      folder.write(name, text);
      BadDocuments bad(Policy::skip);
      const std::vector<std::string> paths = {file.string()};
      const auto files = find_documents(paths, std::nullopt, bad);
      fs::resize_file(file, size);
      std::string all;
      bool ended = true;
      (void)for_each_document(files, {}, bad, {}, [&](const Piece& piece) {
        all += piece.text;
        ended = piece.last;
        return true;
      });
      EXPECT_TRUE(ended);
      ASSERT_GE(bad.count(), 1U);
      bool said = false;
      for (const auto& message : bad.first()) said |= message.find("has become shorter") != std::string::npos;
      EXPECT_TRUE(said || bad.count() > bad.first().size()) << bad.first()[0];
      // A piece that could not be read completely is not used.
      EXPECT_TRUE(text.starts_with(all)) << all.size();
      EXPECT_EQ(all.empty(), size < 1 << 20 || file.extension() == ".jsonl");
    }
  }
}

TEST(Documents, AreReadAsFarAsTheyWentWhenTheyWereFound) {
  const TemporaryFolder folder;
  const auto file = folder.write("x.txt", "before");
  BadDocuments bad(Policy::fail);
  const std::vector<std::string> paths = {file.string()};
  const auto files = find_documents(paths, std::nullopt, bad);
  folder.write("x.txt", "before and after");
  std::string all;
  (void)for_each_document(files, {}, bad, {}, [&](const Piece& piece) {
    all += piece.text;
    return true;
  });
  EXPECT_EQ(all, "before");
}

TEST(Documents, OfTextThatIsNotUtf8AreBadForWhoNeedsIt) {
  const TemporaryFolder folder;
  for (const std::size_t at : {0U, 1U, 7U, 1'200'000U, 2'999'998U}) {
    auto text = some_text(3'000'000);
    text[at] = '\xff';
    // The first bad byte may belong to a character with an overwritten first byte.
    const auto file = folder.write("d/b.txt", text);
    folder.write("d/a.txt", "a");
    folder.write("d/c.txt", "c");
    DocumentOptions options;
    const std::string path = (folder / "d").string();
    EXPECT_THAT(read({path}).documents, ElementsAre("a", text, "c"))
        << "without require_utf8, any bytes are accepted";
    options.require_utf8 = true;
    EXPECT_THAT(message_of({path}, options),
                AllOf(HasSubstr(file.string() + ", offset "), HasSubstr("not UTF-8")));
    EXPECT_THAT(read({path}, Policy::skip, options).documents, ElementsAre("a", "c"));
  }
  std::string text(3'000'000, 'x');
  for (const std::size_t at : {0U, 77U, 1'048'576U, 2'999'999U}) {
    auto damaged = text;
    damaged[at] = '\x80';
    DocumentOptions options;
    options.require_utf8 = true;
    const auto file = folder.write("y.txt", damaged);
    EXPECT_THAT(message_of({file.string()}, options),
                HasSubstr("y.txt, offset " + std::to_string(at) + ": not UTF-8"));
  }
}

TEST(Documents, OfStandardInputNeedAFormat) {
  BadDocuments bad(Policy::fail);
  const std::vector<std::string> one = {"-"}, two = {"-", "-"};
  EXPECT_THAT(error_of(ErrorKind::config, [&] { (void)find_documents(one, std::nullopt, bad); }),
              HasSubstr("--jsonl or --text"));
  EXPECT_THAT(error_of(ErrorKind::config, [&] { (void)find_documents(two, DocumentFormat::text, bad); }),
              HasSubstr("twice"));
}

}  // namespace
}  // namespace isthmus::data
