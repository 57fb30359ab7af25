// Packs checkpoint matrices into groups of 16 outputs: see PackedView for the order of the codes.
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "backend/cpu/cpu_linear.h"
#include "base/arithmetic.h"
#include "base/message_text.h"
#include "layout/codec_e4m3.h"

namespace dsv4rt::cpu {
namespace {

constexpr std::int64_t kDepthMultiple = 16;

Status pack_error(StatusCode code, const HostLinear& weight, const std::string& what) {
  return {code, "cannot pack tensor '" + printable(weight.name) + "': " + what};
}

// Bytes of one stored row of codes, and of one stored row of scales.
struct RowBytes {
  std::int64_t codes = 0;
  std::int64_t scales = 0;
};

RowBytes row_bytes(const HostLinear& weight) {
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      return {weight.in_features * 2, 0};
    case WeightEncoding::kFp8Block128:
      return {weight.in_features, ceil_div<std::int64_t>(weight.in_features, 128)};
    case WeightEncoding::kNvfp4:
      return {weight.in_features / 2, weight.in_features / kNvfp4GroupInputs};
  }
  return {};
}

std::uint8_t byte_at(std::span<const std::byte> bytes, std::int64_t index) {
  return std::to_integer<std::uint8_t>(bytes[static_cast<std::size_t>(index)]);
}

Status check_shape(const HostLinear& weight) {
  constexpr std::int64_t kMaxFeatures = std::int64_t{1} << 31;
  if (weight.out_features < 1 || weight.in_features < 1 || weight.first_row < 0 || weight.out_features > kMaxFeatures ||
      weight.in_features > kMaxFeatures || weight.first_row > kMaxFeatures) {
    return pack_error(StatusCode::kBadInput, weight,
                      "shape [" + std::to_string(weight.out_features) + ", " + std::to_string(weight.in_features) +
                          "] from row " + std::to_string(weight.first_row) + "; accepted are 1 to 2^31 features");
  }
  if (weight.first_row % kGroupOutputs != 0) {
    return pack_error(StatusCode::kUnsupported, weight,
                      "the slice starts at row " + std::to_string(weight.first_row) + "; accepted are multiples of 16");
  }
  if (weight.encoding == WeightEncoding::kNvfp4 && weight.in_features % kNvfp4GroupInputs != 0) {
    return pack_error(StatusCode::kUnsupported, weight,
                      "NVFP4 with " + std::to_string(weight.in_features) + " inputs; accepted are multiples of 16");
  }
  const RowBytes bytes = row_bytes(weight);
  const std::int64_t end_row = weight.first_row + weight.out_features;
  const std::int64_t scale_rows =
      weight.encoding == WeightEncoding::kFp8Block128 ? ceil_div<std::int64_t>(end_row, 128) : end_row;
  if (static_cast<std::int64_t>(weight.weight.size()) / bytes.codes < end_row) {
    return pack_error(StatusCode::kBadInput, weight,
                      std::to_string(weight.weight.size()) + " bytes of weight, but rows up to " +
                          std::to_string(end_row) + " of " + std::to_string(bytes.codes) + " bytes are used");
  }
  if (bytes.scales != 0 && static_cast<std::int64_t>(weight.scale.size()) / bytes.scales < scale_rows) {
    return pack_error(StatusCode::kBadInput, weight,
                      std::to_string(weight.scale.size()) + " bytes of scales, but " + std::to_string(scale_rows) +
                          " rows of " + std::to_string(bytes.scales) + " are used");
  }
  return {};
}

// Copies row `row` of the slice into its lane of the packed codes.
void pack_row(const HostLinear& weight, std::int64_t row, const PackedView& view, std::uint8_t* codes) {
  const std::int64_t stored = row_bytes(weight).codes;
  const std::byte* from = weight.weight.data() + (weight.first_row + row) * stored;
  std::uint8_t* group = codes + row / kGroupOutputs * view.group_bytes;
  const std::int64_t n = row % kGroupOutputs;
  switch (view.encoding) {
    case PackedEncoding::kBf16:
      for (std::int64_t k = 0; k < weight.in_features; ++k) {
        std::memcpy(group + (k / 2 * kGroupOutputs + n) * 4 + k % 2 * 2, from + k * 2, 2);
      }
      break;
    case PackedEncoding::kFp8:
      for (std::int64_t k = 0; k < weight.in_features; ++k) {
        const std::int64_t lane_byte = n / 4 * 16 + k % 4 / 2 * 8 + n % 4 * 2 + k % 2;
        group[k / 4 * 64 + lane_byte] = std::to_integer<std::uint8_t>(from[k]);
      }
      break;
    case PackedEncoding::kNvfp4:
      for (std::int64_t byte = 0; byte < weight.in_features / 2; ++byte) {
        group[byte / 4 * 64 + n * 4 + byte % 4] = std::to_integer<std::uint8_t>(from[byte]);
      }
      break;
  }
}

Status pack_fp8_scales(const HostLinear& weight, const PackedView& view, std::vector<std::uint8_t>& scales) {
  for (std::int64_t group = 0; group * kGroupOutputs < weight.out_features; ++group) {
    const std::int64_t scale_row = (weight.first_row + group * kGroupOutputs) / 128;
    for (std::int64_t column = 0; column < view.scale_columns; ++column) {
      const std::uint8_t code = byte_at(weight.scale, scale_row * view.scale_columns + column);
      if (code < kMinFp8ScaleCode || code > kMaxFp8ScaleCode) {
        return pack_error(StatusCode::kUnsupported, weight,
                          "E8M0 scale code " + std::to_string(code) + " of block [" + std::to_string(scale_row) + ", " +
                              std::to_string(column) + "]; accepted are 63 to 191 (2^-64 to 2^64)");
      }
      scales[static_cast<std::size_t>(group * view.scale_columns + column)] = code;
    }
  }
  return {};
}

Status pack_nvfp4_scales(const HostLinear& weight, const PackedView& view, std::vector<std::uint8_t>& scales) {
  for (std::int64_t row = 0; row < weight.out_features; ++row) {
    for (std::int64_t column = 0; column < view.scale_columns; ++column) {
      const std::uint8_t code = byte_at(weight.scale, (weight.first_row + row) * view.scale_columns + column);
      if ((code & 0x7f) == kE4m3NanCode) {
        return pack_error(StatusCode::kBadInput, weight,
                          "the scale at row " + std::to_string(weight.first_row + row) + ", column " +
                              std::to_string(column) + " is NaN");
      }
      const std::int64_t group = row / kGroupOutputs;
      scales[static_cast<std::size_t>((group * view.scale_columns + column) * kGroupOutputs + row % kGroupOutputs)] =
          code;
    }
  }
  return {};
}

// The packed shape of `weight`; pointers not yet set.
PackedView plan_view(const HostLinear& weight) {
  PackedView view;
  view.depth = round_up(weight.in_features, kDepthMultiple);
  view.in_features = weight.in_features;
  view.out_features = weight.out_features;
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      view.encoding = PackedEncoding::kBf16;
      view.group_bytes = view.depth * kGroupOutputs * 2;
      break;
    case WeightEncoding::kFp8Block128:
      view.encoding = PackedEncoding::kFp8;
      view.group_bytes = view.depth * kGroupOutputs;
      view.scale_columns = row_bytes(weight).scales;
      break;
    case WeightEncoding::kNvfp4:
      view.encoding = PackedEncoding::kNvfp4;
      view.group_bytes = view.depth * kGroupOutputs / 2;
      view.scale_columns = row_bytes(weight).scales;
      view.global_scale = weight.global_scale;
      break;
  }
  return view;
}

