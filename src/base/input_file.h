// Reading files that others may change meanwhile: into memory of our own, never through a map of the file, whose pages
// disappear (SIGBUS) when the file becomes shorter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt {

// Which file it is, and how long it was.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// An open regular file.
class InputFile {
 public:
  // Symbolic links are followed. Errors name the path: kNotFound; kBadInput for a directory, what is no regular file,
  // what cannot be read or a loop of links; kResourceExhausted without a descriptor.
  static Result<InputFile> open(const std::filesystem::path& path);

  InputFile(InputFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), identity_(other.identity_) {}
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  [[nodiscard]] const FileIdentity& identity() const noexcept { return identity_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return identity_.bytes; }

  // Bytes [offset, offset + bytes). kBadInput when the file ends before: it has become shorter since it was opened.
  [[nodiscard]] Status read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  explicit InputFile(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  int fd_ = -1;
  FileIdentity identity_;
};

// A whole file of at most `most_bytes`, else kBadInput.
Result<std::string> read_whole_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace dsv4rt
