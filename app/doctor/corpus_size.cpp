#include "doctor/corpus_size.h"

#include <fmt/format.h>

#include "isthmus/base/progress.h"
#include "isthmus/data/sampler.h"

namespace isthmus::app {
namespace {

/// Up to four epochs cost little loss: Muennighoff et al. 2023, "Scaling Data-Constrained Language Models"
/// (arXiv 2305.16264).
constexpr double cheap_epochs = 4;

double windows_of(const data::DataSet& set, data::Split split, std::int64_t seq_len) {
  return static_cast<double>(data::window_count(set.tokens(split), static_cast<std::uint64_t>(seq_len)));
}

}  // namespace

std::vector<Finding> judge_sizes(const Experiment& experiment, const data::Corpus& corpus) {
  const auto& run = experiment.run;
  const auto seq_len = experiment.data.seq_len;
  const double sequences = static_cast<double>(run.steps) * static_cast<double>(experiment.inner.batch) *
                           static_cast<double>(experiment.replicas);
  std::vector<Finding> found;
  for (const auto& set : corpus.sets()) {
    const double read = set.weight() * sequences;
    const double epochs = read / windows_of(set, data::Split::train, seq_len);
    if (epochs <= cheap_epochs) continue;
    found.push_back({"data", Level::warn,
                     fmt::format("{}: training makes {:.3g} epochs: it reads {} tokens, and there are {}",
                                 set.name(), epochs, format_count(read * static_cast<double>(seq_len)),
                                 format_count(static_cast<double>(set.tokens(data::Split::train)))),
                     "use more data or fewer run.steps: up to 4 epochs cost little loss (arXiv 2305.16264)"});
  }
  for (const auto& set : corpus.heldout_sets()) {
    const double wanted = set.weight() * static_cast<double>(run.eval_sequences);
    const double windows = windows_of(set, data::Split::heldout, seq_len);
    if (windows == 0 || windows + 1 > wanted) continue;  // data.heldout: 0 asks for none
    found.push_back({"data", Level::warn,
                     fmt::format("{}: {:.0f} sequences are held out, and an evaluation reads {:.0f} "
                                 "(run.eval_sequences): its loss is less precise",
                                 set.name(), windows, wanted),
                     "raise data.heldout, name a larger data.val_path, or lower run.eval_sequences"});
  }
  return found;
}

}  // namespace isthmus::app