std::int64_t groups_of(const PackedView& view) {
  return ceil_div<std::int64_t>(view.out_features, kGroupOutputs);
}

std::int64_t scale_bytes(const PackedView& view) {
  const std::int64_t lanes = view.encoding == PackedEncoding::kNvfp4 ? kGroupOutputs : 1;
  return groups_of(view) * view.scale_columns * lanes;
}

}  // namespace

std::int64_t cpu_packed_bytes(const HostLinear& weight) {
  const PackedView view = plan_view(weight);
  return groups_of(view) * view.group_bytes + scale_bytes(view);
}

bool AlignedBytes::reserve(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (bytes <= bytes_) return true;
  const std::size_t rounded = round_up(bytes, kAlignment);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (data == nullptr) return false;
  data_.reset(data);
  bytes_ = rounded;
  return true;
}

CpuPackedLinear::CpuPackedLinear(PackedView view, ActivationRounding activation, AlignedBytes codes,
                                 std::vector<std::uint8_t> scales)
    : view_(view), activation_(activation), codes_(std::move(codes)), scales_(std::move(scales)) {
  view_.codes = reinterpret_cast<const std::uint8_t*>(codes_.data());
  view_.scales = scales_.data();
  out_features_ = view.out_features;
  in_features_ = view.in_features;
  bytes_ = groups_of(view) * view.group_bytes + static_cast<std::int64_t>(scales_.size());
}

Result<std::unique_ptr<PackedLinear>> pack_cpu_linear(const HostLinear& weight) {
  if (Status status = check_shape(weight); !status.ok()) return status;
  const PackedView view = plan_view(weight);
  const auto code_bytes = static_cast<std::size_t>(groups_of(view) * view.group_bytes);
  const Status exhausted =
      pack_error(StatusCode::kResourceExhausted, weight, "no memory for " + std::to_string(code_bytes) + " bytes");
  try {
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_bytes(view)));
    // Rows beyond the last are zero; FP8 still looks their (shared) scale up.
    Status status;
    if (view.encoding == PackedEncoding::kFp8) status = pack_fp8_scales(weight, view, scales);
    if (view.encoding == PackedEncoding::kNvfp4) status = pack_nvfp4_scales(weight, view, scales);
    if (!status.ok()) return status;
    AlignedBytes codes;
    if (!codes.reserve(code_bytes)) return exhausted;
    std::memset(codes.data(), 0, code_bytes);
    for (std::int64_t row = 0; row < weight.out_features; ++row) {
      pack_row(weight, row, view, reinterpret_cast<std::uint8_t*>(codes.data()));
    }
    return std::unique_ptr<PackedLinear>(
        std::make_unique<CpuPackedLinear>(view, weight.activation, std::move(codes), std::move(scales)));
  } catch (const std::bad_alloc&) {
    return exhausted;
  }
}

}  // namespace dsv4rt::cpu
