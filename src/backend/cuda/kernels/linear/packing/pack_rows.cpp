#include <cstring>

#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "backend/cuda/kernels/linear/packing/packed_bytes.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::cuda {
namespace {

HostBytes zeros(std::int64_t size) {
  return {std::make_unique<std::byte[]>(static_cast<std::size_t>(size)), static_cast<std::size_t>(size)};
}

std::int64_t code_bytes(const HostLinear& weight) {
  return weight.out_features * weight.in_features / 2;
}

std::int64_t scale_bytes(const HostLinear& weight) {
  return nvfp4_scale_bytes(weight.out_features, weight.in_features / kNvfp4GroupValues);
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

bool can_be_rows(const HostLinear& weight) {
  // What cuBLASLt's tensor-core kernels ask for: rows of whole 16-byte units on both sides. Without an input scale the
  // checkpoint means its inputs to stay BF16.
  return weight.encoding == WeightEncoding::kNvfp4 && weight.activation == ActivationRounding::kNone &&
         weight.input_scale > 0.0F && weight.out_features % 16 == 0 && weight.in_features % 32 == 0;
}

std::int64_t row_copy_bytes(const HostLinear& weight) {
  return can_be_rows(weight) ? code_bytes(weight) + scale_bytes(weight) : 0;
}

PackedBytes pack_rows(const HostLinear& weight) {
  PackedBytes packed{zeros(code_bytes(weight)), zeros(scale_bytes(weight))};
  std::memcpy(packed.codes.data.get(), weight.weight.data() + weight.first_row * weight.in_features / 2,
              packed.codes.size);
  pack_nvfp4_scales(weight, packed.codes.data.get(), packed.scales.data.get());
  return packed;
}

}  // namespace dsv4rt::cuda
