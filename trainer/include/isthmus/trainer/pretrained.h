#pragma once
// Reads and writes models in Hugging Face's layout: a folder with config.json and model.safetensors.
// Supported classes: LlamaForCausalLM, Qwen3ForCausalLM (Llama with QK-norm), GPT2LMHeadModel.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/outer_sync/log/safetensors.h"
#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {

struct PretrainedShape {
  ModelShape model;            ///< resolved
  std::int64_t positions = 0;  ///< longest sequence that the model is made for
};

/// Reads config.json. Throws Error(data) naming the file, the key, its value and what was expected, for other
/// architectures and for settings that are not supported here.
[[nodiscard]] PretrainedShape read_pretrained_shape(const std::filesystem::path& folder);

/// Reads the flat buffer from model.safetensors (F32, F16 or BF16). Throws Error(data) naming file and tensor
/// if one is missing, has another shape, is not in the model, or is not finite; Error(config) naming the
/// first setting in which config.json and the table's model differ.
[[nodiscard]] std::vector<float> read_pretrained(const std::filesystem::path& folder,
                                                 const ParameterTable& table);

/// Facts that a model's users need in addition to its parameters.
struct PretrainedNotes {
  std::int64_t seq_len = 0;                ///< sequence length in training
  std::optional<std::uint32_t> separator;  ///< id that ends a document
  outer_sync::log::ValueType type = outer_sync::log::ValueType::fp32;
};

/// Writes both files, and creates the folder. Each file appears complete or not at all. Throws
/// Error(data).
void write_pretrained(const std::filesystem::path& folder, const ParameterTable& table,
                      std::span<const float> parameters, const PretrainedNotes& notes);

/// The class in `transformers` for such a model.
[[nodiscard]] std::string_view pretrained_class(const ModelConfig& config);

}  // namespace isthmus::trainer
