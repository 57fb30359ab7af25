#include "unit/checkpoint/allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> peak_live_bytes{0};
std::atomic<std::size_t> allocation_limit_bytes{SIZE_MAX};

void* counted_allocate(std::size_t bytes) {
  if (bytes > allocation_limit_bytes.load()) throw std::bad_alloc();
  void* const address = std::malloc(bytes == 0 ? 1 : bytes);
  if (address == nullptr) throw std::bad_alloc();
  const std::size_t now = live_bytes += malloc_usable_size(address);
  std::size_t peak = peak_live_bytes.load();
  while (now > peak && !peak_live_bytes.compare_exchange_weak(peak, now)) {
  }
  return address;
}

void counted_free(void* address) {
  if (address == nullptr) return;
  live_bytes -= malloc_usable_size(address);
  std::free(address);
}

}  // namespace

void* operator new(std::size_t bytes) { return counted_allocate(bytes); }
void* operator new[](std::size_t bytes) { return counted_allocate(bytes); }
// Replaced too, so that every block that counted_free gets came from counted_allocate.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return counted_allocate(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
void operator delete(void* address) noexcept { counted_free(address); }
void operator delete[](void* address) noexcept { counted_free(address); }
void operator delete(void* address, std::size_t) noexcept { counted_free(address); }
void operator delete[](void* address, std::size_t) noexcept { counted_free(address); }
void operator delete(void* address, const std::nothrow_t&) noexcept { counted_free(address); }
void operator delete[](void* address, const std::nothrow_t&) noexcept { counted_free(address); }

namespace dsv4rt {

AllocationMeter::AllocationMeter() : base_bytes_(live_bytes.load()) { peak_live_bytes = base_bytes_; }

std::size_t AllocationMeter::peak_bytes() const {
  const std::size_t peak = peak_live_bytes.load();
  return peak > base_bytes_ ? peak - base_bytes_ : 0;
}

AllocationLimit::AllocationLimit(std::size_t limit_bytes) { allocation_limit_bytes = limit_bytes; }
AllocationLimit::~AllocationLimit() { allocation_limit_bytes = SIZE_MAX; }

}  // namespace dsv4rt
