#include "isthmus/trainer/pretrained.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/outer_sync/log/safetensors.h"

namespace isthmus::trainer {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using outer_sync::log::SafetensorsFile;
using outer_sync::log::TensorView;
using outer_sync::log::ValueType;

namespace {

constexpr const char* config_name = "config.json";
constexpr const char* weights_name = "model.safetensors";
constexpr std::uint64_t max_config_bytes = 1 << 20;  // bytes
constexpr int deepest_json = 20;

/// Reads config.json key by key; each call states the valid values.
class ConfigFile {
 public:
  explicit ConfigFile(const fs::path& file) : file_(file) {
    const File open(file, File::Mode::read);
    const auto size = open.size();
    if (size > max_config_bytes) refuse("has " + std::to_string(size) + " bytes; expected at most 1 MiB");
    std::string text(size, ' ');
    if (!open.read(std::as_writable_bytes(std::span(text)))) refuse("has become shorter while it was read");
    bool too_deep = false;
    const auto guard = [&](int depth, Json::parse_event_t, const Json&) {
      too_deep = too_deep || depth > deepest_json;
      return !too_deep;
    };
    keys_ = Json::parse(text, guard, false);
    if (too_deep || !keys_.is_object()) refuse("is not a JSON object");
  }

  [[noreturn]] void refuse(const std::string& reason) const { data_error(file_.string() + " " + reason); }
  [[noreturn]] void refuse(const std::string& key, const Json& value, const std::string& expected) const {
    refuse("has " + key + " " + value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 100) +
           "; expected " + expected);
  }

  [[nodiscard]] bool has(const std::string& key) const {
    return keys_.contains(key) && !keys_[key].is_null();
  }
  [[nodiscard]] const Json& operator[](const std::string& key) const {
    if (!has(key)) refuse("has no " + key);
    return keys_[key];
  }
  [[nodiscard]] std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most) const {
    const auto& value = (*this)[key];
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) ||
        value.get<double>() > static_cast<double>(most))
      refuse(key, value, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return value.get<std::int64_t>();
  }
  [[nodiscard]] double number(const std::string& key, double least, double most) const {
    return number(key, (*this)[key], least, most);
  }
  [[nodiscard]] double number(const std::string& key, const Json& value, double least, double most) const {
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
      refuse(key, value, "a number from " + Json(least).dump() + " to " + Json(most).dump());
    return value.get<double>();
  }
  [[nodiscard]] bool truth(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!keys_[key].is_boolean()) refuse(key, keys_[key], "true or false");
    return keys_[key].get<bool>();
  }
  /// A key that may be missing, and must have this value if it is there.
  void must_be(const std::string& key, const Json& value) const {
    if (has(key) && keys_[key] != value) refuse(key, keys_[key], value.dump() + ", the only supported value");
  }

 private:
  fs::path file_;
  Json keys_;
};

/// Newer files have `rope_parameters`, older ones `rope_theta` and `rope_scaling`.
double rope_theta(const ConfigFile& in) {
  constexpr double usual = 10000, most = 1e12;
  for (const auto* name : {"rope_parameters", "rope_scaling"}) {
    if (!in.has(name)) continue;
    const auto& rope = in[name];
    const auto type = rope.is_object() ? rope.value("rope_type", rope.value("type", Json("default"))) : rope;
    if (type != "default") in.refuse(name, rope, "rope_type default: scaled rotations are not supported");
    if (rope.contains("rope_theta"))
      return in.number(std::string(name) + ".rope_theta", rope["rope_theta"], 1, most);
  }
  return in.has("rope_theta") ? in.number("rope_theta", 1, most) : usual;
}

PretrainedShape read_llama(const ConfigFile& in, bool qk_norm) {
  ModelConfig c;
  c.qk_norm = qk_norm;
  c.layers = in.integer("num_hidden_layers", 1, 4096);
  c.dim = in.integer("hidden_size", 2, 65536);
  c.heads = in.integer("num_attention_heads", 1, 1024);
  c.kv_heads = in.has("num_key_value_heads") ? in.integer("num_key_value_heads", 1, 1024) : c.heads;
  c.ffn_dim = in.integer("intermediate_size", 1, 1 << 20);
  c.tie_embeddings = in.truth("tie_word_embeddings", false);
  c.norm_eps = in.number("rms_norm_eps", 1e-12, 1e-2);
  c.rope_theta = rope_theta(in);
  if (in.has("head_dim") || qk_norm) in.must_be("head_dim", c.dim / c.heads);
  in.must_be("hidden_act", "silu");
  in.must_be("attention_bias", false);
  in.must_be("mlp_bias", false);
  in.must_be("use_sliding_window", false);
  return {{c, in.integer("vocab_size", 1, 4294967295)}, in.integer("max_position_embeddings", 1, 1 << 30)};
}

