#include "cli/files/trace_summary.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "isthmus/base/error.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"

namespace isthmus::app {
namespace {

struct Event {
  std::string phase, name, label;  ///< label: args.name
  double begin = 0, duration = 0;  ///< microseconds
  std::int64_t row = 0;
};

struct Interval {
  double begin, end;  ///< microseconds
};
/// An interval in which the training thread waits, and the total that gets a GPU's idle time in it.
struct Wait {
  Interval when;
  double DeviceTotals::*why;
};

/// `busy` and `waits` must be in order of time.
DeviceTotals device_totals(std::span<const Interval> busy, std::span<const Wait> waits) {
  DeviceTotals out;
  const auto idle = [&](Interval gap) {
    double known = 0;
    while (!waits.empty() && waits.front().when.end <= gap.begin) waits = waits.subspan(1);
    for (const auto& [when, why] : waits) {
      if (when.begin >= gap.end) break;
      const double part = (std::min(gap.end, when.end) - std::max(gap.begin, when.begin)) / 1e6;
      known += part;
      out.*why += part;
    }
    out.idle_otherwise += (gap.end - gap.begin) / 1e6 - known;
  };
  double until = busy.front().begin;
  for (const auto& [begin, end] : busy) {
    if (begin > until) idle({until, begin});
    out.busy += std::max(0.0, end - std::max(begin, until)) / 1e6;
    until = std::max(until, end);
  }
  out.seconds = (until - busy.front().begin) / 1e6;
  return out;
}

/// Keeps only the needed parts of each event while it reads the file.
class Events : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t n) override { return number(static_cast<double>(n)); }
  bool number_unsigned(number_unsigned_t n) override { return number(static_cast<double>(n)); }
  bool number_float(number_float_t n, const string_t&) override { return number(n); }
  bool string(string_t& text) override {
    if (depth_ == 2 && key_ == "ph") event_.phase = text;
    if (depth_ == 2 && key_ == "name") event_.name = text;
    if (depth_ == 3 && key_ == "name") event_.label = text;
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return deeper(); }
  bool end_array() override { return shallower(); }
  bool start_object(std::size_t) override {
    if (depth_ == 1) event_ = {};
    return deeper();
  }
  bool end_object() override {
    if (depth_ == 2) take();
    return shallower();
  }
  bool key(string_t& text) override {
    key_ = text;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    failed = true;
    return false;
  }

  TraceSummary finish() {
    if (!on_device_.empty()) summary.device = device_totals(on_device_, waits_);
    return std::move(summary);
  }

  TraceSummary summary;
  std::uint64_t seen = 0;
  bool failed = false, too_deep = false;

 private:
  bool number(double n) {
    if (depth_ != 2) return true;
    if (key_ == "ts") event_.begin = n;
    if (key_ == "dur") event_.duration = n;
    // Trace writes only row numbers in this range.
    if (key_ == "tid") event_.row = n >= 0 && n < 1e6 ? static_cast<std::int64_t>(n) : -1;
    return true;
  }
  bool deeper() {
    too_deep = ++depth_ > 64;
    return !too_deep;
  }
  bool shallower() {
    --depth_;
    return true;
  }

  void take() {
    ++seen;
    if (event_.phase == "M" && event_.name == "process_name") summary.process = event_.label;
    if (event_.phase == "M" && event_.name == "thread_name") rows_[event_.row] = event_.label;
    if (event_.phase != "X") return;
    const auto& row = rows_[event_.row];
    first_ = std::min(first_, event_.begin);
    last_ = std::max(last_, event_.begin + event_.duration);
    summary.seconds = (last_ - first_) / 1e6;
    const Interval when{event_.begin, event_.begin + event_.duration};
    const bool is_outer_wait = row == "train" && event_.name == "outer_wait";
    if (row == "gpu") on_device_.push_back(when);
    if (row == "train" && event_.name == "gpu_queue_wait")
      waits_.push_back({when, &DeviceTotals::idle_for_data});
    if (is_outer_wait && before_ == "train") {
      waits_.push_back({when, &DeviceTotals::idle_before_optimizer});
      return add(summary.before_optimizer);
    }
    if (is_outer_wait) waits_.push_back({when, &DeviceTotals::idle_for_outer_loop});
    add(summary.totals[{row, event_.name}]);
    if (row == "train") before_ = event_.name;
  }
  void add(TraceTotal& total) const {
    ++total.count;
    total.seconds += event_.duration / 1e6;
    total.longest = std::max(total.longest, event_.duration / 1e6);
  }

  int depth_ = 0;
  std::string key_;
  Event event_;
  std::map<std::int64_t, std::string> rows_;
  std::vector<Interval> on_device_;
  std::vector<Wait> waits_;
  std::string before_;  ///< the training row's last event, without outer_wait
  double first_ = std::numeric_limits<double>::infinity(), last_ = 0;
};

TraceTotal total_of(const TraceSummary& trace, const char* row, const char* name) {
  const auto found = trace.totals.find({row, name});
  return found == trace.totals.end() ? TraceTotal{} : found->second;
}

std::string duration(double seconds) {
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.0f} us", 1e6 * seconds);
}

void print_total(const std::string& what, const TraceTotal& total, double seconds) {
  fmt::print("  {:<29} {:>9} {:>6.2f} % {:>7} x  longest {}\n", short_name(what, 29), duration(total.seconds),
             seconds > 0 ? 100 * total.seconds / seconds : 0, total.count, duration(total.longest));
}

