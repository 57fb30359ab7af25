// One safetensors file: mapped, its header checked, its tensors as views.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Reads only the header; a tensor's pages are touched when its view is.
class SafetensorsReader {
 public:
  // Errors: those of MappedFile::open and parse_safetensors.
  static Result<SafetensorsReader> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  // Ascending by name. Views live as long as this object, across moves.
  [[nodiscard]] std::span<const TensorView> tensors() const noexcept { return header_.tensors; }
  // Null when the file has no such tensor.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }

 private:
  SafetensorsReader(std::filesystem::path path, MappedFile file, SafetensorsHeader header)
      : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {}

  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace dsv4rt
