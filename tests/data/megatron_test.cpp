#include "ids/megatron.h"

#include <numeric>

#include "data_support.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The contents of a Megatron data set; tests damage its parts.
struct MegatronFiles {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> documents;
  std::optional<std::uint64_t> sequence_count, document_count;
  std::string ids;
  std::string rest;

  /// Counting ids in sequences of these lengths, one document per sequence.
  explicit MegatronFiles(std::vector<std::int32_t> of) : lengths(std::move(of)) {
    std::int64_t ids_so_far = 0;
    for (const auto length : lengths) {
      documents.push_back(static_cast<std::int64_t>(offsets.size()));
      offsets.push_back(2 * ids_so_far);
      ids_so_far += length;
    }
    documents.push_back(static_cast<std::int64_t>(offsets.size()));
    ids = counting_ids(static_cast<std::size_t>(ids_so_far));
  }
  template <class T>
  static void put(std::string& to, const T& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  [[nodiscard]] std::string index() const {
    auto out = magic;
    put(out, version);
    put(out, code);
    put(out, sequence_count.value_or(lengths.size()));
    put(out, document_count.value_or(documents.size()));
    for (const auto n : lengths) put(out, n);
    for (const auto n : offsets) put(out, n);
    for (const auto n : documents) put(out, n);
    return out + rest;
  }
  std::filesystem::path write(const TemporaryFolder& folder) const {
    folder.write("set.idx", index());
    folder.write("set.bin", ids);
    return folder / "set";
  }
};

const std::vector<std::int32_t> lengths = {100, 50, 250, 0, 300, 200, 100};

Corpus megatron_corpus(const std::filesystem::path& path, double heldout = 0.1) {
  auto config = config_of(path, 4, heldout);
  config.tokenizer = "vocab:1000";
  return Corpus(config);
}

std::string refusal_of_files(const MegatronFiles& files) {
  const TemporaryFolder folder;
  return error_of(ErrorKind::data, [&] { megatron_corpus(files.write(folder)); });
}

TEST(Megatron, IsNamedByPrefixIndexOrIds) {
  const TemporaryFolder folder;
  const auto prefix = MegatronFiles(lengths).write(folder);
  for (const char* ending : {"", ".idx", ".bin"}) {
    const auto corpus = megatron_corpus(prefix.string() + ending);
    EXPECT_EQ(corpus.tokens(Split::train) + corpus.tokens(Split::heldout), 1000U) << ending;
    EXPECT_EQ(tokens_of(corpus, Split::train)[899], 899);
  }
}

TEST(Megatron, WholeDocumentsAreHeldOut) {
  const TemporaryFolder folder;
  const auto prefix = MegatronFiles(lengths).write(folder);
  EXPECT_EQ(megatron_corpus(prefix, 0.1).tokens(Split::heldout), 100U);
  EXPECT_EQ(megatron_corpus(prefix, 0.16).tokens(Split::heldout), 300U);
  EXPECT_EQ(megatron_corpus(prefix, 0.11).tokens(Split::heldout), 110U)
      << "a further document would triple the held-out part";
  EXPECT_EQ(megatron_corpus(prefix, 0.4).tokens(Split::heldout), 600U);
}

TEST(Megatron, WideIdsAndModesAreRead) {
  const TemporaryFolder folder;
  MegatronFiles files({3, 4});
  files.code = 4;
  files.offsets = {0, 12};
  files.ids.clear();
  for (std::int32_t id = 0; id < 7; ++id) MegatronFiles::put(files.ids, id);
  files.rest = std::string(2, '\1');
  auto config = config_of(files.write(folder), 2, 0.3);
  config.tokenizer = "vocab:1000";
  EXPECT_EQ(tokens_of(Corpus(config), Split::heldout), (std::vector<std::int64_t>{3, 4, 5, 6}));
}

TEST(Megatron, WhatIsWrongIsNamedWithItsOffset) {
  auto files = MegatronFiles(lengths);
  files.magic[0] = 'X';
  EXPECT_THAT(refusal_of_files(files), AllOf(HasSubstr("set.idx, offset 0"), HasSubstr("MMIDIDX")));
  files = MegatronFiles(lengths);
  files.version = 2;
  EXPECT_THAT(refusal_of_files(files), AllOf(HasSubstr("offset 9"), HasSubstr("version 2")));
  files = MegatronFiles(lengths);
  files.code = 6;
  EXPECT_THAT(refusal_of_files(files), AllOf(HasSubstr("offset 17"), HasSubstr("type 6")));
  files = MegatronFiles(lengths);
  files.lengths[1] = -1;
  EXPECT_THAT(refusal_of_files(files), AllOf(HasSubstr("offset 38"), HasSubstr("-1 ids")));
  files = MegatronFiles(lengths);
  files.rest = "xx";
  EXPECT_THAT(refusal_of_files(files), HasSubstr("2 bytes follow"));
  files = MegatronFiles(lengths);
  files.ids += "xx";
  EXPECT_THAT(refusal_of_files(files),
              AllOf(HasSubstr("set.bin"), HasSubstr("2002 bytes"), HasSubstr("2000")));
}

TEST(Megatron, PointersThatOverlapLeaveGapsOrLieOutsideAreRefused) {
  for (const std::int64_t wrong :
       {std::int64_t{198}, std::int64_t{202}, std::int64_t{1} << 40, std::int64_t{-2}}) {
    auto files = MegatronFiles(lengths);
    files.offsets[1] = wrong;
    EXPECT_THAT(refusal_of_files(files), AllOf(HasSubstr("sequence 1"), HasSubstr("expected 200"))) << wrong;
  }
  for (const std::int64_t wrong : {std::int64_t{8}, std::int64_t{0}, std::int64_t{-1}}) {
    auto files = MegatronFiles(lengths);
    files.documents[2] = wrong;
    EXPECT_THAT(refusal_of_files(files), HasSubstr("document 2")) << wrong;
  }
  auto files = MegatronFiles(lengths);
  files.documents.back() = 3;
  EXPECT_THAT(refusal_of_files(files), HasSubstr("document 7"));
}

TEST(Megatron, CountsThatCannotBeTrueAllocateNothing) {
  for (const auto count : {std::uint64_t{8}, ~std::uint64_t{0}, std::uint64_t{1} << 62}) {
    auto files = MegatronFiles(lengths);
    files.sequence_count = count;
    EXPECT_THAT(refusal_of_files(files), HasSubstr("truncated")) << count;
    files.sequence_count.reset();
    files.document_count = count + 1;
    EXPECT_THAT(refusal_of_files(files), testing::AnyOf(HasSubstr("truncated"), HasSubstr("follow")))
        << count;
  }
}

TEST(Megatron, AnIndexCutOffAnywhereIsRefused) {
  const TemporaryFolder folder;
  const auto files = MegatronFiles({3, 4, 5});
  const auto prefix = files.write(folder);
  const auto whole = files.index();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    folder.write("set.idx", whole.substr(0, size));
    EXPECT_THAT(error_of(ErrorKind::data, [&] { megatron_corpus(prefix); }), HasSubstr("set.idx")) << size;
  }
}

}  // namespace
}  // namespace isthmus::data
