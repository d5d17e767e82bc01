#pragma once
// Messages between `launch` and a site's agent: JSON, one message per line. Both sides treat input as
// untrusted: lines are bounded, and the fields of a message are checked. A life is one start of a process,
// counted by the launch; the agent's first message lists the processes that already run.
//
//   agent    {"tether": 3, "folder": "/home/me/runs", "cores": 64, "gpus": ["0", "1"], "build": "...",
//             "processes": [{"name": "eu-1", "life": 1}, {"name": "eu-2", "life": 1, "status": 4}], "port":
//             7000, "run_goes_on": true}       the coordinator will be restarted
//   launch   {"do": "write", "path": "two-sites/eu.yaml", "text": "...", "secret": false}
//   launch   {"do": "ready"}
//   agent    {"ready": true}
//   launch   {"do": "start", "name": "eu-1", "life": 1, "folder": "two-sites/eu-1", "arguments": [...],
//             "environment": [...], "coordinator": false}
//   agent    {"output": "eu-1", "text": "..."}     {"begun": "eu-1"}     {"port": 7000}
//   launch   {"do": "alive"}     {"do": "signal", "name": "eu-1", "number": 2}
//   agent    {"ended": "eu-1", "life": 1, "status": 0}     {"failed": "cannot write ..."}
//   agent    {"replaced": true}                     another launch has connected
//   launch   {"do": "leave"}                        the agent ends what runs, and itself

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace isthmus::app {

using Message = nlohmann::json;

inline constexpr int tether_protocol = 3;
/// Large enough for a config or a certificate; a longer line ends the connection.
inline constexpr std::size_t max_message_bytes = std::size_t{4} << 20;

/// Ends with a newline. Invalid UTF-8 is replaced.
[[nodiscard]] std::string line_of(const Message& message);
/// nullopt if the line is not a JSON object.
[[nodiscard]] std::optional<Message> message_of(std::string_view line);

/// Fields of a message; empty, false or `otherwise` if the field is missing or of another type.
[[nodiscard]] std::string text_in(const Message& message, const char* field);
[[nodiscard]] bool flag_in(const Message& message, const char* field);
[[nodiscard]] std::int64_t number_in(const Message& message, const char* field, std::int64_t otherwise);
[[nodiscard]] std::vector<std::string> texts_in(const Message& message, const char* field);

/// Splits a stream of bytes into lines.
class LineBuffer {
 public:
  void add(std::string_view bytes) { text_.append(bytes); }
  [[nodiscard]] std::optional<std::string> next();
  /// Bytes of the incomplete last line.
  [[nodiscard]] std::size_t pending() const { return text_.size() - begin_; }
  [[nodiscard]] std::string rest();

 private:
  std::string text_;
  std::size_t begin_ = 0;
};

}  // namespace isthmus::app
