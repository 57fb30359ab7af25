// Text that grows piece by piece into a file, which appears under its name when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/try.h"
#include "checkpoint/output_file.h"
#include "dsv4rt/status.h"

namespace dsv4rt::replay {

// OutputFile with a buffer; errors are its.
class TextOutput {
 public:
  static Result<TextOutput> create(const std::filesystem::path& path) {
    DSV4RT_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
    return TextOutput(std::move(file));
  }
  Status write(std::string_view text) {
    buffer_ += text;
    return buffer_.size() < kBufferBytes ? Status{} : flush();
  }
  Status commit() {
    DSV4RT_RETURN_IF_ERROR(flush());
    return file_.commit();
  }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 16;

  explicit TextOutput(OutputFile file) : file_(std::move(file)) {}
  Status flush() {
    Status status = file_.write(buffer_.data(), buffer_.size());
    buffer_.clear();
    return status;
  }

  OutputFile file_;
  std::string buffer_;
};

}  // namespace dsv4rt::replay
