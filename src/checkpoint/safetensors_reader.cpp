#include "checkpoint/safetensors_reader.h"

#include <algorithm>
#include <utility>

namespace dsv4rt {

Result<SafetensorsReader> SafetensorsReader::open(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.status();
  auto header = parse_safetensors(file->bytes(), path.string());
  if (!header) return header.status();
  return SafetensorsReader(path, std::move(*file), std::move(*header));
}

const TensorView* SafetensorsReader::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(header_.tensors.begin(), header_.tensors.end(), name,
                                      [](const TensorView& tensor, std::string_view key) { return tensor.name < key; });
  return found != header_.tensors.end() && found->name == name ? &*found : nullptr;
}

}  // namespace dsv4rt
