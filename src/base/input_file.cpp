#include "base/input_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/message_text.h"
#include "base/system_failure.h"
#include "base/try.h"

namespace dsv4rt {

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  InputFile file(path);  // before there is a descriptor that a failing allocation could lose
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file.fd_ < 0) return system_failure(path.string(), "open", errno);
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) return system_failure(path.string(), "stat", errno);
  if (S_ISDIR(info.st_mode)) return Status{StatusCode::kBadInput, shown(path) + ": is a directory, not a file"};
  if (!S_ISREG(info.st_mode)) return Status{StatusCode::kBadInput, shown(path) + ": is not a regular file"};
  file.identity_ = {.device = info.st_dev, .inode = info.st_ino, .bytes = static_cast<std::uint64_t>(info.st_size)};
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, next, bytes, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return system_failure(path_.string(), "read", errno);
    }
    if (got == 0) {
      return {StatusCode::kBadInput, shown(path_) + ": ends at byte " + std::to_string(offset) + ", but had " +
                                         std::to_string(identity_.bytes) +
                                         " bytes when it was opened: it has become shorter since"};
    }
    next += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

Result<std::string> read_whole_file(const std::filesystem::path& path, std::size_t most_bytes) {
  DSV4RT_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
  if (file.bytes() > most_bytes) {
    return Status{StatusCode::kBadInput, shown(path) + ": file has " + std::to_string(file.bytes()) +
                                             " bytes; at most " + std::to_string(most_bytes) + " are accepted"};
  }
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  DSV4RT_RETURN_IF_ERROR(file.read(0, text.data(), text.size()));
  return text;
}

}  // namespace dsv4rt
