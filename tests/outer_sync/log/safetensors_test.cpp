// safetensors files, read by an independent reader (read_safetensors.py).

#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "isthmus/outer_sync/log/safetensors.h"
#include "log_support.h"
#include "paths.h"

namespace isthmus::outer_sync::log {
namespace {

/// The reader's output and exit status.
std::pair<std::string, int> read_with_python(const std::filesystem::path& file) {
  const auto command = std::string(python_program) + " -B '" + source_folder +
                       "/tests/outer_sync/log/read_safetensors.py' '" + file.string() + "' 2>&1";
  auto* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {"cannot start " + command, -1};
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output.push_back(static_cast<char>(c));
  return {output, ::pclose(pipe)};
}

TEST(Safetensors, AreReadByAnother) {
  const TemporaryFolder folder;
  const std::vector<float> matrix = {1.0F, -0.0F, std::numeric_limits<float>::denorm_min(),
                                     0.1F, -2.5F, 3e38F};
  const std::vector<float> vector = {7.0F};
  for (const std::string run : {"r", "ru", "run", "a \"quoted\"\n name", "\xff not UTF-8"}) {  // and paddings
    const auto file = folder / "model.safetensors";
    const std::vector<TensorView> tensors = {
        {"model.b.weight", {2, 3}, matrix}, {"model.a.weight", {1}, vector}, {"scalar", {}, vector}};
    write_safetensors(file, tensors, {{"run", run}, {"rounds", "5 5 4"}});
    const auto [output, status] = read_with_python(file);
    EXPECT_EQ(status, 0) << output;
    EXPECT_THAT(output, testing::HasSubstr(R"({"format": "pt", "rounds": "5 5 4", "run": )"));
    EXPECT_THAT(output, testing::HasSubstr(
                            "model.b.weight [2, 3] 3f800000 80000000 00000001 3dcccccd c0200000 7f61b1e6\n"
                            "model.a.weight [1] 40e00000\n"
                            "scalar [] 40e00000\n"));
  }
  EXPECT_THAT(files_in(folder.path(), ""), testing::SizeIs(1)) << "no temporary file may remain";
}

TEST(Safetensors, RefuseTwoTensorsOfOneName) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1};
  const auto write = [&](const std::string& second) {
    write_safetensors(folder / "m", std::vector<TensorView>{{"a", {1}, values}, {second, {1}, values}}, {});
  };
  expect_error([&] { write("a"); }, ErrorKind::data, {"second tensor named a"});
  expect_error([&] { write("__metadata__"); }, ErrorKind::data, {"second tensor named __metadata__"});
  expect_error([&] { write_safetensors(folder / "none/m", {}, {}); }, ErrorKind::data,
               {"cannot open", "none/m.partial"});
  EXPECT_THAT(files_in(folder.path(), ""), testing::SizeIs(0));
}

/// Writes a file with this header (with its true length unless another is given) and this many bytes of data,
/// all 0x3f.
std::filesystem::path write_file(const TemporaryFolder& folder, const std::string& header, std::size_t data,
                                 std::optional<std::uint64_t> length = std::nullopt) {
  const std::uint64_t claimed = length.value_or(header.size());
  std::string bytes(reinterpret_cast<const char*>(&claimed), sizeof claimed);
  return folder.write("m.safetensors", bytes + header + std::string(data, '\x3f'));
}

TEST(SafetensorsFile, ReadsWhatIsWrittenAndHalfPrecision) {
  const TemporaryFolder folder;
  const std::vector<float> matrix = {1.0F, -0.0F, std::numeric_limits<float>::denorm_min(),
                                     0.1F, -2.5F, 3e38F};
  const std::vector<float> scalar = {7.0F};
  write_safetensors(folder / "m", std::vector<TensorView>{{"b", {2, 3}, matrix}, {"a", {}, scalar}}, {});
  const SafetensorsFile file(folder / "m");
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.tensors()[1].elements, 1U);
  std::vector<float> values(6);
  file.read(file.tensors()[0], values);
  EXPECT_EQ(std::memcmp(values.data(), matrix.data(), 24), 0);

  const std::string header = R"({"h": {"dtype": "F16", "shape": [5], "data_offsets": [0, 10]},
      "b": {"dtype": "BF16", "shape": [1], "data_offsets": [10, 12]}})";
  const std::vector<std::uint16_t> halves = {0x3c00, 0xc100, 0x0001, 0x7bff, 0x8000, 0xc020};
  const std::uint64_t length = header.size();
  const auto half =
      folder.write("h", std::string(reinterpret_cast<const char*>(&length), 8) + header +
                            std::string(reinterpret_cast<const char*>(halves.data()), halves.size() * 2));
  const SafetensorsFile other(half);
  std::vector<float> five(5), one(1);
  other.read(other.tensors()[0], five);
  other.read(other.tensors()[1], one);
  EXPECT_THAT(five, testing::ElementsAre(1.0F, -2.5F, 0x1p-24F, 65504.0F, -0.0F));
  EXPECT_THAT(one, testing::ElementsAre(-2.5F));
}

