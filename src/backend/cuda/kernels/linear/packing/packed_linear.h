// Weight matrices on the device, in one of two orders that pack_linear chooses by encoding, shape and device.
//
// Tiles (Hopper, outputs a multiple of 64, inputs of 128): what the kernels copy into shared memory, one
// contiguous piece per row tile of 64 outputs and stage.
//   kBf16      [out / 64][k / 64]   64 rows of 128 B, 16-byte unit u of row r at u ^ (r % 8)
//   kFp8Products  [out / 64][k / 128]  64 rows of 128 codes, swizzled alike; scales float [out / 64][k / 128]
//   kFp8       [out / 64][k / 64]   [step pair 2][warp 4][lane 32][step 2][2] words; scales float [out / 64][k / 128]
// A word holds four codes of the matrix instruction's A fragment, (r, c) (r, c+1) and (r+8, c) (r+8, c+1) or the
// same eight columns on, so that few operations widen them. Half i of the word, with s the sign, e3..e0 the
// exponent and m the mantissa of column c + i in the upper row, S, E3..E0, M of the lower one:
//   s E3 E2 E1 S e3 e2 e1 e0 m m m E0 M M M
//
// Lanes (everything else): what the portable kernel's warps load from global memory.
// A tile is 16 outputs x 16 inputs: the A operand of one mma.m16n8k16. Lane l of a warp holds its 8
// values (rows l/4 and l/4 + 8, columns 2 * (l % 4) + {0, 1, 8, 9}), in the order
//   (r, c) (r, c+1) (r+8, c) (r+8, c+1) (r, c+8) (r, c+9) (r+8, c+8) (r+8, c+9)
// that the instruction's registers have. Tiles of one row group follow one another along the inputs.
//   BF16    16 B a lane: one tile           [groups][k / 16][lane][8] bf16
//   FP8     16 B a lane: two tiles          [groups][k / 32][lane][2][8] codes
//   NVFP4   16 B a lane: four tiles         [groups][k / 64][lane][4][8] nibbles, low nibble first
// Inputs are padded with zeros to 64, outputs to 16.
//   FP8 scales     float [ceil(out / 16)][ceil(in / 128)]: the 128x128 block that holds the group
//   NVFP4 scales   E4M3 [groups][k / 16][16]: of each row's 16 inputs
//
// Rows, which LinearPrecision::kNvfp4 holds of NVFP4 weights beside lanes: what cuBLASLt takes.
//   E2M1 codes [out][in / 2], low nibble first; scales E4M3 without signs, in tiles (nvfp4_scale_tiles.h)
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "checkpoint/host_linear.h"
#include "dsv4rt/linear_precision.h"

namespace dsv4rt::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileInputs = 16;
inline constexpr int kInputPadding = 64;

// bytes() is that of the first copy: a step reads one of the two.
class CudaPackedLinear final : public PackedLinear {
 public:
  // tiles: the kind when packed in tiles, nothing when packed in lanes.
  CudaPackedLinear(const HostLinear& host, std::optional<TileKind> tiles, Buffer codes, Buffer scales);

  [[nodiscard]] WeightEncoding encoding() const noexcept { return encoding_; }
  [[nodiscard]] ActivationRounding activation() const noexcept { return activation_; }
  [[nodiscard]] const std::byte* codes() const noexcept { return codes_.data(); }
  [[nodiscard]] const std::byte* scales() const noexcept { return scales_.data(); }  // null for BF16
  [[nodiscard]] float global_scale() const noexcept { return global_scale_; }
  [[nodiscard]] float input_scale() const noexcept { return input_scale_; }  // 0: none

  [[nodiscard]] bool wgmma_packed() const noexcept { return tiles_.has_value(); }
  // Precondition: wgmma_packed().
  [[nodiscard]] TileKind tile_kind() const noexcept { return *tiles_; }
  // Precondition: not wgmma_packed().
  [[nodiscard]] std::int64_t padded_inputs() const noexcept;

  void hold_rows(Buffer codes, Buffer scales);
  [[nodiscard]] const std::byte* row_codes() const noexcept { return row_codes_.data(); }  // null without rows
  [[nodiscard]] const std::byte* row_scales() const noexcept { return row_scales_.data(); }

 private:
  WeightEncoding encoding_;
  ActivationRounding activation_;
  std::optional<TileKind> tiles_;
  float global_scale_;
  float input_scale_;
  Buffer codes_;
  Buffer scales_;
  Buffer row_codes_;
  Buffer row_scales_;
};

// Whether cuBLASLt can multiply the weight in NVFP4.
bool can_be_rows(const HostLinear& weight);
// The bytes of rows; 0 for a weight that cannot be held so.
std::int64_t row_copy_bytes(const HostLinear& weight);

// Packs on the host and uploads, for kNvfp4 as rows too where it can. kUnsupported naming the tensor when first_row is
// not a multiple of 16, kBadInput when the stored arrays are too short.
Result<std::unique_ptr<PackedLinear>> pack_linear(Backend& backend, const CudaDevice& device, const HostLinear& weight,
                                                  LinearPrecision precision = LinearPrecision::kExact);

}  // namespace dsv4rt::cuda
