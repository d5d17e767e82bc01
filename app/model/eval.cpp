#include "model/eval.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "model/trained_model.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"
#include "run/output/terminal.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

struct Evaluation {
  trainer::LossSum sum;
  double text_bytes = 0;  ///< length of the predicted tokens' text; 0 if they are not text
};

/// Evaluates each token of a corpus once, except the first of each data set, in consecutive windows. The last
/// window of a set may be shorter.
class WholeCorpus {
 public:
  WholeCorpus(ModelSetup& setup, const Experiment& experiment)
      : setup_(setup),
        seq_len_(static_cast<std::uint64_t>(experiment.data.seq_len)),
        batch_(static_cast<std::uint64_t>(experiment.inner.batch)),
        is_text_(!experiment.data.tokenizer.starts_with("vocab:")),
        width_(setup.corpus.width()),
        host_(setup.hardware.memory->host_buffer(batch_ * (seq_len_ + 1) * width_)),
        buffer_(setup.hardware.memory->device_buffer(batch_ * (seq_len_ + 1) * width_)) {}

  Evaluation evaluate(std::span<const float> parameters) {
    setup_.inference.load(parameters);
    for (const auto& set : setup_.corpus.sets()) targets_ += set.tokens(data::Split::train) - 1;
    for (const auto& set : setup_.corpus.sets()) {
      const auto targets = set.tokens(data::Split::train) - 1;
      for (std::uint64_t at = 0; at < targets;) {
        const auto length = std::min(seq_len_, targets - at);
        const auto rows = std::clamp<std::uint64_t>((targets - at) / seq_len_, 1, batch_);
        add(set, at, rows, length);
        at += rows * length;
        show_progress();
      }
    }
    return all_;
  }

 private:
  /// Only if it takes long.
  void show_progress() {
    const auto elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (!progress_ && elapsed < 3) return;
    if (!progress_) progress_.emplace(stderr, is_terminal(stderr));
    const auto done = static_cast<double>(all_.sum.tokens) / static_cast<double>(targets_);
    progress_->update(format_bar(done, fmt::format("{} of {} tokens, loss {:.4f}, ETA {}",
                                                   format_count(static_cast<double>(all_.sum.tokens)),
                                                   format_count(static_cast<double>(targets_)),
                                                   all_.sum.nats / static_cast<double>(all_.sum.tokens),
                                                   format_duration(elapsed * (1 - done) / done))));
  }

  void add(const data::DataSet& set, std::uint64_t at, std::uint64_t rows, std::uint64_t length) {
    const auto row_bytes = (length + 1) * width_;
    for (std::uint64_t r = 0; r < rows; ++r) {
      auto* row = host_->data() + r * row_bytes;
      set.read(data::Split::train, at + r * length, length + 1, width_, row);
      if (is_text_) all_.text_bytes += text_bytes(row + width_, length);
    }
    buffer_->fill(*host_, rows * row_bytes);
    std::vector<const std::byte*> row_begins;
    for (std::uint64_t r = 0; r < rows; ++r) row_begins.push_back(buffer_->data() + r * row_bytes);
    data::Batch batch;
    batch.rows = row_begins;
    batch.width = width_;
    batch.seq_len = static_cast<std::int64_t>(length);
    batch.together = true;
    const auto sum = setup_.inference.loss(batch);
    buffer_->release();
    all_.sum.nats += sum.nats;
    all_.sum.tokens += sum.tokens;
  }

  [[nodiscard]] double text_bytes(const std::byte* row, std::uint64_t count) const {
    std::vector<std::uint32_t> ids(count);
    for (std::uint64_t i = 0; i < count; ++i)
      std::memcpy(&ids[i], row + i * width_, width_);  // little-endian
    return static_cast<double>(setup_.corpus.tokenizer().decode(ids).size());
  }

  ModelSetup& setup_;
  std::uint64_t seq_len_, batch_;
  bool is_text_;
  std::uint32_t width_;
  std::unique_ptr<data::HostBuffer> host_;
  std::unique_ptr<data::DeviceBuffer> buffer_;
  Evaluation all_;
  std::uint64_t targets_ = 0;
  const Clock::time_point begin_ = Clock::now();
  std::optional<Progress> progress_;
};

Evaluation evaluate(TrainedModel& model, const fs::path& all_of) {
  auto& data = model.experiment.data;
  if (!all_of.empty()) {
    if (data::has_heldout_files(all_of))
      throw Error(ErrorKind::config, "--data " + all_of.string() +
                                         " has files for training and held-out ones; expected one of them, "
                                         "like " +
                                         (all_of / "val.bin").string());
    data.path = fs::absolute(all_of).lexically_normal().string();
    data.mixture.clear();
    data.val_path.clear();
    data.heldout = 0;
  }
  if (data.path.empty() && data.mixture.empty())
    throw Error(ErrorKind::config, "this model comes without a run's held-out text; pass --data PATH");
  ModelSetup setup(model.experiment);
  for (const auto& note : setup.corpus.notes()) fmt::print("{}\n", note);
  if (!all_of.empty()) return WholeCorpus(setup, model.experiment).evaluate(model.parameters);
  if (setup.heldout.sequences() == 0)
    throw Error(ErrorKind::config, "data.heldout is 0, so the run has no held-out text; pass --data PATH");
  const auto sum = setup.evaluate(model.parameters);
  return {sum, setup.bytes_per_token(model.experiment) * static_cast<double>(sum.tokens)};
}

}  // namespace

int run_eval(const EvalRequest& request) {
  JsonOutput json(request.json);
  auto model = load_trained_model(request.model, request.assignments, request.build);
  const auto [sum, text_bytes] = evaluate(model, request.data);
  const double loss = sum.nats / static_cast<double>(sum.tokens);
  nlohmann::ordered_json figures = {
      {"model", model.origin}, {"tokens", sum.tokens}, {"loss", loss}, {"perplexity", std::exp(loss)}};
  std::string text = fmt::format("loss {:.4f} nats per token, perplexity {:.4f}", loss, std::exp(loss));
  if (text_bytes > 0) {
    const double bits = sum.nats / text_bytes / std::numbers::ln2;
    figures["bits_per_byte"] = bits;
    text += fmt::format(", {:.4f} bits per byte", bits);
  }
  fmt::print("{}\n{}", model.origin, in_lines(fmt::format("{}, over {} tokens", text, sum.tokens), 2));
  json.print(figures);
  if (request.out.empty()) return 0;
  std::ofstream out(request.out);
  out << figures.dump(2) << "\n" << std::flush;
  if (!out) throw Error(ErrorKind::data, "cannot write " + request.out.string());
  return 0;
}

}  // namespace isthmus::app
