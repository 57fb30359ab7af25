// A linear layer's weight as it lies in the checkpoint: the input of Backend::pack_linear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace dsv4rt {

enum class WeightEncoding : std::uint8_t {
  kBf16,         // BF16 [out, in]
  kFp8Block128,  // E4M3 [out, in] with E8M0 scales [ceil(out/128), ceil(in/128)]
  kNvfp4,        // E2M1 pairs U8 [out, in/2] (low nibble first), E4M3 scales [out, in/16], FP32 global scale
};

// Outputs, and inputs, that share a scale of kFp8Block128.
inline constexpr std::int64_t kFp8ScaleBlock = 128;

// How a linear rounds its BF16 input before the product.
enum class ActivationRounding : std::uint8_t {
  kNone,         // BF16 as it is
  kFp8Block128,  // E4M3 with UE8M0 scale per 128 consecutive inputs (what DeepSeek's FP8 linears do)
};

// Borrowed views, valid while the checkpoint is open and the HostAttentionWeights they came with (or a
// copy) lives. BF16 weights are 2-byte aligned; nothing else is more than byte-aligned.
// Rows may be a slice of the stored matrix (the groups of wo_a): first_row says where it starts,
// so that block scales are found by the row of the whole matrix.
// Of a matrix that ranks share (TensorShard) it is the rank's part: `weight` and `scale` then hold the rank's rows,
// from a multiple of 128 on, or its columns, and `stored` says what the part was taken from.
struct HostLinear {
  // A matrix as the checkpoint has it. Of its bytes only the pages of a sampled digest can be read.
  struct Stored {
    std::int64_t out_features = 0;
    std::int64_t in_features = 0;
    std::span<const std::byte> weight;
    std::span<const std::byte> scale;
  };

  std::string name;  // tensor name, for messages
  WeightEncoding encoding = WeightEncoding::kBf16;
  ActivationRounding activation = ActivationRounding::kNone;
  std::int64_t out_features = 0;  // rows of this slice
  std::int64_t in_features = 0;
  std::int64_t first_row = 0;
  std::span<const std::byte> weight;  // the whole stored matrix
  std::span<const std::byte> scale;   // kFp8Block128: E8M0; kNvfp4: E4M3; the whole stored array
  float global_scale = 1.0F;          // kNvfp4: weight_scale_2
  // kNvfp4: input_scale, the global scale of inputs for a product of NVFP4 with NVFP4; 0: the checkpoint has none
  float input_scale = 0.0F;
  std::optional<Stored> stored;  // only of a rank's part

  // The same matrix restricted to rows [first, first + count) of this one.
  [[nodiscard]] HostLinear rows(std::int64_t first, std::int64_t count) const {
    HostLinear slice = *this;
    slice.first_row = first_row + first;
    slice.out_features = count;
    return slice;
  }
};

}  // namespace dsv4rt
