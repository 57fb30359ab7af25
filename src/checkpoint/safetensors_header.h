// The table of contents of a safetensors file, checked in full before anything refers to the data.
//
//   byte 0        8     8 + H                    end of file
//        | u64 H | JSON of H bytes | tensor data |
//
// The JSON maps every tensor name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted
// from byte 8 + H; "__metadata__" optionally maps strings to strings.
//
// Enforced: H <= kMaxSafetensorsHeaderBytes and within the file; the JSON starts with '{', is valid
// UTF-8 and has no duplicate key at any level; a tensor has exactly those three keys; at most
// kMaxTensorDims dimensions, kMaxTensors tensors and as many entries of metadata, kMaxTensorNameBytes
// bytes in a name; byte size == product(shape) * element size without overflow; the tensors
// cover the data from 0 to the end of the file without hole or overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_dtype.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

inline constexpr std::size_t kSafetensorsLengthBytes = 8;
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensorDims = 8;
// Of one checkpoint, whether in one file or in many: the largest published ones have below 300,000.
inline constexpr std::size_t kMaxTensors = 350'000;
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::string_view kMetadataKey = "__metadata__";

// One tensor of a file; name and data are borrowed from the file's bytes, the shape from the header it came with.
// `data` may be unaligned.
struct TensorView {
  std::string_view name;
  TensorDtype dtype = TensorDtype::kU8;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> data;
};

using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

// Movable; views stay valid.
struct SafetensorsHeader {
  std::vector<TensorView> tensors;  // ascending by name
  SafetensorsMetadata metadata;     // what was asked for
  std::uint64_t json_bytes = 0;
  // What shapes, and names that are written with escapes, lie in.
  std::vector<std::int64_t> dimensions;
  std::deque<std::string> names;

  SafetensorsHeader() = default;
  SafetensorsHeader(SafetensorsHeader&&) = default;
  SafetensorsHeader& operator=(SafetensorsHeader&&) = default;
};

// The length of the JSON, which `length_field`, the first 8 bytes of a file of `file_bytes`, states. kBadInput.
Result<std::uint64_t> safetensors_header_bytes(std::span<const std::byte> length_field, std::uint64_t file_bytes,
                                               std::string_view source);

// `file` is the whole file, of which only the header is read; `source` names it in messages, which also name the
// tensor and its data offset. Of "__metadata__" the entries that `metadata` names are kept, the others skipped.
// Errors: kBadInput; kUnsupported for an unknown dtype (lists the known ones); kResourceExhausted without memory.
// Memory, beside the header itself: at most 64 MiB.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view source,
                                            std::span<const std::string_view> metadata = {});

}  // namespace dsv4rt
