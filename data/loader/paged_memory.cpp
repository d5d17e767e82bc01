#include "loader/paged_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace isthmus::data {

PagedMemory::PagedMemory(std::size_t bytes) {
  constexpr std::size_t page = std::size_t{2} << 20;  // a large page, if the system has them
  size_ = (bytes + page - 1) / page * page;
  bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(page, size_)));
  if (!bytes_) throw std::bad_alloc();
  // Only advice: without it, memory is slower.
  static_cast<void>(::madvise(bytes_.get(), size_, MADV_HUGEPAGE));
  std::memset(bytes_.get(), 0, size_);
}

}  // namespace isthmus::data
