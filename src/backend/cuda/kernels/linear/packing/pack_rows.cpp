#include <cstring>

#include "backend/cuda/kernels/linear/cublaslt/cublaslt_product.h"
#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "backend/cuda/kernels/linear/packing/packed_bytes.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "base/arithmetic.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kScaleBlockRows = 128;

HostBytes zeros(std::int64_t size) {
  return {std::make_unique<std::byte[]>(static_cast<std::size_t>(size)), static_cast<std::size_t>(size)};
}

std::int64_t row_bytes(const HostLinear& weight) {
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      return weight.in_features * 2;
    case WeightEncoding::kFp8Block128:
      return weight.in_features;
    case WeightEncoding::kNvfp4:
      return weight.in_features / 2;
  }
  return 0;
}

std::int64_t scale_bytes(const HostLinear& weight) {
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      return 0;
    case WeightEncoding::kFp8Block128:
      return ceil_div(weight.out_features, kScaleBlockRows) * product_scale_stride(weight.in_features) *
             std::int64_t{sizeof(float)};
    case WeightEncoding::kNvfp4:
      return nvfp4_scale_bytes(weight.out_features, weight.in_features / kNvfp4GroupValues);
  }
  return 0;
}

void pack_fp8_scales(const HostLinear& weight, std::byte* scales) {
  const std::int64_t blocks = weight.in_features / kScaleBlockInputs;
  const std::int64_t stride = product_scale_stride(weight.in_features);
  const std::byte* source = weight.scale.data() + weight.first_row / kScaleBlockRows * blocks;
  for (std::int64_t row = 0; row < ceil_div(weight.out_features, kScaleBlockRows); ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float scale = decode_e8m0(std::to_integer<std::uint8_t>(source[row * blocks + block]));
      std::memcpy(scales + (row * stride + block) * std::int64_t{sizeof(float)}, &scale, sizeof(float));
    }
  }
}

// cuBLASLt ignores the signs of scales: they go to the codes, which the caller has copied.
void pack_nvfp4_scales(const HostLinear& weight, std::byte* codes, std::byte* scales) {
  constexpr std::byte kScaleSign{0x80};
  constexpr std::byte kCodeSigns{0x88};
  const std::int64_t groups = weight.in_features / kNvfp4GroupValues;
  const std::byte* source = weight.scale.data() + weight.first_row * groups;
  for (std::int64_t row = 0; row < weight.out_features; ++row) {
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::byte scale = source[row * groups + group];
      scales[nvfp4_scale_offset(row, group, groups)] = scale & ~kScaleSign;
      if ((scale & kScaleSign) == std::byte{}) continue;
      for (int i = 0; i < kNvfp4GroupBytes; ++i) codes[(row * groups + group) * kNvfp4GroupBytes + i] ^= kCodeSigns;
    }
  }
}

}  // namespace

bool held_as_rows(const HostLinear& weight, RowCopies copies) {
  // What cuBLASLt's tensor-core kernels ask for: rows of whole 16-byte units on both sides.
  if (copies == RowCopies::kNone || weight.out_features % 16 != 0 || weight.in_features % 16 != 0) return false;
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      return weight.activation == ActivationRounding::kNone;
    case WeightEncoding::kFp8Block128:
      return copies == RowCopies::kBf16AndFp8 && weight.activation == ActivationRounding::kFp8Block128 &&
             weight.in_features % kScaleBlockInputs == 0 && weight.first_row % kScaleBlockRows == 0;
    case WeightEncoding::kNvfp4:
      // Without an input scale the checkpoint means its inputs to stay BF16.
      return copies == RowCopies::kBf16AndNvfp4 && weight.activation == ActivationRounding::kNone &&
             weight.input_scale > 0.0F && weight.in_features % 32 == 0;
  }
  return false;
}

std::int64_t row_copy_bytes(const HostLinear& weight, RowCopies copies) {
  return held_as_rows(weight, copies) ? weight.out_features * row_bytes(weight) + scale_bytes(weight) : 0;
}

PackedBytes pack_rows(const HostLinear& weight) {
  PackedBytes packed{zeros(weight.out_features * row_bytes(weight)), {}};
  std::memcpy(packed.codes.data.get(), weight.weight.data() + weight.first_row * row_bytes(weight), packed.codes.size);
  if (weight.encoding == WeightEncoding::kBf16) return packed;
  packed.scales = zeros(scale_bytes(weight));
  if (weight.encoding == WeightEncoding::kFp8Block128) pack_fp8_scales(weight, packed.scales.data.get());
  if (weight.encoding == WeightEncoding::kNvfp4) {
    pack_nvfp4_scales(weight, packed.codes.data.get(), packed.scales.data.get());
  }
  return packed;
}

}  // namespace dsv4rt::cuda
