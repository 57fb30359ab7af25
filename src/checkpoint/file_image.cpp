#include "checkpoint/file_image.h"

#include <cerrno>
#include <cstdint>
#include <string>
#include <unistd.h>

#include <sys/mman.h>

#include "base/arithmetic.h"
#include "base/message_text.h"
#include "base/reserved_bytes.h"
#include "base/system_failure.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Result<FileImage> FileImage::open(const std::filesystem::path& path) {
  DSV4RT_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
  if (file.bytes() == 0) return Status{StatusCode::kBadInput, shown(path) + ": is empty (0 bytes)"};
  const auto size = static_cast<std::size_t>(file.bytes());
  FileImage image(path, file.identity(), {});  // before there are addresses that a failing allocation could lose
  // Without rights it is no memory yet, so that no limit on memory counts it.
  const std::size_t reserved = round_up(size, page_bytes()) + kLargePageBytes;
  void* const address = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return system_failure(path.string(), "reserve addresses for it", errno);
  // At a multiple of a large page's size, for fewer faults while it is filled; what lies around is given back. Kernels
  // without large pages refuse, which changes nothing.
  auto* const begin = static_cast<std::byte*>(address);
  const std::size_t before = round_up(reinterpret_cast<std::uintptr_t>(begin), std::uintptr_t{kLargePageBytes}) -
                             reinterpret_cast<std::uintptr_t>(begin);
  if (before > 0) ::munmap(begin, before);
  if (before < kLargePageBytes) ::munmap(begin + reserved - (kLargePageBytes - before), kLargePageBytes - before);
  ::madvise(begin + before, size, MADV_HUGEPAGE);
  image.bytes_ = {begin + before, size};
  return image;
}

FileImage& FileImage::operator=(FileImage&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(identity_, other.identity_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

FileImage::~FileImage() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

bool FileImage::holds(std::span<const std::byte> part) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes_.data());
  const auto at = reinterpret_cast<std::uintptr_t>(part.data());
  return at >= begin && at - begin <= bytes_.size() && part.size() <= bytes_.size() - (at - begin);
}

Status FileImage::read(std::span<const std::byte> part) const {
  if (part.empty()) return {};
  DSV4RT_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path_));
  if (!(file.identity() == identity_)) {
    return {StatusCode::kBadInput, shown(path_) + ": has changed since it was opened: it had " +
                                       std::to_string(identity_.bytes) + " bytes and has " +
                                       std::to_string(file.bytes()) +
                                       (file.bytes() == identity_.bytes ? ", in another file" : "")};
  }
  const auto offset = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t first_page = offset / page_bytes() * page_bytes();
  auto* const base = const_cast<std::byte*>(bytes_.data());
  if (::mprotect(base + first_page, offset + part.size() - first_page, PROT_READ | PROT_WRITE) != 0) {
    return system_failure(path_.string(), "take memory for " + std::to_string(part.size()) + " bytes", errno);
  }
  return file.read(offset, base + offset, part.size());
}

void FileImage::drop(std::span<const std::byte> part) const noexcept {
  drop_pages(part);
}

}  // namespace dsv4rt
