#include "base/reserved_bytes.h"

#include <cerrno>
#include <cstdint>
#include <string>
#include <unistd.h>

#include <sys/mman.h>

#include "base/arithmetic.h"
#include "base/system_failure.h"

namespace dsv4rt {

void drop_pages(std::span<const std::byte> bytes) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first = round_up(begin, page);
  const std::uintptr_t last = (begin + bytes.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

Result<ReservedBytes> ReservedBytes::reserve(std::size_t bytes, std::string_view purpose) {
  void* const address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return system_failure(std::string(purpose), "reserve " + std::to_string(bytes) + " bytes of addresses", errno);
  }
  return ReservedBytes({static_cast<std::byte*>(address), bytes});
}

ReservedBytes::~ReservedBytes() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace dsv4rt
