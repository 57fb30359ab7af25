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
// kMaxTensorDims dimensions; byte size == product(shape) * element size without overflow; the tensors
// cover the data from 0 to the end of the file without hole or overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_dtype.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensorDims = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

// One tensor of a file; borrowed from the file's bytes. `data` may be unaligned.
struct TensorView {
  std::string name;
  TensorDtype dtype = TensorDtype::kU8;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

struct SafetensorsHeader {
  std::vector<TensorView> tensors;  // ascending by name
  std::map<std::string, std::string> metadata;
};

// `file` is the whole file; `source` names it in messages, which also name the tensor and its data
// offset. Errors: kBadInput; kUnsupported for an unknown dtype (lists the known ones);
// kResourceExhausted without memory. Memory stays proportional to the header present in the file.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view source);

}  // namespace dsv4rt
