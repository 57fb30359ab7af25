// `model.safetensors.index.json`: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/output_file.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

inline constexpr std::string_view kWeightIndexFileName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleWeightFileName = "model.safetensors";
inline constexpr std::uint64_t kMaxWeightIndexBytes = 100'000'000;

// Which shard holds which tensor, as an index says.
struct WeightIndex {
  struct Entry {
    std::string_view name;
    std::uint32_t shard = 0;  // into `shards`
  };
  std::vector<Entry> entries;       // ascending by name; names are borrowed from the text, or from `names`
  std::vector<std::string> shards;  // ascending file names
  std::deque<std::string> names;    // those that the text writes with escapes

  // Null when the index does not list the tensor.
  [[nodiscard]] const std::string* shard_of(std::string_view name) const noexcept;

  WeightIndex() = default;
  WeightIndex(WeightIndex&&) = default;
  WeightIndex& operator=(WeightIndex&&) = default;
};

// Reads the text of an index, which must outlive the result. A shard must be a plain name ending in ".safetensors": no
// '/' or '\', no leading '.'. Keys other than "weight_map" are skipped ("metadata" carries sizes that published
// indexes get wrong). At most kMaxTensors tensors, as safetensors_header.h has it. Memory, beside the text: at most
// 64 MiB. Errors: kBadInput naming `source` and the entry; kResourceExhausted.
Result<WeightIndex> parse_weight_index(std::string_view text, std::string_view source);

// Writes an index whose metadata.total_size is `total_size` (bytes of all tensors); `shard_of` maps tensors to file
// names. Errors: those of write_text_file.
Status write_weight_index(const std::filesystem::path& path, const std::map<std::string, std::string>& shard_of,
                          std::uint64_t total_size, Existing existing = Existing::kReplace);

}  // namespace dsv4rt
