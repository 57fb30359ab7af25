#include <algorithm>
#include <cstring>

#include "backend/cuda/kernels/linear/packing/packed_bytes.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "base/arithmetic.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kLaneValues = 8;
constexpr std::int64_t kScaleBlockRows = 128;
constexpr std::int64_t kNvfp4Group = 16;

HostBytes zeros(std::int64_t size) {
  return {std::make_unique<std::byte[]>(static_cast<std::size_t>(size)), static_cast<std::size_t>(size)};
}

// Two neighbouring inputs of a row stay together; a pair takes kPrefillBytes and a lane's 16 bytes hold
// several tiles.
template <std::int64_t kPrefillBytes>
HostBytes pack_codes(const HostLinear& weight) {
  constexpr std::int64_t kTilesPerLane = 4 / kPrefillBytes;
  constexpr std::int64_t kLaneBytes = 16;
  const std::int64_t padded = round_up<std::int64_t>(weight.in_features, kInputPadding);
  const std::int64_t groups = ceil_div<std::int64_t>(weight.out_features, kTileRows);
  const std::int64_t group_bytes = padded / 2 * kPrefillBytes * kTileRows;
  const std::int64_t row_bytes = weight.in_features * kPrefillBytes / 2;
  HostBytes codes = zeros(groups * group_bytes);
  for (std::int64_t row = 0; row < weight.out_features; ++row) {
    const std::byte* from = weight.weight.data() + (weight.first_row + row) * row_bytes;
    std::byte* to = codes.data.get() + row / kTileRows * group_bytes + row % 8 * 4 * kLaneBytes +
                    row % kTileRows / 8 * kPrefillBytes;
    for (std::int64_t at = 0; at < row_bytes; at += kPrefillBytes) {
      const std::int64_t pair = at / kPrefillBytes;
      const std::int64_t tile = pair / 8;
      const std::int64_t offset = tile / kTilesPerLane * kLanes * kLaneBytes + pair % 4 * kLaneBytes +
                                  tile % kTilesPerLane * (kLaneValues / 2) * kPrefillBytes +
                                  pair % 8 / 4 * 2 * kPrefillBytes;
      std::memcpy(to + offset, from + at, static_cast<std::size_t>(std::min(kPrefillBytes, row_bytes - at)));
    }
  }
  return codes;
}

HostBytes pack_fp8_scales(const HostLinear& weight) {
  const std::int64_t groups = ceil_div<std::int64_t>(weight.out_features, kTileRows);
  const std::int64_t blocks = ceil_div<std::int64_t>(weight.in_features, kScaleBlockInputs);
  HostBytes scales = zeros(groups * blocks * std::int64_t{sizeof(float)});
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::byte* row = weight.scale.data() + (weight.first_row + group * kTileRows) / kScaleBlockRows * blocks;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float scale = decode_e8m0(std::to_integer<std::uint8_t>(row[block]));
      std::memcpy(scales.data.get() + (group * blocks + block) * std::int64_t{sizeof(float)}, &scale, sizeof(float));
    }
  }
  return scales;
}

HostBytes pack_nvfp4_scales(const HostLinear& weight) {
  const std::int64_t groups = ceil_div<std::int64_t>(weight.out_features, kTileRows);
  const std::int64_t stored = weight.in_features / kNvfp4Group;
  const std::int64_t padded = round_up<std::int64_t>(weight.in_features, kInputPadding) / kNvfp4Group;
  HostBytes scales = zeros(groups * padded * kTileRows);
  for (std::int64_t row = 0; row < weight.out_features; ++row) {
    const std::byte* from = weight.scale.data() + (weight.first_row + row) * stored;
    std::byte* to = scales.data.get() + row / kTileRows * padded * kTileRows + row % kTileRows;
    for (std::int64_t group = 0; group < stored; ++group) to[group * kTileRows] = from[group];
  }
  return scales;
}

}  // namespace

PackedBytes pack_mma(const HostLinear& weight) {
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      return {pack_codes<4>(weight), {}};
    case WeightEncoding::kFp8Block128:
      return {pack_codes<2>(weight), pack_fp8_scales(weight)};
    case WeightEncoding::kNvfp4:
      return {pack_codes<1>(weight), pack_nvfp4_scales(weight)};
  }
  return {};
}

}  // namespace dsv4rt::cuda
