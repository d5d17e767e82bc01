#pragma once
// The recipes of configs/recipes/, which the build embeds so that an installed program has them too.

#include <string>
#include <string_view>
#include <vector>

namespace isthmus::app {

struct Recipe {
  std::string_view name;  ///< as in `init --recipe`
  std::string_view text;  ///< a whole experiment in YAML
};

/// The first one is the default.
[[nodiscard]] const std::vector<Recipe>& recipes();
/// "gpt2-124m, llama-350m, ...".
[[nodiscard]] std::string recipe_names();
/// Throws Error(config) naming --recipe.
[[nodiscard]] const Recipe& recipe_named(const std::string& name);

}  // namespace isthmus::app
