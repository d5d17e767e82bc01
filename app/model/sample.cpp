#include "model/sample.h"

#include <fmt/format.h>

#include "isthmus/base/error.h"
#include "model/trained_model.h"
#include "run/output/json_output.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {

int run_sample(const SampleRequest& request) {
  JsonOutput json(request.json);
  const auto model = load_trained_model(request.model, request.assignments, request.build);
  if (model.experiment.data.tokenizer.starts_with("vocab:"))
    throw Error(ErrorKind::config, "data.tokenizer is " + model.experiment.data.tokenizer +
                                       "; sampling needs a text tokenizer: pass --set data.tokenizer=FILE");
  const Hardware hardware(model.experiment);
  trainer::Inference inference(model.table, hardware.device, hardware.precision,
                               model.experiment.data.seq_len, model.mask_separator());
  inference.load(model.parameters);
  std::vector<std::uint32_t> prompt;
  model.tokenizer->encode(request.prompt, prompt);
  if (prompt.empty()) prompt = {model.tokenizer->separator()};
  const std::vector<std::int64_t> ids(prompt.begin(), prompt.end());
  const auto more = trainer::sample(inference, ids, request.options);
  auto text = model.tokenizer->decode(std::vector<std::uint32_t>(more.begin(), more.end()));
  if (json.wanted()) {  // JSON escapes control characters
    json.print({{"model", model.origin}, {"prompt", request.prompt}, {"text", text}});
    return 0;
  }
  // Replace control characters: a terminal would execute them.
  for (auto& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 32 && c != '\n' && c != '\t') || code == 127) c = '?';
  }
  fmt::print("{}{}\n", request.prompt, text);
  return 0;
}

}  // namespace isthmus::app
