#include "isthmus/trainer/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "small_model.h"
#include "temporary_folder.h"

namespace isthmus::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

Bytes bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

const Digest model = hash_of({});

/// The error message; it must contain the file name.
std::string reading_error(const std::filesystem::path& file, const Digest& of = model) {
  try {
    (void)read_checkpoint(file, of);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr(file.string()));
    return error.what();
  }
  return "no error";
}

/// A file with a config, some numbers and an empty section.
struct Sample {
  Sample() {
    const auto config = bytes_of("model.layers: 2\n");
    const Bytes numbers(60, std::byte{7});
    write_checkpoint(file, model, 1200,
                     std::vector<SectionView>{{"config", config}, {"outer", numbers}, {"empty", {}}});
    text = read_all(file);
  }
  void put(const std::string& changed) const { (void)folder.write("a.ckpt", changed); }
  TemporaryFolder folder;
  std::filesystem::path file = folder / "a.ckpt";
  std::string text;
};

TEST(Checkpoint, GivesBackWhatWasWritten) {
  Sample sample;
  const auto checkpoint = read_checkpoint(sample.file, model);
  EXPECT_EQ(checkpoint.step, 1200);
  EXPECT_EQ(checkpoint.section("config"), bytes_of("model.layers: 2\n"));
  EXPECT_EQ(checkpoint.section("outer"), Bytes(60, std::byte{7}));
  EXPECT_THAT(checkpoint.section("empty"), IsEmpty());
  EXPECT_THROW((void)checkpoint.section("other"), Error);
  EXPECT_FALSE(std::filesystem::exists(sample.folder / "a.ckpt.partial"));
}

TEST(Checkpoint, ACopyOfSomeSectionsIsACheckpoint) {
  Sample sample;
  std::string copy;
  std::uint64_t announced = 0;
  const PartialCopy to{.length = [&](std::uint64_t bytes) { announced = bytes; },
                       .bytes =
                           [&](std::span<const std::byte> piece) {
                             copy.append(reinterpret_cast<const char*>(piece.data()), piece.size());
                           }};
  copy_sections(sample.file, std::vector<std::string>{"empty", "config"}, to);
  EXPECT_EQ(announced, copy.size());
  EXPECT_LT(copy.size(), sample.text.size());
  const auto file = sample.folder.write("copy.ckpt", copy);
  const auto checkpoint = read_checkpoint(file, model);
  EXPECT_EQ(checkpoint.step, 1200);
  EXPECT_EQ(checkpoint.sections.size(), 2);
  EXPECT_EQ(checkpoint.section("config"), bytes_of("model.layers: 2\n"));
  EXPECT_EQ(section_digest(file, "config"), section_digest(sample.file, "config"));
  copy.clear();
  EXPECT_THROW(copy_sections(sample.file, std::vector<std::string>{"config", "other"}, to), Error);
  sample.put(sample.text.substr(0, sample.text.size() - 1));
  EXPECT_THROW(copy_sections(sample.file, std::vector<std::string>{"config"}, to), Error);
  EXPECT_TRUE(copy.empty()) << "an unsound file must be refused before anything is copied";
}

TEST(Checkpoint, ReplacesAnOlderFile) {
  Sample sample;
  write_checkpoint(sample.file, model, 1300, {});
  EXPECT_EQ(read_checkpoint(sample.file, model).step, 1300);
}

TEST(Checkpoint, EveryFlippedBitIsNoticed) {
  Sample sample;
  for (std::size_t i = 0; i < sample.text.size(); ++i) {
    auto changed = sample.text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    sample.put(changed);
    EXPECT_NE(reading_error(sample.file), "no error") << "byte " << i;
  }
}

TEST(Checkpoint, AThousandFlippedBitsOfAReplicasCheckpointAreNoticed) {
  TemporaryFolder folder;
  Replica replica(small_table(), small_options());
  train(replica, 3);
  const auto outer = bytes_of("state of the outer loop");
  const auto file = folder / "r.ckpt";
  save_replica(file, replica, std::vector<SectionView>{{"outer", outer}});
  const auto fingerprint = replica.table().fingerprint();
  check_checkpoint(file, fingerprint);
  auto text = read_all(file);
  const auto header = 8 + 4 + 32 + 8 + 4;  // without the table of sections
  for (std::uint64_t i = 0; i < 1000; ++i) {
    // Every fifth bit is in the header, which is a small part of the file.
    const auto size = i % 5 == 0 ? header : text.size();
    const auto bit = random_bits(7, i, 0) % (8 * size);
    auto& byte = text[bit / 8];
    byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    (void)folder.write("r.ckpt", text);
    EXPECT_THROW(check_checkpoint(file, fingerprint), Error) << "bit " << bit;
    EXPECT_NE(reading_error(file, fingerprint), "no error") << "bit " << bit;
    byte = static_cast<char>(byte ^ (1 << (bit % 8)));
  }
}

