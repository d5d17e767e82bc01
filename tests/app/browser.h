#pragma once
// A headless browser that opens a page with a probe: a script of the page that looks at it from inside.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace isthmus {

/// JavaScript: a function report(value) that leaves a JSON value for `seen_in_browser`.
extern const char* const report_function;

/// Opens `url` in a window of this width and returns the value that its probe reports; null without one.
/// Fails the test if the browser's console is not silent.
[[nodiscard]] nlohmann::json seen_in_browser(const TemporaryFolder& folder, const std::string& url, int width,
                                             const std::vector<std::string>& flags = {});

/// Fails the test if a screen reader, a keyboard, a large font or a reader without colours would have
/// problems with the page (tests/support/page_check.py). `ready`: JavaScript that is true once the page is
/// complete. For `quiet` seconds nothing may be read out, although the page follows changes.
void expect_usable_by_everyone(const TemporaryFolder& folder, const std::string& url,
                               const std::string& ready = "true", int quiet = 0);

}  // namespace isthmus
