// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/unfinished_output.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// What becomes of a file that already has the name.
enum class Existing : std::uint8_t { kReplace, kRefuse };

// Bytes go to a file of a unique name beside `path`; commit() forces them to the disk, gives them the name and forces
// the folder to the disk; without commit() the file is removed. So `path` is either absent, the old file, or complete,
// also after a loss of power, and of several writers of one path the last one's file is there, whole.
//
// What is not a regular file is not replaced, nor is a symbolic link followed: kInvalidArgument. A named pipe (also
// behind a link, as /dev/fd/N is) gets the bytes as they come, and so does standard output, whose name is "-".
//
// Errors name the file: kNotFound without its folder; kResourceExhausted for a full descriptor table; kBadInput where
// the file cannot be made; kFaulted when writing fails (a full disk, a quota, RLIMIT_FSIZE where SIGXFSZ is ignored,
// EIO, a closed pipe); kInvalidArgument for a file that exists and is not to be replaced. After an error the object
// only fails.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path, Existing existing = Existing::kReplace);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  [[nodiscard]] Status write(const void* data, std::size_t bytes);
  [[nodiscard]] Status commit();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  OutputFile(std::filesystem::path path, Existing existing) : path_(std::move(path)), existing_(existing) {}
  Status open_stream();
  Status open_beside(const std::filesystem::path& folder);
  Status take_name();
  Status fail(Status failure);

  std::filesystem::path path_;
  Existing existing_;
  int fd_ = -1;
  int folder_ = -1;              // -1 for pipes and standard output
  UnfinishedOutput unfinished_;  // the unique name
  Status failure_;
};

// Whether create() would take `path`, looked at without making anything: arguments are checked before work begins.
[[nodiscard]] Status check_output_path(const std::filesystem::path& path, Existing existing);

// Writes `text` to `path` through an OutputFile.
[[nodiscard]] Status write_text_file(const std::filesystem::path& path, std::string_view text,
                                     Existing existing = Existing::kReplace);

}  // namespace dsv4rt
