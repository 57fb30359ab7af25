#include "checkpoint/output_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <sys/stat.h>

#include "base/message_text.h"
#include "base/system_failure.h"

namespace dsv4rt {
namespace {

bool is_standard_output(const std::filesystem::path& path) {
  return path == "-";
}

std::string name_of(const std::filesystem::path& path) {
  return is_standard_output(path) ? "standard output" : path.string();
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

// What has gone wrong with bytes that were to be written: not the input's fault.
Status write_failure(const std::filesystem::path& path, const std::string& action, int error) {
  Status failure = system_failure(name_of(path), action, error);
  if (failure.code() == StatusCode::kResourceExhausted) return failure;
  return {StatusCode::kFaulted, failure.message()};
}

// Some file systems cannot force a folder to the disk and say so.
bool is_unsupported_sync(int error) {
  return error == EINVAL || error == ENOTSUP || error == EROFS;
}

enum class Target : std::uint8_t { kFile, kPipe };

Result<Target> classify(const std::filesystem::path& path, Existing existing) {
  const auto refused = [&](const std::string& reason) {
    return Status{StatusCode::kInvalidArgument, shown(path) + ": " + reason};
  };
  if (!path.has_filename()) return refused("names no file to write");
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return Target::kFile;
    return system_failure(path.string(), "write", errno);
  }
  struct stat target {};
  const bool link = S_ISLNK(info.st_mode);
  if (link && ::stat(path.c_str(), &target) != 0) target.st_mode = 0;
  if (S_ISFIFO(link ? target.st_mode : info.st_mode)) return Target::kPipe;
  if (link) return refused("is a symbolic link, which is not written through; accepted: the file's own name");
  if (S_ISDIR(info.st_mode)) return refused("is a directory; accepted: a file to write");
  if (!S_ISREG(info.st_mode)) {
    return refused("is not a regular file; accepted: regular files, named pipes and - for standard output");
  }
  if (existing == Existing::kRefuse) return refused("already exists");
  return Target::kFile;
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::filesystem::path& path, Existing existing) {
  OutputFile file(path, existing);
  if (is_standard_output(path)) {
    file.fd_ = STDOUT_FILENO;
    return file;
  }
  auto target = classify(path, existing);
  if (!target) return target.status();
  Status opened = *target == Target::kPipe ? file.open_stream() : file.open_beside(folder_of(path));
  if (!opened.ok()) return opened;
  return file;
}

Status OutputFile::open_stream() {
  // Waits for a reader, as a shell's redirection does.
  do {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  } while (fd_ < 0 && errno == EINTR);
  return fd_ < 0 ? fail(system_failure(path_.string(), "open", errno)) : Status{};
}

Status OutputFile::open_beside(const std::filesystem::path& folder) {
  constexpr int kAttempts = 16;  // names are random: already the second is not needed
  folder_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) return fail(system_failure(path_.string(), "create", errno));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    unfinished_ = UnfinishedOutput::in_folder(folder_);
    if (!unfinished_.taken()) {
      return fail({StatusCode::kResourceExhausted, shown(path_) + ": cannot create: too many files are being written"});
    }
    fd_ = ::openat(folder_, unfinished_.name(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ >= 0) return {};
    const int error = errno;
    unfinished_.forget();
    if (error != EEXIST) return fail(system_failure(path_.string(), "create", error));
  }
  return fail(system_failure(path_.string(), "create", EEXIST));
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      existing_(other.existing_),
      fd_(std::exchange(other.fd_, -1)),
      folder_(std::exchange(other.folder_, -1)),
      unfinished_(std::move(other.unfinished_)),
      failure_(std::move(other.failure_)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0 && fd_ != STDOUT_FILENO) ::close(fd_);
  unfinished_.remove();
  if (folder_ >= 0) ::close(folder_);
}

Status OutputFile::fail(Status failure) {
  failure_ = std::move(failure);
  return failure_;
}

Status OutputFile::write(const void* data, std::size_t bytes) {
  if (!failure_.ok()) return failure_;
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      return fail(write_failure(path_, "write " + std::to_string(bytes) + " bytes", errno));
    }
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return {};
}

Status OutputFile::commit() {
  if (!failure_.ok()) return failure_;
  if (fd_ == STDOUT_FILENO) return {};
  if (folder_ >= 0 && ::fsync(fd_) != 0) return fail(write_failure(path_, "force to the disk", errno));
  // Some file systems report a full disk only when the file is closed.
  if (::close(std::exchange(fd_, -1)) != 0) return fail(write_failure(path_, "close", errno));
  return folder_ >= 0 ? take_name() : Status{};
}

Status OutputFile::take_name() {
  // What has the name now may be another thing than at create().
  const auto target = classify(path_, existing_);
  if (!target) return fail(target.status());
  const std::string name = path_.filename().string();
  int failed = existing_ == Existing::kReplace
                   ? ::renameat(folder_, unfinished_.name(), folder_, name.c_str())
                   : ::renameat2(folder_, unfinished_.name(), folder_, name.c_str(), RENAME_NOREPLACE);
  if (failed != 0 && existing_ == Existing::kRefuse && errno == EINVAL) {
    // A file system without such a rename: a second name, which is refused where one exists.
    failed = ::linkat(folder_, unfinished_.name(), folder_, name.c_str(), 0);
    if (failed == 0) unfinished_.remove();
  }
  if (failed != 0) {
    if (errno == EEXIST) return fail({StatusCode::kInvalidArgument, shown(path_) + ": already exists"});
    return fail(write_failure(path_, "give the finished file its name", errno));
  }
  unfinished_.forget();
  if (::fsync(folder_) != 0 && !is_unsupported_sync(errno)) {
    const int error = errno;
    // The name was free before: after a failure it is again.
    if (existing_ == Existing::kRefuse) ::unlinkat(folder_, name.c_str(), 0);
    return fail(write_failure(path_, "force its folder to the disk", error));
  }
  return {};
}

Status check_output_path(const std::filesystem::path& path, Existing existing) {
  if (is_standard_output(path)) return {};
  const auto target = classify(path, existing);
  if (!target) return target.status();
  if (*target == Target::kPipe) return {};
  const std::filesystem::path folder = folder_of(path);
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return system_failure(path.string(), "create", errno);
  if (!S_ISDIR(info.st_mode)) return system_failure(path.string(), "create", ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return system_failure(path.string(), "create", errno);
  return {};
}

Status write_text_file(const std::filesystem::path& path, std::string_view text, Existing existing) {
  auto file = OutputFile::create(path, existing);
  if (!file) return file.status();
  if (Status status = file->write(text.data(), text.size()); !status.ok()) return status;
  return file->commit();
}

}  // namespace dsv4rt
