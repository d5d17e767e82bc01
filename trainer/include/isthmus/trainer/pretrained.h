#pragma once
// Models in Hugging Face's layout: a folder with config.json and model.safetensors. Classes and what they are
// here: LlamaForCausalLM, Qwen3ForCausalLM (Llama with QK-norm), GPT2LMHeadModel.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {

struct PretrainedShape {
  ModelShape model;            ///< resolved
  std::int64_t positions = 0;  ///< longest sequence it is meant for
};

/// What config.json says. Throws Error(data) naming the file, the key, its value and what was expected, for
/// another architecture and for settings that would compute something else than the model here.
[[nodiscard]] PretrainedShape read_pretrained_shape(const std::filesystem::path& folder);

/// The flat buffer from model.safetensors (F32, F16 or BF16). Throws Error(data) naming file and tensor where
/// one is missing, of another shape, not of the model, or not finite; Error(config) naming the first setting
/// in which config.json and the table's model differ.
[[nodiscard]] std::vector<float> read_pretrained(const std::filesystem::path& folder,
                                                 const ParameterTable& table);

/// What a model's users want to know beside its parameters.
struct PretrainedNotes {
  std::int64_t seq_len = 0;                ///< that it was trained with
  std::optional<std::uint32_t> separator;  ///< id that ends a document
};

/// Writes both files, fp32; the folder is made. Each appears complete or not at all. Throws Error(data).
void write_pretrained(const std::filesystem::path& folder, const ParameterTable& table,
                      std::span<const float> parameters, const PretrainedNotes& notes);

/// The class that `transformers` makes of it.
[[nodiscard]] std::string_view pretrained_class(const ModelConfig& config);

}  // namespace isthmus::trainer
