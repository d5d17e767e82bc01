#include "launch/agent/agent_messages.h"

namespace isthmus::app {

std::string line_of(const Message& message) {
  return message.dump(-1, ' ', false, Message::error_handler_t::replace) + "\n";
}

std::optional<Message> message_of(std::string_view line) {
  if (!line.starts_with('{')) return std::nullopt;
  auto message = Message::parse(line, nullptr, false);
  if (!message.is_object()) return std::nullopt;
  return message;
}

std::string text_in(const Message& message, const char* field) {
  const auto found = message.find(field);
  return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool flag_in(const Message& message, const char* field) {
  const auto found = message.find(field);
  return found != message.end() && found->is_boolean() && found->get<bool>();
}

std::int64_t number_in(const Message& message, const char* field, std::int64_t otherwise) {
  const auto found = message.find(field);
  return found != message.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
}

std::vector<std::string> texts_in(const Message& message, const char* field) {
  std::vector<std::string> texts;
  const auto found = message.find(field);
  if (found == message.end() || !found->is_array()) return texts;
  for (const auto& item : *found) {
    if (item.is_string()) texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::optional<std::string> LineBuffer::next() {
  const auto end = text_.find('\n', begin_);
  if (end == std::string::npos) {
    text_.erase(0, std::exchange(begin_, 0));
    return std::nullopt;
  }
  auto line = text_.substr(begin_, end - begin_);
  begin_ = end + 1;
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

std::string LineBuffer::rest() {
  auto rest = text_.substr(begin_);
  text_.clear();
  begin_ = 0;
  return rest;
}

}  // namespace isthmus::app
