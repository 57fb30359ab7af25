#include "replay/log_bytes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <span>
#include <unistd.h>
#include <utility>

#include "base/system_failure.h"

namespace dsv4rt::replay {

Result<LogBytes> LogBytes::open(const std::string& path) {
  if (path == "-") return LogBytes("standard input", STDIN_FILENO, /*owned=*/false);
  LogBytes log(path, -1, /*owned=*/true);  // before there is a descriptor that a failing allocation could lose
  log.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (log.fd_ < 0) return system_failure(path, "open", errno);
  return log;
}

LogBytes::LogBytes(std::string name, int fd, bool owned)
    : name_(std::move(name)), fd_(fd), owned_(owned), buffer_(kBufferBytes) {}

LogBytes::LogBytes(LogBytes&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      owned_(other.owned_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      end_(other.end_),
      at_end_(other.at_end_),
      bytes_read_(other.bytes_read_),
      sha256_(std::move(other.sha256_)) {}

LogBytes::~LogBytes() {
  if (owned_ && fd_ >= 0) ::close(fd_);
}

Result<std::string_view> LogBytes::peek(std::size_t wanted) {
  wanted = std::min(wanted, kBufferBytes);
  if (end_ - begin_ < wanted && begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  while (!at_end_ && end_ - begin_ < wanted) {
    const ssize_t got = ::read(fd_, buffer_.data() + end_, buffer_.size() - end_);
    if (got < 0) {
      if (errno == EINTR) continue;
      return system_failure(name_, "read", errno);
    }
    if (got == 0) {
      at_end_ = true;
      break;
    }
    sha256_.update(std::as_bytes(std::span(buffer_.data() + end_, static_cast<std::size_t>(got))));
    end_ += static_cast<std::size_t>(got);
    bytes_read_ += static_cast<std::uint64_t>(got);
  }
  return std::string_view(buffer_.data() + begin_, end_ - begin_);
}

}  // namespace dsv4rt::replay
