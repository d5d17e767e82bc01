#pragma once
// Models of known sizes, for `model.preset`.

#include <array>
#include <cstdint>
#include <string_view>

#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

struct Preset {
  std::string_view name, architecture;
  std::int64_t layers, dim, heads, kv_heads, ffn_dim;  ///< zeros as in ModelConfig
  bool qk_norm;
  double rope_theta;       ///< llama
  std::int64_t positions;  ///< gpt2
  double lr;
  std::int64_t seq_len, batch, micro_batch;  ///< batch: of one of two replicas
};

/// All of them have a tied head. Sources:
/// - 35M to 4B: layers, width and heads of the models in "Streaming DiLoCo" (arXiv 2501.18512) and "Scaling
///   Laws for DiLoCo" (arXiv 2503.09799), which have heads of 64 elements, QK-norm and a feed-forward part of
///   4 dim. SwiGLU's three matrices are 8/3 dim wide, which gives as many parameters (with the papers' 32,768
///   ids); the papers count slightly differently, and so name the sizes differently.
/// - gpt2-124m, gpt2-350m: "gpt2" and "gpt2-medium" (Radford et al., 2019).
/// - smollm-135m: SmolLM-135M. llama-1b: Llama 3.2 1B, without the scaling of its rotary positions.
/// - lr, and the tokens per step of both replicas (0.5 M, from 1 B parameters on 1 M): those of the model
///   of GPT-3 that is nearest in size (arXiv 2005.14165, table 2.1). micro_batch: fewer for larger models.
inline constexpr std::array<Preset, 11> presets = {{
    {"35M", "llama", 6, 512, 8, 0, 0, true, 10000, 0, 6e-4, 2048, 128, 32},
    {"100M", "llama", 9, 768, 12, 0, 0, true, 10000, 0, 6e-4, 2048, 128, 8},
    {"200M", "llama", 12, 1024, 16, 0, 0, true, 10000, 0, 6e-4, 2048, 128, 4},
    {"300M", "llama", 15, 1280, 20, 0, 0, true, 10000, 0, 3e-4, 2048, 128, 4},
    {"500M", "llama", 18, 1536, 24, 0, 0, true, 10000, 0, 3e-4, 2048, 128, 4},
    {"1B", "llama", 24, 2048, 32, 0, 0, true, 10000, 0, 2e-4, 2048, 256, 4},
    {"4B", "llama", 36, 3072, 48, 0, 0, true, 10000, 0, 1.6e-4, 2048, 256, 1},
    {"gpt2-124m", "gpt2", 12, 768, 12, 0, 0, false, 10000, 1024, 6e-4, 1024, 256, 16},
    {"gpt2-350m", "gpt2", 24, 1024, 16, 0, 0, false, 10000, 1024, 3e-4, 1024, 256, 8},
    {"smollm-135m", "llama", 30, 576, 9, 3, 1536, false, 10000, 0, 6e-4, 2048, 128, 4},
    {"llama-1b", "llama", 16, 2048, 32, 8, 8192, false, 500000, 0, 2e-4, 2048, 256, 4},
}};

/// `name` must be one of these.
[[nodiscard]] inline ModelConfig model_of(std::string_view name) {
  ModelConfig model;
  for (const auto& preset : presets) {
    if (preset.name != name) continue;
    model.preset = name;
    model.architecture = preset.architecture;
    model.layers = preset.layers;
    model.dim = preset.dim;
    model.heads = preset.heads;
    model.kv_heads = preset.kv_heads;
    model.ffn_dim = preset.ffn_dim;
    model.tie_embeddings = true;
    model.qk_norm = preset.qk_norm;
    model.rope_theta = preset.rope_theta;
    model.positions = preset.positions;
  }
  return model;
}

}  // namespace isthmus::trainer
