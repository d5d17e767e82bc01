#include "compare/runs/progress_reader.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace isthmus::app {

std::vector<std::string> GrowingFile::lines() {
  constexpr std::size_t longest = std::size_t{1} << 16;
  std::vector<std::string> lines;
  std::ifstream in(file_, std::ios::binary);
  if (!in.seekg(static_cast<std::streamoff>(offset_))) return lines;
  std::string block(longest, '\0');
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    offset_ += static_cast<std::uint64_t>(in.gcount());
    rest_.append(block, 0, static_cast<std::size_t>(in.gcount()));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = rest_.find('\n', begin)) != rest_.npos; begin = end + 1)
      lines.push_back(rest_.substr(begin, end - begin));
    rest_.erase(0, begin);
    if (rest_.size() > longest) rest_.clear();
  }
  return lines;
}

ProgressReader::ProgressReader(const RunPlan& run)
    : worker_(run.folder() / worker_names(run.experiment).front() / "metrics.jsonl"),
      coordinator_(run.folder() / "metrics.jsonl") {}

void ProgressReader::look() {
  for (const auto& text : worker_.lines()) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step_seconds") || !line.contains("step")) continue;
    if (line["step"].is_number_unsigned()) step_ = line["step"];
    if (line["step_seconds"].is_number()) seconds_ += line["step_seconds"].get<double>();
    if (line.contains("loss") && line["loss"].is_number()) loss_ = line["loss"];
  }
  for (const auto& text : coordinator_.lines()) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line.contains("eval_loss")) continue;
    if (line["step"].is_number_unsigned() && line["eval_loss"].is_number())
      evaluations_.emplace_back(line["step"].get<std::uint64_t>(), line["eval_loss"].get<double>());
  }
}

}  // namespace isthmus::app
