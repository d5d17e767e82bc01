#include "isthmus/base/append_file.h"

#include <fstream>
#include <span>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus {
namespace {

const std::filesystem::path& made(const std::filesystem::path& file) {
  if (!std::ofstream(file, std::ios::binary | std::ios::app))
    throw Error(ErrorKind::data, "cannot open " + file.string() + " for appending");
  return file;
}

}  // namespace

AppendFile::AppendFile(const std::filesystem::path& file, Say say)
    : file_(made(file), File::Mode::append), say_(std::move(say)), size_(file_.size()) {}

void AppendFile::append(std::string_view record) {
  try {
    file_.write(std::as_bytes(std::span(record)));
    size_ += record.size();
    said_ = false;
  } catch (const Error& error) {
    try {
      file_.truncate(size_);
    } catch (const Error&) {  // the file cannot be truncated, for example /dev/full
    }
    if (!say_) throw;
    if (!std::exchange(said_, true))
      say_(std::string(error.what()) + "; further records are left out until it can be written");
  }
}

}  // namespace isthmus
