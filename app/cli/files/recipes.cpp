#include "cli/files/recipes.h"

#include <fmt/format.h>

#include <algorithm>

#include "isthmus/base/error.h"

namespace isthmus::app {

/// Written by isthmus_embed.
namespace recipe_texts {
std::string_view gpt2_124m();
std::string_view llama_350m();
std::string_view llama_1b();
std::string_view cpu_tiny();
}  // namespace recipe_texts

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {{"gpt2-124m", recipe_texts::gpt2_124m()},
                                          {"llama-350m", recipe_texts::llama_350m()},
                                          {"llama-1b", recipe_texts::llama_1b()},
                                          {"cpu-tiny", recipe_texts::cpu_tiny()}};
  return all;
}

std::string recipe_names() {
  std::string names;
  for (const auto& recipe : recipes()) names += fmt::format("{}{}", names.empty() ? "" : ", ", recipe.name);
  return names;
}

const Recipe& recipe_named(const std::string& name) {
  const auto found = std::ranges::find(recipes(), name, &Recipe::name);
  if (found != recipes().end()) return *found;
  config_error(fmt::format("--recipe is '{}'; expected one of {}", name, recipe_names()));
}

}  // namespace isthmus::app
