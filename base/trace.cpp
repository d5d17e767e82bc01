#include "isthmus/base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/base/hash.h"

namespace isthmus {

namespace {

// A disk that stalls for seconds must neither block the training thread nor fill the memory.
constexpr std::size_t max_pending_bytes = std::size_t{8} << 20;
constexpr auto write_every = std::chrono::milliseconds(200);

constexpr std::array<std::string_view, 10> row_names = {
    "train", "gpu", "outer", "send", "reduce", "receive", "disk_load", "gpu_transfer", "writer", "control"};

std::string quoted(std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  if (plain) return fmt::format("\"{}\"", text);
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Nanoseconds as microseconds with three decimals: a double would lose the last digits of a long uptime.
std::string microseconds(Trace::Clock::duration time) {
  const auto ns =
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

std::string args_member(std::string_view args) {
  return args.empty() ? std::string() : fmt::format(R"(,"args":{})", args);
}

// Files of several replicas are often merged into one view, where equal process ids would merge their rows.
std::uint32_t process_id_of(std::string_view name) {
  const auto digest = Hasher().update(name).finish();
  const std::uint32_t id =
      (digest.bytes[0] | digest.bytes[1] << 8 | static_cast<std::uint32_t>(digest.bytes[2]) << 16) &
      0x7fffffU;
  return std::max(id, 1U);
}

std::string metadata(std::string_view name, std::uint32_t process, std::size_t row, std::string_view args) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}})", name, process, row, args);
}

std::string preamble(std::string_view process, std::uint32_t id) {
  auto text = "[\n" + metadata("process_name", id, 0, "\"name\":" + quoted(process));
  for (std::size_t row = 0; row < row_names.size(); ++row) {
    text += ",\n" + metadata("thread_name", id, row, fmt::format(R"("name":"{}")", row_names[row]));
    text += ",\n" + metadata("thread_sort_index", id, row, fmt::format(R"("sort_index":{})", row));
  }
  // Timestamps count from the machine's start. This pair of clocks aligns the files of several machines.
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return text + ",\n" +
         metadata("clock_sync", id, 0,
                  fmt::format(R"("unix_us":{},"ts":{})", microseconds(wall),
                              microseconds(Trace::Clock::now().time_since_epoch())));
}

}  // namespace

Trace::Trace(const std::filesystem::path& file, std::string_view process, std::uint64_t max_events)
    : file_(file, std::ios::binary | std::ios::trunc),
      process_id_(process_id_of(process)),
      left_(max_events) {
  file_ << preamble(process, process_id_) << std::flush;
  if (!file_) {
    problem_ = "cannot write the trace " + file.string() + "; nothing is recorded";
    return;
  }
  recording_ = true;
  writer_ = std::thread([this] { write_loop(); });
}

Trace::~Trace() { close(); }

std::string Trace::head(char phase, Row row, std::string_view name, Clock::time_point at) const {
  return fmt::format(R"({{"ph":"{}","name":{},"pid":{},"tid":{},"ts":{})", phase, quoted(name), process_id_,
                     static_cast<int>(row), microseconds(at.time_since_epoch()));
}

void Trace::complete(Row row, std::string_view name, Clock::time_point begin, Clock::time_point end,
                     std::string_view args) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  push(fmt::format(R"({},"dur":{}{}}})", head('X', row, name, begin), microseconds(end - begin),
                   args_member(args)));
}

void Trace::async(Row row, std::string_view name, std::uint64_t id, Clock::time_point begin,
                  Clock::time_point end, std::string_view args) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  // Both ends are pushed at once, so that the limit never separates a pair. The viewer pairs by category and
  // id.
  const auto pair = fmt::format(R"(,"cat":"{}","id":"0x{:x}")", row_names[static_cast<std::size_t>(row)], id);
  push(fmt::format("{}{}{}}},\n{}{}}}", head('b', row, name, begin), pair, args_member(args),
                   head('e', row, name, std::max(begin, end)), pair),
       2);
}

void Trace::instant(Row row, std::string_view name, std::string_view args) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  push(fmt::format(R"({},"s":"t"{}}})", head('i', row, name, Clock::now()), args_member(args)));
}

void Trace::counter(std::string_view name, double value) {
  // JSON cannot express NaN or infinity; a gap in the curve shows the same.
  if (!recording_.load(std::memory_order_relaxed) || !std::isfinite(value)) return;
  push(fmt::format(R"({},"args":{{"value":{}}}}})", head('C', Row::train, name, Clock::now()), value));
}

void Trace::push(const std::string& events, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  if (!recording_) return;
  if (left_ < count) {
    recording_ = false;
    pending_ +=
        ",\n" + head('i', Row::writer, "trace is full: recording stopped", Clock::now()) + R"(,"s":"p"})";
    return;
  }
  if (pending_.size() + events.size() > max_pending_bytes) {
    dropped_ += count;
    return;
  }
  left_ -= count;
  pending_.append(",\n").append(events);
  if (pending_.size() > max_pending_bytes / 2) wake_.notify_one();
}

void Trace::write_loop() {
  std::unique_lock lock(mutex_);
  bool last = false;
  while (!last) {
    wake_.wait_for(lock, write_every, [this] { return closing_ || pending_.size() > max_pending_bytes / 2; });
    last = closing_;
    auto batch = std::exchange(pending_, {});
    if (const auto dropped = std::exchange(dropped_, 0); dropped > 0) {
      batch +=
          fmt::format(",\n{},\"s\":\"p\",\"args\":{{\"events\":{}}}}}",
                      head('i', Row::writer, "events dropped: the disk was too slow", Clock::now()), dropped);
    }
    lock.unlock();
    // A full disk ends the trace, not the run.
    if (!batch.empty()) file_ << batch << std::flush;
    lock.lock();
  }
}

void Trace::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_ || !writer_.joinable()) return;
    recording_ = false;
    closing_ = true;
  }
  wake_.notify_one();
  writer_.join();
  file_ << "\n]\n";
  file_.close();
}

}  // namespace isthmus