TEST(SafetensorsFile, Bf16IsRoundedToTheNearestAndTiesToEven) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1.0F,          -0.0F,       0x1.01p0F, 0x1.03p0F,
                                     0x1.010002p0F, 0x1.feffp0F, 0.1F,      1e-45F};
  write_safetensors(folder / "m",
                    std::vector<TensorView>{{"a", {2, 4}, values}, {"b", {1}, {values.data(), 1}}},
                    {{"by", "us"}}, ValueType::bf16);
  const SafetensorsFile file(folder / "m");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"by", "us"}, {"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].dtype, "BF16");
  std::vector<float> read(8);
  file.read(file.tensors()[0], read);
  EXPECT_THAT(read,
              testing::ElementsAre(1.0F, -0.0F, 1.0F, 0x1.04p0F, 0x1.02p0F, 0x1.fep0F, 0x1.9ap-4F, 0.0F));
  const std::vector<float> wrong = {std::numeric_limits<float>::quiet_NaN(), 3.4e38F};
  write_safetensors(folder / "w", std::vector<TensorView>{{"a", {2}, wrong}}, {}, ValueType::bf16);
  const auto bytes = read_all(folder / "w");
  std::uint16_t nan = 0, beyond = 0;
  std::memcpy(&nan, bytes.data() + bytes.size() - 4, 2);
  std::memcpy(&beyond, bytes.data() + bytes.size() - 2, 2);
  EXPECT_EQ(nan, 0x7fc0);
  EXPECT_EQ(beyond, 0x7f80) << "infinite, as in PyTorch";
}

TEST(SafetensorsFile, RefusesAHeaderThatLies) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::filesystem::path& file, const std::string& reason) {
    expect_error([&] { SafetensorsFile{file}; }, ErrorKind::data, {"m.safetensors", reason});
  };
  const std::string good = R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  const auto with = [&](const std::string& more, std::size_t data) {
    return write_file(folder, "{" + good + more + "}", data);
  };
  EXPECT_NO_THROW(SafetensorsFile{with("", 8)});
  refused(folder.write("m.safetensors", "1234567"), "it has 7 bytes");
  refused(write_file(folder, "{}", 0, std::uint64_t{1} << 62),
          "claims 4611686018427387904 bytes; expected at");
  refused(write_file(folder, "{}", 0, 3), "claims 3 bytes; expected at most 2");
  refused(write_file(folder, "{\"a\": 3", 0), "not JSON");
  refused(write_file(folder, "[]", 0), "not a JSON object");
  refused(write_file(folder, "{\"a\": [[[[[[[1]]]]]]]}", 0), "nested too deep");
  refused(with(", " + good, 8), "\"a\" occurs twice");
  refused(with("", 7), "its tensors have 8 bytes, and 7 follow");
  refused(with("", 9), "its tensors have 8 bytes, and 9 follow");
  const auto second = [&](const std::string& entry) { return with(", \"b\": " + entry, 16); };
  refused(second(R"({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]})"), "begins at 4; expected 8");
  refused(second(R"({"dtype": "F32", "shape": [2], "data_offsets": [12, 20]})"), "begins at 12; expected 8");
  refused(second(R"({"dtype": "F32", "shape": [3], "data_offsets": [8, 16]})"), "has 8 bytes of data");
  refused(second(R"({"dtype": "F31", "shape": [2], "data_offsets": [8, 16]})"), "has dtype \"F31\"");
  refused(second(R"({"dtype": 3, "shape": [2], "data_offsets": [8, 16]})"), "\"b\" has no dtype");
  refused(second(R"({"dtype": "F32", "shape": [-2], "data_offsets": [8, 16]})"), "\"b\" has no shape");
  refused(second(R"({"dtype": "F32", "shape": [2.5], "data_offsets": [8, 16]})"), "\"b\" has no shape");
  refused(second(R"({"dtype": "F32", "shape": [2], "data_offsets": [16, 8]})"), "has no data_offsets");
  refused(second(R"({"dtype": "F32", "shape": [4294967296, 4294967296, 4], "data_offsets": [8, 16]})"),
          "has 8 bytes of data");
  refused(second("7"), "\"b\" has no dtype");
}

TEST(SafetensorsFile, RefusesValuesThatAreNotFiniteAndOtherTypes) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, std::numeric_limits<float>::quiet_NaN()};
  write_safetensors(folder / "m", std::vector<TensorView>{{"a", {3}, values}}, {});
  const SafetensorsFile file(folder / "m");
  std::vector<float> out(3);
  expect_error([&] { file.read(file.tensors()[0], out); }, ErrorKind::data,
               {"tensor \"a\" has a value that is not finite, element 2"});
  const SafetensorsFile whole(
      write_file(folder, R"({"a": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}})", 12));
  expect_error([&] { whole.read(whole.tensors()[0], out); }, ErrorKind::data,
               {"dtype I32; expected F32, F16 or BF16"});
}

}  // namespace
}  // namespace isthmus::outer_sync::log
