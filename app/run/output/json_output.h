#pragma once
// Output of a command with --json: one document on standard output. All else that the command and its
// libraries print goes to standard error.

#include <nlohmann/json.hpp>

namespace isthmus::app {

class JsonOutput {
 public:
  /// If `wanted`, redirects standard output to standard error until destruction. Otherwise neither this nor
  /// `print` does anything. Create it before any thread that may print.
  explicit JsonOutput(bool wanted);
  ~JsonOutput();
  JsonOutput(const JsonOutput&) = delete;
  JsonOutput& operator=(const JsonOutput&) = delete;

  [[nodiscard]] bool wanted() const { return standard_output_ >= 0; }
  /// Prints the document; call it once. Invalid UTF-8 is replaced. Throws Error(data) on a write error.
  void print(const nlohmann::ordered_json& document);

 private:
  int standard_output_ = -1;  ///< the original one
};

}  // namespace isthmus::app
