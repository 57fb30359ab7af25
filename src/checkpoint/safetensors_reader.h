// One safetensors file: its header checked, its tensors as views of memory that read() fills.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/file_image.h"
#include "checkpoint/safetensors_header.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Opening reads only the header.
class SafetensorsReader {
 public:
  // Keeps the entries of the file's metadata that `metadata` names. Errors: those of FileImage and parse_safetensors.
  static Result<SafetensorsReader> open(const std::filesystem::path& path,
                                        std::span<const std::string_view> metadata = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  // Ascending by name. Views live as long as this object, across moves.
  [[nodiscard]] std::span<const TensorView> tensors() const noexcept { return header_.tensors; }
  // Null when the file has no such tensor.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  [[nodiscard]] const SafetensorsMetadata& metadata() const noexcept { return header_.metadata; }
  // Bytes of the header's JSON.
  [[nodiscard]] std::uint64_t header_bytes() const noexcept { return header_.json_bytes; }

  // The data of a view, or a part of it, must have been read before it is touched; see FileImage.
  [[nodiscard]] const FileImage& image() const noexcept { return file_; }
  [[nodiscard]] Status read(std::span<const std::byte> data) const { return file_.read(data); }

 private:
  SafetensorsReader(std::filesystem::path path, FileImage file, SafetensorsHeader header)
      : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {}

  std::filesystem::path path_;
  FileImage file_;
  SafetensorsHeader header_;
};

}  // namespace dsv4rt
