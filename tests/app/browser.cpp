#include "browser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>

#include "command.h"

namespace isthmus {
namespace {

std::string from_base64(const std::string& text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    const auto digit = digits.find(c);
    if (digit == digits.npos) break;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    out.push_back(static_cast<char>(bits >> have & 0xff));
  }
  return out;
}

}  // namespace

const char* const report_function = R"(
const report = (value) => {
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value))));
  document.body.append(pre);
};)";

nlohmann::json seen_in_browser(const TemporaryFolder& folder, const std::string& url, int width,
                               const std::vector<std::string>& flags) {
  std::vector<std::string> words = {"/usr/bin/chromium",
                                    "--headless",
                                    "--no-sandbox",
                                    "--disable-gpu",
                                    "--disable-dev-shm-usage",
                                    "--no-first-run",
                                    "--user-data-dir=" + (folder / "browser").string(),
                                    "--enable-logging=stderr",
                                    "--window-size=" + std::to_string(width) + ",2000",
                                    "--dump-dom"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(url);
  const auto result = run_command(words, folder / "chromium.log");
  EXPECT_EQ(result.status, 0) << result.report() << "\nno Chromium? scripts/setup.sh --tests installs it";
  EXPECT_THAT(result.output, ::testing::Not(::testing::HasSubstr("CONSOLE")))
      << "the browser's console has messages";
  const std::string mark = "<pre id=\"seen\">";
  const auto at = result.output.find(mark);
  if (at == std::string::npos) {
    ADD_FAILURE() << "the page's scripts did not finish" << result.report();
    return {};
  }
  return nlohmann::json::parse(from_base64(result.output.substr(at + mark.size())));
}

void expect_usable_by_everyone(const TemporaryFolder& folder, const std::string& url,
                               const std::string& ready, int quiet) {
  const auto result =
      run_command({python_program, "-B", std::string(source_folder) + "/tests/support/page_check.py", url,
                   "--ready", ready, "--quiet", std::to_string(quiet)},
                  folder / "page_check.log");
  EXPECT_EQ(result.status, 0) << url << ":\n" << result.output;
}

}  // namespace isthmus