PretrainedShape read_gpt2(const ConfigFile& in) {
  ModelConfig c;
  c.architecture = "gpt2";
  c.qk_norm = false;
  c.layers = in.integer("n_layer", 1, 4096);
  c.dim = in.integer("n_embd", 2, 65536);
  c.heads = in.integer("n_head", 1, 1024);
  c.ffn_dim = in.has("n_inner") ? in.integer("n_inner", 1, 1 << 20) : 4 * c.dim;
  c.positions = in.integer("n_positions", 1, 1 << 20);
  c.tie_embeddings = in.truth("tie_word_embeddings", true);
  c.norm_eps = in.number("layer_norm_epsilon", 1e-12, 1e-2);
  in.must_be("activation_function", "gelu_new");
  in.must_be("scale_attn_weights", true);
  in.must_be("scale_attn_by_inverse_layer_idx", false);
  in.must_be("add_cross_attention", false);
  return {{c, in.integer("vocab_size", 1, 4294967295)}, c.positions};
}

/// A setting's name here and in config.json, and its two values.
struct Setting {
  const char *key, *their_key;
  double ours, theirs;
};

void check_same(const ModelShape& ours, const ModelShape& theirs, const fs::path& folder) {
  const auto &a = ours.config, &b = theirs.config;
  const auto number = [](auto value) { return static_cast<double>(value); };
  std::vector<Setting> settings = {
      {"model.architecture gpt2", "model_type gpt2", number(a.is_gpt2()), number(b.is_gpt2())},
      {"model.layers", "num_hidden_layers or n_layer", number(a.layers), number(b.layers)},
      {"model.dim", "hidden_size or n_embd", number(a.dim), number(b.dim)},
      {"model.heads", "num_attention_heads or n_head", number(a.heads), number(b.heads)},
      {"model.kv_heads", "num_key_value_heads", number(a.kv_heads), number(b.kv_heads)},
      {"model.ffn_dim", "intermediate_size or n_inner", number(a.ffn_dim), number(b.ffn_dim)},
      {"model.tie_embeddings", "tie_word_embeddings", number(a.tie_embeddings), number(b.tie_embeddings)},
      {"model.norm_eps", "rms_norm_eps or layer_norm_epsilon", a.norm_eps, b.norm_eps},
      {"the tokenizer's vocabulary", "vocab_size", number(ours.vocab), number(theirs.vocab)}};
  if (a.is_gpt2()) {
    settings.push_back({"model.positions", "n_positions", number(a.positions), number(b.positions)});
  } else {
    settings.push_back({"model.qk_norm", "model_type qwen3", number(a.qk_norm), number(b.qk_norm)});
    settings.push_back({"model.rope_theta", "rope_theta", a.rope_theta, b.rope_theta});
  }
  for (const auto& s : settings) {
    if (s.ours == s.theirs) continue;
    config_error(std::string(s.key) + " is " + Json(s.ours).dump() + " and " +
                 (folder / config_name).string() + " has " + Json(s.theirs).dump() + " (" + s.their_key +
                 "); expected the same");
  }
}

/// Buffers that files contain in addition to the parameters: causal masks and the frequencies of rotations.
bool is_no_parameter(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// GPT-2's own files omit the first part of each name.
std::string short_name(const std::string& name) {
  constexpr std::string_view prefix = "transformer.";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return Json(shape).dump(); }

}  // namespace

std::string_view pretrained_class(const ModelConfig& config) {
  if (config.is_gpt2()) return "GPT2LMHeadModel";
  return config.qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM";
}

