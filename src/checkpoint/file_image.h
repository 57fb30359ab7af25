// A file's bytes at fixed addresses, read where and when they are wanted.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "base/input_file.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Address space as large as the file; memory is taken by read() and given back by drop(). Touching bytes that were not
// read faults. The file is opened for every read() and must be the one it was: unlike a map of the file, bytes once
// read stay, and a file that becomes shorter gives a Status instead of SIGBUS. Moving keeps the address.
class FileImage {
 public:
  // Reads nothing. Errors name the path: those of InputFile::open; kBadInput for an empty file; kResourceExhausted
  // without address space.
  static Result<FileImage> open(const std::filesystem::path& path);

  FileImage() = default;
  FileImage(FileImage&& other) noexcept
      : path_(std::move(other.path_)), identity_(other.identity_), bytes_(std::exchange(other.bytes_, {})) {}
  FileImage& operator=(FileImage&& other) noexcept;
  ~FileImage();

  // Page-aligned; valid as long as this object.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool holds(std::span<const std::byte> part) const noexcept;

  // Makes `part`, which lies in bytes(), readable. kBadInput when the file is another one, or ends before; those of
  // InputFile; kResourceExhausted without memory. Parts may overlap; several threads may read.
  [[nodiscard]] Status read(std::span<const std::byte> part) const;
  // Gives back the memory of whole pages of `part`; it may be read again.
  void drop(std::span<const std::byte> part) const noexcept;

 private:
  FileImage(std::filesystem::path path, const FileIdentity& identity, std::span<const std::byte> bytes)
      : path_(std::move(path)), identity_(identity), bytes_(bytes) {}

  std::filesystem::path path_;
  FileIdentity identity_;
  std::span<const std::byte> bytes_;
};

}  // namespace dsv4rt
