#pragma once
// Memory for much that is read or written again and again.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace isthmus::data {

/// Zeros at first, in pages as large as the system gives; all of them are there from the beginning.
class PagedMemory {
 public:
  /// Throws std::bad_alloc.
  explicit PagedMemory(std::size_t bytes);
  /// At least as many as asked for; the first one begins a page.
  [[nodiscard]] std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
};

}  // namespace isthmus::data