PretrainedShape read_pretrained_shape(const fs::path& folder) {
  const ConfigFile in(folder / config_name);
  const auto& type = in["model_type"];
  PretrainedShape shape;
  if (type == "llama") {
    shape = read_llama(in, false);
  } else if (type == "qwen3") {
    shape = read_llama(in, true);
  } else if (type == "gpt2") {
    shape = read_gpt2(in);
  } else {
    in.refuse("model_type", type, "llama, qwen3 or gpt2");
  }
  try {
    shape.model.config.resolve(shape.model.config.is_gpt2() ? shape.positions : 1);
  } catch (const Error& error) {
    in.refuse(std::string("describes a model that is not supported: ") + error.what());
  }
  return shape;
}

std::vector<float> read_pretrained(const fs::path& folder, const ParameterTable& table) {
  check_same(table.model(), read_pretrained_shape(folder).model, folder);
  const SafetensorsFile file(folder / weights_name);
  const auto refuse = [&](const std::string& reason) { data_error(file.path().string() + ": " + reason); };
  std::map<std::string, const SafetensorsFile::Tensor*> there;
  for (const auto& tensor : file.tensors()) {
    if (!is_no_parameter(tensor.name)) there[short_name(tensor.name)] = &tensor;
  }
  std::vector<float> parameters(table.buffer_size(), 0.0F);
  for (const auto& tensor : table.tensors()) {
    const auto found = there.find(short_name(tensor.name));
    if (found == there.end()) refuse("has no tensor " + tensor.name);
    if (found->second->shape != tensor.shape)
      refuse("tensor " + tensor.name + " has the shape " + shape_text(found->second->shape) + "; expected " +
             shape_text(tensor.shape));
    file.read(*found->second, std::span(parameters).subspan(tensor.range.begin, tensor.range.size));
    there.erase(found);
  }
  if (!there.empty()) refuse("has a tensor that the model does not have: " + there.begin()->second->name);
  return parameters;
}

void write_pretrained(const fs::path& folder, const ParameterTable& table, std::span<const float> parameters,
                      const PretrainedNotes& notes) {
  const auto& c = table.model().config;
  nlohmann::ordered_json config = {{"architectures", {pretrained_class(c)}},
                                   {"model_type", c.is_gpt2() ? "gpt2"
                                                  : c.qk_norm ? "qwen3"
                                                              : "llama"},
                                   {"vocab_size", table.model().vocab},
                                   {"tie_word_embeddings", c.tie_embeddings},
                                   {"initializer_range", c.init_std},
                                   {"torch_dtype", notes.type == ValueType::bf16 ? "bfloat16" : "float32"}};
  if (c.is_gpt2()) {
    config.update({{"n_layer", c.layers},
                   {"n_embd", c.dim},
                   {"n_head", c.heads},
                   {"n_inner", c.ffn_dim},
                   {"n_positions", c.positions},
                   {"layer_norm_epsilon", c.norm_eps},
                   {"activation_function", "gelu_new"},
                   {"scale_attn_weights", true},
                   {"scale_attn_by_inverse_layer_idx", false}});
  } else {
    config.update({{"num_hidden_layers", c.layers},
                   {"hidden_size", c.dim},
                   {"num_attention_heads", c.heads},
                   {"num_key_value_heads", c.kv_heads},
                   {"head_dim", c.head_dim()},
                   {"intermediate_size", c.ffn_dim},
                   {"max_position_embeddings", notes.seq_len},
                   {"rms_norm_eps", c.norm_eps},
                   {"rope_theta", c.rope_theta},
                   {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", c.rope_theta}}},
                   {"hidden_act", "silu"},
                   {"attention_bias", false}});
    if (!c.qk_norm) config["mlp_bias"] = false;
  }
  // Explicit: otherwise the class's defaults would apply, which are ids of its own vocabulary.
  const auto separator = notes.separator ? Json(*notes.separator) : Json();
  for (const auto* key : {"bos_token_id", "eos_token_id"}) config[key] = separator;

  std::error_code error;
  fs::create_directories(folder, error);
  if (error) data_error("cannot make the folder " + folder.string() + ": " + error.message());
  std::vector<TensorView> tensors;
  for (const auto& tensor : table.tensors())
    tensors.push_back({tensor.name, tensor.shape, parameters.subspan(tensor.range.begin, tensor.range.size)});
  outer_sync::log::write_safetensors(folder / weights_name, tensors, {}, notes.type);
  replace_file(folder / config_name, config.dump(2) + "\n");
}

}  // namespace isthmus::trainer
