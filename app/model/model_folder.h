#pragma once
// A folder with a model that is replaced as a whole, so that a reader finds the old files or the new ones,
// each complete. (A mount point, or a folder below a read-only one, is replaced file by
// file.) Used by `export`, `observe --out` and Python's `save_pretrained`, on one thread.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace isthmus::app {

/// Names of the settings in messages.
struct ModelFolderOptions {
  std::string folder = "--out";
  std::string replace = "--replace";
};

class ModelFolder {
 public:
  /// Throws Error(config) unless the folder is new or empty or, with `may_replace`, holds only files that
  /// this class has written: isthmus.json in it lists them.
  ModelFolder(const std::filesystem::path& folder, bool may_replace, ModelFolderOptions options = {});

  /// Calls `write` with a temporary folder next to it, adds isthmus.json with the entries of `note`, syncs
  /// the files and swaps the two. Throws Error(data), Error(config) if a file of others has appeared in the
  /// folder, and what `write` throws; the folder is then unchanged.
  void replace(const std::function<void(const std::filesystem::path&)>& write, nlohmann::ordered_json note);
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

 private:
  void refuse_files_of_others() const;
  [[nodiscard]] std::filesystem::path make_fresh() const;
  void fill_and_swap(const std::filesystem::path& fresh,
                     const std::function<void(const std::filesystem::path&)>& write,
                     nlohmann::ordered_json note) const;
  ModelFolderOptions options_;
  std::filesystem::path folder_;
};

}  // namespace isthmus::app
