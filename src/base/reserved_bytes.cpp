#include "base/reserved_bytes.h"

#include <cerrno>
#include <string>
#include <unistd.h>

#include <sys/mman.h>

#include "base/arithmetic.h"
#include "base/system_failure.h"

namespace dsv4rt {

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

void ReservedBytes::drop(std::size_t offset, std::size_t bytes) const noexcept {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = round_up(offset, page);
  const std::size_t last = (offset + bytes) / page * page;
  if (first < last) ::madvise(bytes_.data() + first, last - first, MADV_DONTNEED);
}

}  // namespace dsv4rt
