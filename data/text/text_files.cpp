#include "text/text_files.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

class Finder {
 public:
  using Bad = std::function<void(const std::string&)>;
  explicit Finder(const Bad& bad) : bad_(bad) {}
  std::vector<TextFile> files;

  void visit(const fs::path& folder, const std::string& prefix) {
    std::vector<fs::path> entries;
    try {
      if (!seen_.insert(fs::canonical(folder)).second) return;
      for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
    } catch (const fs::filesystem_error& error) {
      return bad_(error.path1().string() + ": " + error.code().message());
    }
    // Sorted, so that every machine takes the same of two paths to one folder.
    std::sort(entries.begin(), entries.end());
    for (const auto& entry : entries) visit_entry(entry, prefix + entry.filename().string());
  }

 private:
  void visit_entry(const fs::path& path, const std::string& name) {
    if (path.filename().string().starts_with('.')) return;
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) return bad_(path.string() + ": broken symbolic link");
    if (error) return bad_(path.string() + ": " + error.message());
    if (fs::is_directory(status)) return visit(path, name + "/");
    if (!fs::is_regular_file(status)) return;
    const auto bytes = fs::file_size(path, error);
    if (error) return bad_(path.string() + ": " + error.message());
    files.push_back({path, name, bytes});
  }

  const Bad& bad_;
  std::set<fs::path> seen_;
};

}  // namespace

std::vector<TextFile> find_text_files(const fs::path& folder,
                                      const std::function<void(const std::string&)>& bad) {
  Finder finder(bad);
  finder.visit(folder, "");
  std::sort(finder.files.begin(), finder.files.end(),
            [](const TextFile& a, const TextFile& b) { return a.name < b.name; });
  return std::move(finder.files);
}

std::size_t piece_end(std::string_view text) {
  const auto line = text.rfind('\n');
  if (line != std::string_view::npos) return line + 1;
  std::size_t last = text.size() - 1;
  while (last > text.size() - 4 && continues_character(text[last])) --last;
  return last;
}

}  // namespace isthmus::data
