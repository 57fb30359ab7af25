// Counts every operator new of the program. To be included by exactly one source of a test program, which
// must not run under ThreadSanitizer (it replaces operator new too).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace dsv4rt::test {

inline std::atomic<std::uint64_t> allocations{0};

inline void* counted_allocation(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

inline void* counted_allocation(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto aligned = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(aligned, (bytes + aligned) / aligned * aligned)) return memory;
  throw std::bad_alloc();
}

}  // namespace dsv4rt::test

// Not inlined: beside an inlined `new`, GCC takes std::free for a mismatch (-Wmismatched-new-delete).
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return dsv4rt::test::counted_allocation(bytes);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return dsv4rt::test::counted_allocation(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return dsv4rt::test::counted_allocation(bytes, alignment);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return dsv4rt::test::counted_allocation(bytes, alignment);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
