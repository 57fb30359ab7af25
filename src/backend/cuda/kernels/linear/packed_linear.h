// Weight matrices in the order in which the linear kernel's warps load them.
//
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
#pragma once

#include <memory>

#include "backend/backend.h"
#include "checkpoint/host_linear.h"

namespace dsv4rt::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileInputs = 16;
inline constexpr int kInputPadding = 64;

class CudaPackedLinear final : public PackedLinear {
 public:
  CudaPackedLinear(const HostLinear& host, std::int64_t padded_inputs, Buffer codes, Buffer scales);

  [[nodiscard]] WeightEncoding encoding() const noexcept { return encoding_; }
  [[nodiscard]] ActivationRounding activation() const noexcept { return activation_; }
  [[nodiscard]] std::int64_t padded_inputs() const noexcept { return padded_inputs_; }
  [[nodiscard]] const std::byte* codes() const noexcept { return codes_.data(); }
  [[nodiscard]] const std::byte* scales() const noexcept { return scales_.data(); }  // null for BF16
  [[nodiscard]] float global_scale() const noexcept { return global_scale_; }

 private:
  WeightEncoding encoding_;
  ActivationRounding activation_;
  std::int64_t padded_inputs_;
  float global_scale_;
  Buffer codes_;
  Buffer scales_;
};

// Packs on the host and uploads. kUnsupported naming the tensor when first_row is not a multiple of 16.
Result<std::unique_ptr<PackedLinear>> pack_linear(Backend& backend, const HostLinear& weight);

}  // namespace dsv4rt::cuda
