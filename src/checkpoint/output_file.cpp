#include "checkpoint/output_file.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "base/system_failure.h"

namespace dsv4rt {

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  std::string partial = path.string() + ".partial";
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd < 0) return system_failure(partial, "create", errno);
  return OutputFile(path, std::move(partial), fd);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::move(other.partial_path_)),
      fd_(std::exchange(other.fd_, -1)),
      failure_(std::move(other.failure_)) {}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_path_.c_str());
}

Status OutputFile::fail(const std::string& action, int error) {
  failure_ = system_failure(partial_path_, action, error);
  return failure_;
}

Status OutputFile::write(const void* data, std::size_t bytes) {
  if (!failure_.ok()) return failure_;
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      return fail("write " + std::to_string(bytes) + " bytes", errno);
    }
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return {};
}

Status OutputFile::commit() {
  if (!failure_.ok()) return failure_;
  // Some file systems report a full disk only when the file is closed.
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  if (closed && ::rename(partial_path_.c_str(), path_.c_str()) == 0) return {};
  const int error = errno;
  ::unlink(partial_path_.c_str());
  return fail(closed ? "rename to " + path_.string() : std::string("close"), error);
}

Status write_text_file(const std::filesystem::path& path, std::string_view text) {
  auto file = OutputFile::create(path);
  if (!file) return file.status();
  if (Status status = file->write(text.data(), text.size()); !status.ok()) return status;
  return file->commit();
}

}  // namespace dsv4rt
