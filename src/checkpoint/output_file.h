// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt {

// Bytes go to "<path>.partial"; commit() renames it to `path`, and without commit() it is removed. So
// `path` is either absent, the old file, or complete. Nothing forces the data to the disk.
// Errors name the file: kNotFound without its directory; kResourceExhausted for a full disk, quota or
// descriptor table; otherwise kBadInput. After an error the object only fails.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  [[nodiscard]] Status write(const void* data, std::size_t bytes);
  [[nodiscard]] Status commit();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  OutputFile(std::filesystem::path path, std::string partial_path, int fd)
      : path_(std::move(path)), partial_path_(std::move(partial_path)), fd_(fd) {}
  Status fail(const std::string& action, int error);

  std::filesystem::path path_;
  std::string partial_path_;
  int fd_ = -1;
  Status failure_;
};

// Replaces `path` by `text` through an OutputFile.
[[nodiscard]] Status write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace dsv4rt
