#include <cstring>

#include "backend/cuda/kernels/linear/library_product.h"
#include "backend/cuda/kernels/linear/packed_bytes.h"
#include "backend/cuda/kernels/linear/packed_linear.h"
#include "base/arithmetic.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kScaleBlockRows = 128;

HostBytes zeros(std::int64_t size) {
  return {std::make_unique<std::byte[]>(static_cast<std::size_t>(size)), static_cast<std::size_t>(size)};
}

std::int64_t scale_bytes(const HostLinear& weight) {
  return ceil_div(weight.out_features, kScaleBlockRows) * product_scale_stride(weight.in_features) *
         std::int64_t{sizeof(float)};
}

}  // namespace

bool held_as_rows(const HostLinear& weight, RowCopies copies) {
  // What cuBLASLt's tensor-core kernels ask for: rows of whole 16-byte units on both sides.
  if (copies == RowCopies::kNone || weight.out_features % 16 != 0 || weight.in_features % 16 != 0) return false;
  if (weight.encoding == WeightEncoding::kBf16) return weight.activation == ActivationRounding::kNone;
  return copies == RowCopies::kBf16AndFp8 && weight.encoding == WeightEncoding::kFp8Block128 &&
         weight.activation == ActivationRounding::kFp8Block128 && weight.in_features % kScaleBlockInputs == 0 &&
         weight.first_row % kScaleBlockRows == 0;
}

std::int64_t row_copy_bytes(const HostLinear& weight, RowCopies copies) {
  if (!held_as_rows(weight, copies)) return 0;
  const std::int64_t values = weight.out_features * weight.in_features;
  return weight.encoding == WeightEncoding::kBf16 ? values * 2 : values + scale_bytes(weight);
}

PackedBytes pack_rows(const HostLinear& weight) {
  const bool fp8 = weight.encoding == WeightEncoding::kFp8Block128;
  const std::int64_t row_bytes = weight.in_features * (fp8 ? 1 : 2);
  PackedBytes packed;
  packed.codes = zeros(weight.out_features * row_bytes);
  std::memcpy(packed.codes.data.get(), weight.weight.data() + weight.first_row * row_bytes, packed.codes.size);
  if (!fp8) return packed;

  const std::int64_t blocks = weight.in_features / kScaleBlockInputs;
  const std::int64_t stride = product_scale_stride(weight.in_features);
  packed.scales = zeros(scale_bytes(weight));
  const std::byte* source = weight.scale.data() + weight.first_row / kScaleBlockRows * blocks;
  for (std::int64_t row = 0; row < ceil_div(weight.out_features, kScaleBlockRows); ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float scale = decode_e8m0(std::to_integer<std::uint8_t>(source[row * blocks + block]));
      std::memcpy(packed.scales.data.get() + (row * stride + block) * std::int64_t{sizeof(float)}, &scale,
                  sizeof(float));
    }
  }
  return packed;
}

}  // namespace dsv4rt::cuda
