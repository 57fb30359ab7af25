#include <cstring>

#include "backend/cuda/kernels/linear/linear_dispatch.h"
#include "backend/cuda/kernels/linear/packing/packed_bytes.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kUnitBytes = 16;
constexpr std::int64_t kUnitsPerRow = kStageBytesOfInput / kUnitBytes;
constexpr std::int64_t kScaleBlockRows = 128;

HostBytes uninitialized(std::int64_t size) {
  return {std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(size)), static_cast<std::size_t>(size)};
}

const std::uint8_t* scale_row(const HostLinear& weight, std::int64_t row) {
  const std::int64_t columns = (weight.in_features + kScaleBlockInputs - 1) / kScaleBlockInputs;
  return reinterpret_cast<const std::uint8_t*>(weight.scale.data()) +
         (weight.first_row + row) / kScaleBlockRows * columns;
}

// 128 bytes of each of 64 rows, the 16-byte units of row r exchanged by r % 8: the swizzle of the copy engine
// and the matrix instruction.
void pack_swizzled(const std::byte* rows, std::int64_t row_bytes, std::byte* tile) {
  for (std::int64_t r = 0; r < kRowTile; ++r) {
    for (std::int64_t u = 0; u < kUnitsPerRow; ++u) {
      std::memcpy(tile + r * kStageBytesOfInput + (u ^ (r % 8)) * kUnitBytes, rows + r * row_bytes + u * kUnitBytes,
                  kUnitBytes);
    }
  }
}

// Two neighbouring codes of a row and the two below them, eight rows on, as the kernel's widen() takes them apart.
std::uint32_t widen_word(std::uint32_t upper_pair, std::uint32_t lower_pair) {
  const auto spread = [](std::uint32_t pair) { return (pair & 0xffU) | (pair & 0xff00U) << 8; };
  const std::uint32_t upper = spread(upper_pair);
  const std::uint32_t lower = spread(lower_pair);
  // The upper codes: signs, then exponents and mantissas. The lower ones take the bits that are left.
  return (upper & 0x00800080U) << 8 | (upper & 0x007f007fU) << 4 | (lower & 0x00800080U) << 4 |
         (lower & 0x00700070U) << 8 | (lower & 0x000f000fU);
}

std::uint32_t load_pair(const std::byte* at) {
  std::uint16_t pair = 0;
  std::memcpy(&pair, at, sizeof pair);
  return pair;
}

// 64 codes of each of 64 rows in register order.
void pack_registers(const std::byte* rows, std::int64_t row_bytes, std::byte* tile) {
  constexpr std::int64_t kPrefillsPerStep = kTileStepInputs / 2;
  for (std::int64_t warp = 0; warp < kRowTileWarps; ++warp) {
    for (std::int64_t r = 0; r < 8; ++r) {
      const std::byte* upper = rows + (warp * 16 + r) * row_bytes;
      const std::byte* lower = upper + 8 * row_bytes;
      std::byte* lanes = tile + warp * 512 + r * 4 * kUnitBytes;
      for (std::int64_t step = 0; step < 4; ++step) {
        for (std::int64_t pair = 0; pair < kPrefillsPerStep; ++pair) {
          const std::int64_t column = (step * kPrefillsPerStep + pair) * 2;
          const std::uint32_t word = widen_word(load_pair(upper + column), load_pair(lower + column));
          std::memcpy(lanes + step / 2 * 2048 + pair % 4 * kUnitBytes + step % 2 * 8 + pair / 4 * 4, &word,
                      sizeof word);
        }
      }
    }
  }
}

}  // namespace

std::optional<TileKind> tile_kind_of(bool has_sm90a, const HostLinear& weight, LinearPrecision precision) {
  const std::optional<TileKind> kind =
      tiles_of_shape(has_sm90a, weight.encoding, weight.activation, weight.out_features, weight.in_features, precision);
  if (kind == std::nullopt || kind == TileKind::kBf16) return kind;
  if (weight.first_row % kRowTile != 0) return std::nullopt;  // a row tile has one scale per 128 inputs
  if (kind == TileKind::kFp8Products) return kind;
  // Widening multiplies by 2^120 times the scale, which must be a BF16.
  constexpr int kMaxWideScale = kE8m0Bias + 7;
  for (std::int64_t row = 0; row < weight.out_features; row += kRowTile) {
    const std::uint8_t* scales = scale_row(weight, row);
    for (std::int64_t block = 0; block < weight.in_features / kScaleBlockInputs; ++block) {
      if (scales[block] < 1 || scales[block] > kMaxWideScale) return std::nullopt;
    }
  }
  return TileKind::kFp8;
}

PackedBytes pack_wgmma(const HostLinear& weight, TileKind kind) {
  const std::int64_t value_bytes = kind == TileKind::kBf16 ? 2 : 1;
  const std::int64_t row_bytes = weight.in_features * value_bytes;
  const std::int64_t step_bytes = stage_inputs(kind) * value_bytes;
  const std::int64_t stages = weight.in_features / stage_inputs(kind);
  const std::int64_t row_tiles = weight.out_features / kRowTile;
  const std::byte* source = weight.weight.data() + weight.first_row * row_bytes;
  PackedBytes packed;
  packed.codes = uninitialized(row_tiles * stages * stage_tile_bytes(kind));
  std::byte* tile = packed.codes.data.get();
  for (std::int64_t t = 0; t < row_tiles; ++t) {
    for (std::int64_t stage = 0; stage < stages; ++stage, tile += stage_tile_bytes(kind)) {
      const std::byte* rows = source + t * kRowTile * row_bytes + stage * step_bytes;
      if (kind == TileKind::kFp8) {
        pack_registers(rows, row_bytes, tile);
      } else {
        pack_swizzled(rows, row_bytes, tile);
      }
    }
  }
  if (kind == TileKind::kBf16) return packed;

  const std::int64_t blocks = weight.in_features / kScaleBlockInputs;
  packed.scales = uninitialized(row_tiles * blocks * std::int64_t{sizeof(float)});
  for (std::int64_t t = 0; t < row_tiles; ++t) {
    const std::uint8_t* scales = scale_row(weight, t * kRowTile);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float scale = decode_e8m0(scales[block]);
      std::memcpy(packed.scales.data.get() + (t * blocks + block) * std::int64_t{sizeof(float)}, &scale, sizeof(float));
    }
  }
  return packed;
}

}  // namespace dsv4rt::cuda
