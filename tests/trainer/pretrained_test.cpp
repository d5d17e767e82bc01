// Folders in Hugging Face's layout: written, read back, and refused. transformers_test.py checks that
// `transformers` reads the same models from them.

#include "isthmus/trainer/pretrained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/safetensors.h"
#include "small_model.h"
#include "temporary_folder.h"

namespace isthmus::trainer {
namespace {

using testing::HasSubstr;

ModelShape with_qk_norm(bool qk_norm) {
  auto shape = small_shape();
  shape.config.qk_norm = qk_norm;
  return shape;
}

std::vector<ModelShape> shapes() {
  return {with_qk_norm(true), with_qk_norm(false), small_shape(true), small_gpt2_shape(true),
          small_gpt2_shape(false)};
}

/// A folder with a model, which a test may damage.
struct Exported {
  explicit Exported(const ModelShape& shape)
      : table(shape, 3, 1024), values(initial_parameters(table, 3)), path(folder / "model") {
    write_pretrained(path, table, values, {.seq_len = 12, .separator = 0});
  }
  [[nodiscard]] nlohmann::json config() const {
    return nlohmann::json::parse(read_all(path / "config.json"));
  }
  void change(const std::string& key, const nlohmann::json& value) const {
    auto changed = config();
    changed[key] = value;
    folder.write("model/config.json", changed.dump());
  }
  /// Rewrites the tensors that `change` keeps, under the names that it gives them.
  template <class Change>
  void rewrite(const Change& change) const {
    std::vector<outer_sync::log::TensorView> tensors;
    for (const auto& tensor : table.tensors()) {
      outer_sync::log::TensorView view{tensor.name, tensor.shape,
                                       std::span(values).subspan(tensor.range.begin, tensor.range.size)};
      if (change(view)) tensors.push_back(view);
    }
    outer_sync::log::write_safetensors(path / "model.safetensors", tensors, {});
  }
  void expect_refused(ErrorKind kind, const std::string& reason) const {
    try {
      static_cast<void>(read_pretrained(path, table));
      ADD_FAILURE() << "read without an error; expected: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(reason));
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }

  TemporaryFolder folder;
  ParameterTable table;
  std::vector<float> values;
  std::filesystem::path path;
};

TEST(Pretrained, IsReadBackToTheBit) {
  for (const auto& shape : shapes()) {
    const Exported model(shape);
    EXPECT_EQ(model.config()["architectures"][0], pretrained_class(shape.config));
    EXPECT_EQ(read_pretrained(model.path, model.table), model.values);
    // With other fragments, the same tensors have other places.
    const ParameterTable other(read_pretrained_shape(model.path).model, 1, 1024);
    const auto values = read_pretrained(model.path, other);
    for (const auto& tensor : model.table.tensors())
      EXPECT_EQ(values[other.tensor(tensor.name).range.begin], model.values[tensor.range.begin]);
  }
}

TEST(Pretrained, Bf16IsReadBackRounded) {
  const Exported model(small_gpt2_shape());
  write_pretrained(model.path, model.table, model.values,
                   {.seq_len = 12, .separator = 0, .type = outer_sync::log::ValueType::bf16});
  EXPECT_EQ(model.config()["torch_dtype"], "bfloat16");
  const auto values = read_pretrained(model.path, model.table);
  EXPECT_NE(values, model.values);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], model.values[i], std::abs(model.values[i]) / 256);
}

TEST(Pretrained, AReplicaBeginsWithIt) {
  const Exported model(small_gpt2_shape());
  auto options = small_options();
  options.trainer.init_from = model.path.string();
  Replica replica(model.table, options);
  const auto parameters = replica.parameters();
  EXPECT_TRUE(std::equal(parameters.begin(), parameters.end(), model.values.begin(), model.values.end()));
}

TEST(Pretrained, Gpt2sOwnNamesAndMasksAreTaken) {
  const Exported model(small_gpt2_shape());
  const std::vector<float> mask(4, 1.0F);
  std::vector<outer_sync::log::TensorView> tensors = {{"h.0.attn.bias", {1, 1, 2, 2}, mask}};
  model.rewrite([&](auto& tensor) {
    tensor.name = tensor.name.substr(std::string("transformer.").size());
    tensors.push_back(tensor);
    return true;
  });
  outer_sync::log::write_safetensors(model.path / "model.safetensors", tensors, {});
  EXPECT_EQ(read_pretrained(model.path, model.table), model.values);
}

TEST(Pretrained, RefusesAnotherArchitectureByItsKey) {
  const Exported llama(small_shape()), gpt2(small_gpt2_shape());
  const auto expect = [](const Exported& model, const std::string& key, const nlohmann::json& value,
                         const std::string& reason, ErrorKind kind = ErrorKind::data) {
    const auto before = model.config();
    model.change(key, value);
    model.expect_refused(kind, reason);
    model.folder.write("model/config.json", before.dump());
  };
  expect(llama, "model_type", "mamba", "has model_type \"mamba\"; expected llama, qwen3 or gpt2");
  expect(llama, "model_type", nullptr, "has no model_type");
  expect(llama, "hidden_size", "16", "has hidden_size \"16\"; expected an integer from 2 to 65536");
  expect(llama, "hidden_size", 1e30, "expected an integer");
  expect(llama, "hidden_act", "gelu", "has hidden_act \"gelu\"; expected \"silu\"");
  expect(llama, "attention_bias", true, "has attention_bias true; expected false");
  expect(llama, "head_dim", 128, "has head_dim 128; expected 4");
  expect(llama, "rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}},
         "scaled rotations are not supported");
  expect(llama, "num_key_value_heads", 3, "describes a model that is not supported");
  expect(llama, "model_type", "llama", "model.qk_norm is 1.0", ErrorKind::config);
  expect(llama, "num_hidden_layers", 3, "model.layers is 2.0", ErrorKind::config);
  expect(llama, "vocab_size", 32, "the tokenizer's vocabulary is 31.0", ErrorKind::config);
  expect(llama, "rms_norm_eps", 1e-6, "model.norm_eps is 1e-05", ErrorKind::config);
  expect(gpt2, "activation_function", "gelu", "expected \"gelu_new\"");
  expect(gpt2, "scale_attn_by_inverse_layer_idx", true, "expected false");
  expect(gpt2, "n_positions", 13, "model.positions is 12.0", ErrorKind::config);
  expect(gpt2, "tie_word_embeddings", "yes", "expected true or false");
  llama.folder.write("model/config.json", "[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]");
  llama.expect_refused(ErrorKind::data, "is not a JSON object");
  std::filesystem::remove(gpt2.path / "config.json");
  gpt2.expect_refused(ErrorKind::data, "config.json");
}

TEST(Pretrained, RefusesTensorsThatAreNotTheModels) {
  const Exported model(small_shape());
  const std::string norm = "model.norm.weight";
  model.rewrite([&](auto& tensor) { return tensor.name != norm; });
  model.expect_refused(ErrorKind::data, "has no tensor model.norm.weight");
  model.rewrite([&](auto& tensor) {
    if (tensor.name == norm) tensor.shape = {4, 4};
    return true;
  });
  model.expect_refused(ErrorKind::data, "model.norm.weight has the shape [4,4]; expected [16]");
  const std::vector<float> one = {1};
  std::vector<outer_sync::log::TensorView> more = {{"model.layers.2.mlp.up_proj.weight", {1}, one}};
  model.rewrite([&](auto& tensor) {
    more.push_back(tensor);
    return true;
  });
  outer_sync::log::write_safetensors(model.path / "model.safetensors", more, {});
  model.expect_refused(ErrorKind::data, "that the model does not have: model.layers.2.mlp.up_proj.weight");
  const std::vector<float> bad(16, std::numeric_limits<float>::quiet_NaN());
  model.rewrite([&](auto& tensor) {
    if (tensor.name == norm) tensor.values = bad;
    return true;
  });
  model.expect_refused(ErrorKind::data, "has a value that is not finite");
  std::filesystem::remove(model.path / "model.safetensors");
  model.expect_refused(ErrorKind::data, "model.safetensors");
}

}  // namespace
}  // namespace isthmus::trainer
