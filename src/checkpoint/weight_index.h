// `model.safetensors.index.json`: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "dsv4rt/status.h"

namespace dsv4rt {

inline constexpr std::string_view kWeightIndexFileName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleWeightFileName = "model.safetensors";
inline constexpr std::uint64_t kMaxWeightIndexBytes = 100'000'000;

struct WeightIndex {
  std::map<std::string, std::string, std::less<>> shard_of;  // tensor name -> file name, "weight_map"
};

// Reads the text of an index. A shard must be a plain name ending in ".safetensors": no '/' or '\', no
// leading '.'. Keys other than "weight_map" are skipped ("metadata" carries sizes that published
// indexes get wrong). Errors: kBadInput naming `source` and the entry; kResourceExhausted.
Result<WeightIndex> parse_weight_index(std::string_view text, std::string_view source);

// Writes an index whose metadata.total_size is `total_size` (bytes of all tensors), under a temporary
// name first. Errors: kNotFound, kBadInput, kResourceExhausted as the file system says.
Status write_weight_index(const std::filesystem::path& path, const WeightIndex& index, std::uint64_t total_size);

}  // namespace dsv4rt