/// The training thread does one thing at a time, so computing, waiting and the rest add up to its time.
void print_training(const TraceSummary& trace) {
  struct Part {
    const char* what;
    TraceTotal total;
  };
  const std::array parts = {
      Part{"forward and backward", total_of(trace, "train", "train")},
      Part{"inner optimizer", total_of(trace, "train", "inner_step")},
      Part{"encode and apply (outer)", total_of(trace, "outer", "encode")},
      Part{"WAITED for data", total_of(trace, "train", "gpu_queue_wait")},
      Part{"WAITED before the optimizer", trace.before_optimizer},
      Part{"WAITED for Gloo's all-reduce", total_of(trace, "train", "all_reduce")},
      Part{"WAITED for the outer loop", total_of(trace, "train", "outer_wait")},
      Part{"evaluation", total_of(trace, "train", "evaluate")},
      Part{"copy for a checkpoint", total_of(trace, "train", "checkpoint")},
      Part{"WAITED for a checkpoint", total_of(trace, "train", "checkpoint_wait")},
  };
  double sum = 0;
  for (auto part : parts) {
    if (part.what == parts[2].what) {
      for (const auto* name : {"apply", "encode exchange", "average pair"}) {
        const auto more = total_of(trace, "outer", name);
        part.total = {part.total.count + more.count, part.total.seconds + more.seconds,
                      std::max(part.total.longest, more.longest)};
      }
    }
    sum += part.total.seconds;
    if (part.total.count > 0) print_total(part.what, part.total, trace.seconds);
  }
  const auto rest = std::max(0.0, trace.seconds - sum);
  fmt::print("  {:<29} {:>9} {:>6.2f} %\n", "the rest", duration(rest),
             trace.seconds > 0 ? 100 * rest / trace.seconds : 0);
}

void print_device(const DeviceTotals& device) {
  const auto part = [&](const char* what, double seconds) {
    fmt::print("  {:<29} {:>9} {:>6.2f} %\n", what, duration(seconds),
               device.seconds > 0 ? 100 * seconds / device.seconds : 0);
  };
  fmt::print("\nthe GPU\n");
  part("at work", device.busy);
  part("IDLE for data", device.idle_for_data);
  part("IDLE before the optimizer", device.idle_before_optimizer);
  part("IDLE for the outer loop", device.idle_for_outer_loop);
  part("idle for the host's own work", device.idle_otherwise);
}

void print_others(const TraceSummary& trace) {
  for (const auto& [key, total] : trace.totals) {
    const auto& [row, name] = key;
    if (row == "train" || row == "outer" || row == "gpu") continue;
    print_total(row == name ? row : row + ": " + name, total, trace.seconds);
  }
}

nlohmann::ordered_json trace_json(const TraceSummary& trace) {
  const auto part = [](const TraceTotal& total) {
    return nlohmann::ordered_json{
        {"seconds", total.seconds}, {"count", total.count}, {"longest_seconds", total.longest}};
  };
  auto totals = nlohmann::ordered_json::array();
  for (const auto& [key, total] : trace.totals) {
    auto json = part(total);
    json["row"] = key.first;
    json["name"] = key.second;
    totals.push_back(std::move(json));
  }
  nlohmann::ordered_json out = {{"process", trace.process},
                                {"seconds", trace.seconds},
                                {"cut_off", trace.cut_off},
                                {"outer_wait_before_optimizer", part(trace.before_optimizer)},
                                {"totals", totals}};
  if (const auto& device = trace.device) {
    out["gpu"] = {{"seconds", device->seconds},
                  {"busy_seconds", device->busy},
                  {"idle_for_data_seconds", device->idle_for_data},
                  {"idle_before_optimizer_seconds", device->idle_before_optimizer},
                  {"idle_for_outer_loop_seconds", device->idle_for_outer_loop},
                  {"idle_otherwise_seconds", device->idle_otherwise}};
  }
  return out;
}

}  // namespace

TraceSummary read_trace(std::istream& in, const std::string& name) {
  Events events;
  nlohmann::json::sax_parse(in, &events, nlohmann::json::input_format_t::json, false);
  if (events.seen == 0 || events.too_deep) {
    throw Error(ErrorKind::data, name +
                                     ": not a trace; expected a JSON array of trace events, as a replica "
                                     "writes them to trace.json");
  }
  // A process that was killed leaves its array open, which is not an error.
  events.summary.cut_off = events.failed;
  return events.finish();
}

int run_trace_summary(const std::filesystem::path& file, bool as_json) {
  JsonOutput json(as_json);
  std::ifstream in(file, std::ios::binary);
  // Opening a folder succeeds.
  if (!in || std::filesystem::is_directory(file))
    throw Error(ErrorKind::data, file.string() + ": cannot be read");
  const auto trace = read_trace(in, file.string());
  fmt::print("{}: {} from the first event to the last{}\n\n", trace.process, duration(trace.seconds),
             trace.cut_off ? "; the file is incomplete" : "");
  fmt::print("the training thread\n");
  print_training(trace);
  if (trace.device) print_device(*trace.device);
  fmt::print("\nthe other threads, meanwhile\n");
  print_others(trace);
  json.print(trace_json(trace));
  return 0;
}

void add_trace(CommandLine& commands) {
  struct Flags {
    std::filesystem::path file;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  auto* verb = commands.app().add_subcommand(
      "trace", "show where a replica's time went: computing, or waiting and for what");
  verb->add_option("file", flags->file, "trace.json of a replica")->required();
  verb->footer("Example: isthmus trace runs/quickstart/replica-0/trace.json");
  add_json(*verb, flags->json);
  commands.on(*verb, [flags] { return run_trace_summary(flags->file, flags->json); });
}

}  // namespace isthmus::app
