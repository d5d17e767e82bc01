#pragma once
// How often a test repeats in this build.

/// The number of repetitions: `usual`, or `instrumented` under a sanitizer, which makes code ten times slower
/// and needs few repetitions to see a fault.
constexpr unsigned repetitions(unsigned usual, unsigned instrumented) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return static_cast<void>(usual), instrumented;
#else
  return static_cast<void>(instrumented), usual;
#endif
}
