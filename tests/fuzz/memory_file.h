// A file in memory that is read by its path.
#pragma once

#include <string>
#include <string_view>
#include <unistd.h>

#include <sys/mman.h>

#include "expect.h"

namespace dsv4rt::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzzed", MFD_CLOEXEC)) {
    expect(fd_ >= 0, "memfd_create");
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      expect(written > 0, "write");
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace dsv4rt::fuzz
