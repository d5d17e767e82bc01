#pragma once
// Vectors that begin at a cache line in memory. Otherwise every other vector access crosses a line, which
// costs the passes over parameters and chunks a fifth of their speed.

#include <cstddef>
#include <limits>
#include <new>
#include <vector>

namespace isthmus {

/// Leaves new elements uninitialised: a buffer is not cleared before it is overwritten.
template <class T>
class AlignedAllocator {
 public:
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t n) {
    if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(::operator new(n * sizeof(T), alignment));
  }
  void deallocate(T* at, std::size_t /*n*/) noexcept { ::operator delete(at, alignment); }
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace isthmus
