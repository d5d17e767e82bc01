#pragma once
// What a verb prints with --json: one document on standard output, and nothing else there, whatever it and
// the libraries under it say besides.

#include <nlohmann/json.hpp>

namespace isthmus::app {

class JsonOutput {
 public:
  /// With `wanted`, standard output is standard error from here on until this is gone. Without, nothing is
  /// changed, and `print` does nothing. Make it before any thread that may print.
  explicit JsonOutput(bool wanted);
  ~JsonOutput();
  JsonOutput(const JsonOutput&) = delete;
  JsonOutput& operator=(const JsonOutput&) = delete;

  [[nodiscard]] bool wanted() const { return standard_output_ >= 0; }
  /// The document; once. Text that is no UTF-8 is replaced. Throws Error(data) where it cannot be written.
  void print(const nlohmann::ordered_json& document);

 private:
  int standard_output_ = -1;  ///< as it was
};

}  // namespace isthmus::app
