#pragma once
// Large memory that is read and written again and again.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace isthmus::data {

/// Zeroed, in pages as large as the system provides; all of them are allocated by the constructor.
class PagedMemory {
 public:
  /// Throws std::bad_alloc.
  explicit PagedMemory(std::size_t bytes);
  /// At least as many as requested; the first one is at the start of a page.
  [[nodiscard]] std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
};

}  // namespace isthmus::data
