// Makes operator new, in all its forms, and anonymous mappings fail, and counts what is not given back. To be included
// by exactly one source of a test program, which must not run under ThreadSanitizer (it replaces operator new too).
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/syscall.h>

namespace dsv4rt::test {

enum class Failing : std::uint8_t { kNone, kNth, kFromNthOn };

// They concern the thread that runs the test: engines of these programs have one.
struct AllocationFaults {
  Failing mode = Failing::kNone;
  bool paused = false;             // while the test itself allocates
  std::int64_t until_failure = 0;  // 1: the next one fails
  std::int64_t failures = 0;
  std::int64_t outstanding = 0;  // allocations not given back
  std::int64_t mapped = 0;       // bytes of mappings not taken back, which may go in parts
};
inline AllocationFaults allocation_faults;

// What a mapping of so many bytes takes.
inline std::int64_t page_bytes(std::size_t bytes) noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return static_cast<std::int64_t>((bytes + page - 1) / page * page);
}

inline bool allocation_fails() {
  AllocationFaults& faults = allocation_faults;
  if (faults.mode == Failing::kNone || faults.paused) return false;
  --faults.until_failure;
  const bool fails = faults.until_failure == 0 || (faults.until_failure < 0 && faults.mode == Failing::kFromNthOn);
  faults.failures += fails ? 1 : 0;
  return fails;
}

inline void* try_to_allocate(std::size_t bytes, std::size_t alignment) {
  if (allocation_fails()) return nullptr;
  const std::size_t least = bytes == 0 ? 1 : bytes;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(least)
                     : std::aligned_alloc(alignment, (least + alignment - 1) / alignment * alignment);
  if (memory != nullptr) ++allocation_faults.outstanding;
  return memory;
}
inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* memory = try_to_allocate(bytes, alignment)) return memory;
  throw std::bad_alloc();
}
inline void give_back(void* memory) {
  if (memory != nullptr) --allocation_faults.outstanding;
  std::free(memory);
}

}  // namespace dsv4rt::test

// What the library asks of the system itself; those of malloc do not come here. Clang's AddressSanitizer has an mmap of
// its own in the program, which cannot be replaced: there only allocations fail, and maps are not counted.
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define DSV4RT_MAPS_CANNOT_FAIL
#endif
#endif
#ifndef DSV4RT_MAPS_CANNOT_FAIL
extern "C" inline __attribute__((visibility("default"), used, noinline)) void* mmap(void* at, std::size_t bytes,
                                                                                    int protection, int flags, int file,
                                                                                    off_t offset) noexcept {
  if ((flags & MAP_ANONYMOUS) != 0 && dsv4rt::test::allocation_fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* memory = reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
  if (memory != MAP_FAILED) dsv4rt::test::allocation_faults.mapped += dsv4rt::test::page_bytes(bytes);
  return memory;
}
extern "C" inline __attribute__((visibility("default"), used, noinline)) int munmap(void* at,
                                                                                    std::size_t bytes) noexcept {
  const int failed = static_cast<int>(syscall(SYS_munmap, at, bytes));
  if (failed == 0) dsv4rt::test::allocation_faults.mapped -= dsv4rt::test::page_bytes(bytes);
  return failed;
}
#endif

// Not inlined: beside an inlined `new`, GCC takes std::free for a mismatch (-Wmismatched-new-delete).
#define DSV4RT_REPLACED [[gnu::noinline]]
DSV4RT_REPLACED void* operator new(std::size_t n) {
  return dsv4rt::test::allocate_or_throw(n, 0);
}
DSV4RT_REPLACED void* operator new[](std::size_t n) {
  return dsv4rt::test::allocate_or_throw(n, 0);
}
DSV4RT_REPLACED void* operator new(std::size_t n, std::align_val_t a) {
  return dsv4rt::test::allocate_or_throw(n, static_cast<std::size_t>(a));
}
DSV4RT_REPLACED void* operator new[](std::size_t n, std::align_val_t a) {
  return dsv4rt::test::allocate_or_throw(n, static_cast<std::size_t>(a));
}
DSV4RT_REPLACED void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return dsv4rt::test::try_to_allocate(n, 0);
}
DSV4RT_REPLACED void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return dsv4rt::test::try_to_allocate(n, 0);
}
DSV4RT_REPLACED void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return dsv4rt::test::try_to_allocate(n, static_cast<std::size_t>(a));
}
DSV4RT_REPLACED void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return dsv4rt::test::try_to_allocate(n, static_cast<std::size_t>(a));
}
DSV4RT_REPLACED void operator delete(void* p) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete[](void* p) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete(void* p, std::size_t) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete[](void* p, std::size_t) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete(void* p, std::align_val_t) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete[](void* p, std::align_val_t) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete(void* p, const std::nothrow_t&) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete[](void* p, const std::nothrow_t&) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  dsv4rt::test::give_back(p);
}
DSV4RT_REPLACED void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  dsv4rt::test::give_back(p);
}
#undef DSV4RT_REPLACED
