// safetensors files, read by a reader of its own (read_safetensors.py).

#include <bit>
#include <cstdio>
#include <limits>
#include <memory>

#include "isthmus/outer_sync/log/safetensors.h"
#include "log_support.h"

namespace isthmus::outer_sync::log {
namespace {

/// What the reader prints, and its exit status.
std::pair<std::string, int> read_with_python(const std::filesystem::path& file) {
  const auto command =
      std::string(ISTHMUS_PYTHON) + " -B " + ISTHMUS_READER + " '" + file.string() + "' 2>&1";
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
  EXPECT_THAT(files_in(folder.path(), ""), testing::SizeIs(1)) << "no temporary file stays";
}

TEST(Safetensors, RefuseTwoTensorsOfOneName) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1};
  const auto write = [&](const std::string& second) {
    write_safetensors(folder / "m", std::vector<TensorView>{{"a", {1}, values}, {second, {1}, values}}, {});
  };
  expect_error([&] { write("a"); }, ErrorKind::data, {"second tensor a"});
  expect_error([&] { write("__metadata__"); }, ErrorKind::data, {"second tensor __metadata__"});
  expect_error([&] { write_safetensors(folder / "none/m", {}, {}); }, ErrorKind::data,
               {"cannot open", "none/m.partial"});
  EXPECT_THAT(files_in(folder.path(), ""), testing::SizeIs(0));
}

}  // namespace
}  // namespace isthmus::outer_sync::log
