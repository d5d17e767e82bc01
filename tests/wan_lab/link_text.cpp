#include "link_text.h"

namespace isthmus::wan_lab {
namespace {

void set_key(LinkSettings& settings, const std::string& key, std::string_view value) {
  const auto time = [&] {
    const auto t = number<Nanoseconds>(value);
    if (t < 0) throw std::invalid_argument(fmt::format("{}: must not be negative", key));
    return t;
  };
  if (key == "rate") {
    settings.bits_per_second = number<std::uint64_t>(value);
    if (settings.bits_per_second == 0)
      throw std::invalid_argument("rate: must not be 0; cut the link instead");
  } else if (key == "delay") {
    settings.delay = time();
  } else if (key == "jitter") {
    settings.jitter = time();
  } else if (key == "queue") {
    settings.queue = time();
    settings.queue_bytes = 0;
  } else if (key == "queue_bytes") {
    settings.queue_bytes = number<std::uint64_t>(value);
    settings.queue = 0;
  } else if (key == "loss") {
    settings.loss = number<double>(value);
    if (!(settings.loss >= 0 && settings.loss <= 1)) throw std::invalid_argument("loss: must be in [0, 1]");
  } else if (key == "cut") {
    settings.cut = number<int>(value) != 0;
  } else {
    throw std::invalid_argument(fmt::format("unknown key '{}'", key));
  }
}

std::string count_text(const char* name, const Count& count) {
  return fmt::format(" {0}_packets={1} {0}_bytes={2}", name, count.packets, count.bytes);
}

}  // namespace

LinkSettings changed(LinkSettings settings, std::istringstream& words) {
  for (std::string word; words >> word;) {
    const auto at = word.find('=');
    if (at == std::string::npos) throw std::invalid_argument(fmt::format("'{}' is not KEY=VALUE", word));
    set_key(settings, word.substr(0, at), std::string_view(word).substr(at + 1));
  }
  return settings;
}

std::string link_text(const Link& link, Nanoseconds time) {
  const auto& s = link.settings();
  const auto& c = link.counters;
  return fmt::format("rate={} delay={} jitter={} queue={} queue_bytes={} loss={} cut={:d} backlog={}",
                     s.bits_per_second, s.delay, s.jitter, s.queue, s.queue_bytes, s.loss, s.cut,
                     link.backlog(time)) +
         count_text("entered", c.entered) + count_text("queue_drops", c.queue_drops) +
         count_text("losses", c.losses) + count_text("cut_drops", c.cut_drops) +
         count_text("nat_drops", c.nat_drops) + count_text("delivered", c.delivered);
}

}  // namespace isthmus::wan_lab
