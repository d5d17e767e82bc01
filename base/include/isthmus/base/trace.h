#pragma once
// Chrome trace events (chrome://tracing, Perfetto), one file per replica. The format is described at
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
// A background thread writes the events, so that a recording thread only takes a lock and copies. A file cut
// off by a crash is still readable (the format allows a missing closing bracket).

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace isthmus {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  /// Rows of the timeline; each is one "thread" in the viewer.
  enum class Row : std::uint8_t {
    train,
    gpu,  ///< what the GPU worked on, by its own clock
    outer,
    send,
    reduce,
    receive,
    disk_load,
    gpu_transfer,
    writer,
    control
  };

  /// Records nothing.
  Trace() = default;
  /// Opens `file` (truncating) for the replica named `process`. After `max_events` events recording stops and
  /// one event reports it: a two-week run must not fill the disk. If the file cannot be written, nothing is
  /// recorded and `problem` says why: a full disk must not keep a replica out of its run.
  Trace(const std::filesystem::path& file, std::string_view process, std::uint64_t max_events = 200'000);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Why nothing is recorded; empty if events are recorded, or none are meant to be.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// False if events are discarded, so that the caller need not create them.
  [[nodiscard]] bool recording() const { return recording_; }
  /// A finished interval. `args` is a JSON object or empty; it is written unchanged.
  void complete(Row row, std::string_view name, Clock::time_point begin, Clock::time_point end,
                std::string_view args = {});
  /// An interval that may overlap others on its row (a fragment in flight); drawn as its own slice.
  void async(Row row, std::string_view name, std::uint64_t id, Clock::time_point begin, Clock::time_point end,
             std::string_view args = {});
  void instant(Row row, std::string_view name, std::string_view args = {});
  void counter(std::string_view name, double value);
  /// Writes pending events and closes the JSON array.
  void close();

  /// Measures its own lifetime.
  class Scope {
   public:
    Scope(Trace& trace, Row row, std::string_view name, std::string args = {})
        : trace_(trace), row_(row), name_(name), args_(std::move(args)), begin_(Clock::now()) {}
    ~Scope() { trace_.complete(row_, name_, begin_, Clock::now(), args_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Trace& trace_;
    Row row_;
    std::string name_, args_;
    Clock::time_point begin_;
  };

 private:
  void push(const std::string& events, std::uint64_t count = 1);
  void write_loop();
  [[nodiscard]] std::string head(char phase, Row row, std::string_view name, Clock::time_point at) const;

  std::ofstream file_;
  std::string problem_;
  std::uint32_t process_id_ = 0;
  std::atomic<bool> recording_ = false;  // read without the lock, so that a disabled trace costs nothing
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string pending_;
  std::uint64_t left_ = 0, dropped_ = 0;
  bool closing_ = false;
  std::thread writer_;
};

}  // namespace isthmus
