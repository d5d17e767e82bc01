#pragma once
// The .bin files of a folder, by what they are for, as their names say: nanoGPT's train.bin and val.bin,
// llm.c's fineweb_train_000001.bin and fineweb_val_000000.bin.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::data {

struct BinFolder {
  std::vector<std::filesystem::path> train, heldout;  ///< in the order of their names
  std::vector<std::string> ignored;                   ///< names of .bin files that are in neither list
};

/// The words of a name are separated by '_', '-' and '.'. Files with the word "val" are held out. Files with
/// the word "train" are for training; without such files, all others are. If any name has one of the words,
/// entries that are not .bin files do not matter; otherwise a folder with such an entry gives empty lists, as
/// does a file. Throws Error(data) if a file to use is not a regular one, or belongs to a Megatron data set.
[[nodiscard]] BinFolder read_bin_folder(const std::filesystem::path& folder);

}  // namespace isthmus::data
