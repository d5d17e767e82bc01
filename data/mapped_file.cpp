#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "isthmus/base/error.h"

namespace isthmus::data {

MappedFile::MappedFile(const std::filesystem::path& file) {
  const auto fail = [&](int error) {
    throw Error(ErrorKind::data,
                file.string() + ": cannot be mapped: " + std::generic_category().message(error));
  };
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(errno);
  struct stat status {};
  if (fstat(descriptor, &status) == 0) size_ = static_cast<std::size_t>(status.st_size);
  // An empty file cannot be mapped and need not be.
  if (size_ > 0) data_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int error = errno;
  close(descriptor);
  if (data_ != MAP_FAILED) return;
  data_ = nullptr;
  fail(error);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace isthmus::data
