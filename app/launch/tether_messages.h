#pragma once
// What `launch` and a site's agent say to each other: JSON, one message a line. Each reads what it gets as a
// stranger's: lines are bounded, and a message is a map whose fields are what they must be. A life is one
// start of a process, as the launch counts; what runs when a launch connects is in the agent's first message.
//
//   agent    {"tether": 3, "folder": "/home/me/runs", "cores": 64, "gpus": ["0", "1"], "build": "...",
//             "processes": [{"name": "eu-1", "life": 1}, {"name": "eu-2", "life": 1, "status": 4}], "port":
//             7000, "run_goes_on": true}       of a coordinator that is to be started again
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
/// A config or a certificate fits; a line that is longer ends the connection.
inline constexpr std::size_t longest_message = std::size_t{4} << 20;

/// With a line's end. Bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string line_of(const Message& message);
/// Nothing for what is no map.
[[nodiscard]] std::optional<Message> message_of(std::string_view line);

/// A field; empty, false or the other value where it is not there or is something else.
[[nodiscard]] std::string text_in(const Message& message, const char* field);
[[nodiscard]] bool flag_in(const Message& message, const char* field);
[[nodiscard]] std::int64_t number_in(const Message& message, const char* field, std::int64_t otherwise);
[[nodiscard]] std::vector<std::string> texts_in(const Message& message, const char* field);

/// Bytes as they come, lines as they are whole.
class LineBuffer {
 public:
  void add(std::string_view bytes) { text_.append(bytes); }
  [[nodiscard]] std::optional<std::string> next();
  /// What is there of a line that is not whole.
  [[nodiscard]] std::size_t pending() const { return text_.size() - begin_; }
  [[nodiscard]] std::string rest();

 private:
  std::string text_;
  std::size_t begin_ = 0;
};

}  // namespace isthmus::app