TEST(Checkpoint, EveryTruncationIsNoticed) {
  Sample sample;
  for (std::size_t size = 0; size < sample.text.size(); ++size) {
    sample.put(sample.text.substr(0, size));
    EXPECT_THAT(reading_error(sample.file), HasSubstr("ends inside")) << size;
    EXPECT_THROW(check_checkpoint(sample.file, model), Error) << size;
    EXPECT_THROW(check_checkpoint_header(sample.file, model), Error) << size;
  }
}

TEST(Checkpoint, MessagesSayWhatIsWrong) {
  Sample sample;
  sample.put("ISTHMUS!" + sample.text.substr(8));
  EXPECT_THAT(reading_error(sample.file), HasSubstr("does not begin as a checkpoint"));
  auto changed = sample.text;
  changed[8] = 9;
  sample.put(changed);
  EXPECT_THAT(reading_error(sample.file),
              AllOf(HasSubstr("version 9"), HasSubstr("version " + std::to_string(checkpoint_version))));
  sample.put(sample.text.substr(0, sample.text.size() - 1) + "x");
  EXPECT_THAT(reading_error(sample.file), HasSubstr("checksum of section outer"));
  sample.put(sample.text.substr(0, sample.text.size() - 1));
  EXPECT_THAT(reading_error(sample.file), HasSubstr("ends inside section outer"));
  sample.put(sample.text + "x");
  EXPECT_THAT(reading_error(sample.file), HasSubstr("1 bytes follow"));
  sample.put(sample.text);
  EXPECT_THAT(reading_error(sample.file, small_table().fingerprint()), HasSubstr("another model"));
  EXPECT_THAT(reading_error(sample.folder / "none.ckpt"), HasSubstr("open"));
}

TEST(Checkpoint, LengthsAreNotBelievedBeyondTheFile) {
  // A header with a correct checksum that claims a section of 2^60 bytes.
  BinaryWriter out;
  out.raw("ISTHCKPT", 8);
  out(checkpoint_version, model, std::uint64_t{1}, std::uint32_t{1}, std::uint16_t{3});
  out.raw("big", 3);
  out(std::uint64_t{1} << 60, Digest{});
  auto bytes = out.take();
  const auto digest = hash_of(bytes);
  for (const auto b : digest.bytes) bytes.push_back(static_cast<std::byte>(b));
  TemporaryFolder folder;
  const auto file =
      folder.write("a.ckpt", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  EXPECT_THAT(reading_error(file), HasSubstr("ends inside section big"));
  EXPECT_THROW(check_checkpoint(file, model), Error);
}

TEST(Checkpoint, AFolderThatIsNotThereIsAnError) {
  TemporaryFolder folder;
  try {
    write_checkpoint(folder / "none/a.ckpt", model, 1, {});
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr("none/a.ckpt"));
  }
}

TEST(Checkpoint, AReplicaGoesOnAsIfItHadNotStopped) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    TemporaryFolder folder;
    Replica whole(small_table(), small_options(precision)), resumed(small_table(), small_options(precision));
    train(whole, 7);
    const auto outer = bytes_of("state of the outer loop");
    save_replica(folder / "r.ckpt", whole, std::vector<SectionView>{{"outer", outer}});
    const auto checkpoint = load_replica(folder / "r.ckpt", resumed);
    EXPECT_EQ(checkpoint.sections.size(), 1);
    EXPECT_EQ(checkpoint.section("outer"), outer);
    EXPECT_EQ(resumed.steps(), 7);
    EXPECT_EQ(train(resumed, 5), train(whole, 5));
    EXPECT_TRUE(std::ranges::equal(resumed.parameters(), whole.parameters()));
  }
}

TEST(Checkpoint, OfAnotherModelLeavesTheReplicaAsItWas) {
  TemporaryFolder folder;
  Replica one(small_table(3), small_options()), other(small_table(1), small_options());
  train(one, 2);
  save_replica(folder / "r.ckpt", one, {});
  EXPECT_THROW((void)load_replica(folder / "r.ckpt", other), Error);
  // The right model, but a section of the wrong size.
  write_checkpoint(folder / "s.ckpt", other.table().fingerprint(), 3,
                   std::vector<SectionView>{{"parameters", bytes_of("abcd")}});
  EXPECT_THROW((void)load_replica(folder / "s.ckpt", other), Error);
  EXPECT_EQ(other.steps(), 0);
  EXPECT_TRUE(std::ranges::equal(other.parameters(), initial_parameters(small_table(1), 5)));
}

}  // namespace
}  // namespace isthmus::trainer
