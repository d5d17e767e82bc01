#include "coordinator/newcomer_config.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "isthmus/base/error.h"
#include "run/experiment/current_names.h"

namespace isthmus::app {

namespace {

/// Collects the keys that each machine sets for itself: texts of class per_site without a fixed choice,
/// network.insecure and run.wandb.
class OwnKeys : public config::Archive {
 public:
  std::set<std::string> keys{"network.insecure", "run.wandb"};

 protected:
  void visit(const std::string& path, const config::Key& key) override {
    const bool any_text = std::holds_alternative<std::string*>(key.value) && key.choices.empty();
    if (any_text && key.scope == config::Scope::per_site) keys.insert(path);
  }
};

std::set<std::string> own_keys() {
  Experiment experiment;
  OwnKeys own;
  experiment.serialize(own);
  return std::move(own.keys);
}

/// A tokenizer that is not a file is the same everywhere.
bool is_everybodys(const std::string& key, const std::string& value) {
  return key == "data.tokenizer" && (value == "bytes" || value.starts_with("vocab:"));
}

/// The key without the name of its site.
std::string general(const std::string& key) {
  if (!key.starts_with("sites.")) return key;
  const auto dot = key.find('.', std::string_view("sites.").size());
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

}  // namespace

std::string config_for_newcomers(Experiment& experiment) {
  const auto own = own_keys();
  Experiment defaults;
  const auto usual = config::list(defaults);
  std::vector<config::Item> shared, withheld;
  auto stored = with_stored_names(experiment);
  for (auto& item : items_of(stored)) {
    const auto key = general(item.key);
    if (!own.contains(key) || is_everybodys(key, item.value)) {
      shared.push_back(std::move(item));
      continue;
    }
    const auto at = std::ranges::find(usual, key, &config::Item::key);
    const bool is_site = key != item.key;
    if (is_site || at == usual.end() || at->value != item.value) withheld.push_back(std::move(item));
  }
  std::string text = "# The run's config, as the coordinator has it.\n";
  if (!withheld.empty()) text += "# Each machine sets these keys for itself; the coordinator's values are\n";
  std::istringstream comments(config::yaml_of(withheld));
  for (std::string line; std::getline(comments, line);) text += "#   " + line + "\n";
  return text + config::yaml_of(shared);
}

void check_config_for_newcomers(const std::string& yaml) {
  const auto own = own_keys();
  const auto source = config::Source::from_text(yaml, "the run's config");
  for (const auto& entry : source.entries()) {
    const auto key = general(current_key(entry.key));
    if (!own.contains(key) || (entry.values.size() == 1 && is_everybodys(key, entry.values.front())))
      continue;
    throw Error(ErrorKind::network, "the coordinator's config sets " + entry.key +
                                        ", which only this machine may set; the config is not used");
  }
}

}  // namespace isthmus::app
