// The bytes of a log, from a file or from standard input, read once and in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "dsv4rt/status.h"

namespace dsv4rt::replay {

// Holds one buffer of kBufferBytes, whatever the log's size.
class LogBytes {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

  // `path` names a file or a pipe; "-" is standard input. kNotFound, kResourceExhausted (descriptors) or kBadInput.
  static Result<LogBytes> open(const std::string& path);

  LogBytes(LogBytes&& other) noexcept;
  LogBytes& operator=(LogBytes&&) = delete;
  ~LogBytes();

  // Bytes not yet skipped: at least `wanted` (at most kBufferBytes), fewer only at the end of the log. Valid until the
  // next call. kBadInput when reading fails.
  Result<std::string_view> peek(std::size_t wanted);
  // Drops the first `bytes` of what peek gave.
  void skip(std::size_t bytes) noexcept { begin_ += bytes; }

  // For messages: the path, or "standard input".
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // What has been read so far, and whether that is all.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }
  [[nodiscard]] bool at_end() const noexcept { return at_end_; }
  [[nodiscard]] std::string sha256_hex() const { return sha256_.hex(); }

 private:
  LogBytes(std::string name, int fd, bool owned);

  std::string name_;
  int fd_;
  bool owned_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool at_end_ = false;
  std::uint64_t bytes_read_ = 0;
  Sha256 sha256_;
};

}  // namespace dsv4rt::replay
