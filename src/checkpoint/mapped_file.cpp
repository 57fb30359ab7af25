#include "checkpoint/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>

#include "base/system_failure.h"

namespace dsv4rt {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return system_failure(path.string(), "open", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_failure(path.string(), "stat", errno);
  if (S_ISDIR(info.st_mode)) return Status{StatusCode::kBadInput, path.string() + ": is a directory, not a file"};
  if (!S_ISREG(info.st_mode)) return Status{StatusCode::kBadInput, path.string() + ": is not a regular file"};
  if (info.st_size == 0) return Status{StatusCode::kBadInput, path.string() + ": is empty (0 bytes)"};
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return system_failure(path.string(), "map into memory", errno);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace dsv4rt
