#include "checkpoint/safetensors_reader.h"

#include <algorithm>
#include <utility>

#include "base/try.h"

namespace dsv4rt {

Result<SafetensorsReader> SafetensorsReader::open(const std::filesystem::path& path,
                                                  std::span<const std::string_view> metadata) {
  DSV4RT_ASSIGN_OR_RETURN(FileImage file, FileImage::open(path));
  const auto length_field = file.bytes().first(std::min(file.bytes().size(), kSafetensorsLengthBytes));
  DSV4RT_RETURN_IF_ERROR(file.read(length_field));
  DSV4RT_ASSIGN_OR_RETURN(const std::uint64_t json_bytes,
                          safetensors_header_bytes(length_field, file.bytes().size(), path.native()));
  DSV4RT_RETURN_IF_ERROR(file.read(file.bytes().subspan(kSafetensorsLengthBytes, json_bytes)));
  DSV4RT_ASSIGN_OR_RETURN(SafetensorsHeader header, parse_safetensors(file.bytes(), path.native(), metadata));
  return SafetensorsReader(path, std::move(file), std::move(header));
}

const TensorView* SafetensorsReader::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(header_.tensors.begin(), header_.tensors.end(), name,
                                      [](const TensorView& tensor, std::string_view key) { return tensor.name < key; });
  return found != header_.tensors.end() && found->name == name ? &*found : nullptr;
}

}  // namespace dsv4rt
