// A read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "dsv4rt/status.h"

namespace dsv4rt {

// Owns the mapping; moving keeps its address. The file must not shrink while it is mapped: touching
// a page past the new end raises SIGBUS, as with every memory map.
class MappedFile {
 public:
  // Opens and maps `path` (symbolic links are followed). Errors name the path:
  //  * kNotFound: there is no such file;
  //  * kBadInput: a directory, not a regular file, empty, not readable, or a loop of links;
  //  * kResourceExhausted: the process has no file descriptor or address space left.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Page-aligned; valid as long as this object.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace dsv4rt
