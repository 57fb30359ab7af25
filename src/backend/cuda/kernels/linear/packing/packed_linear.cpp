#include "backend/cuda/kernels/linear/packing/packed_linear.h"

#include <new>
#include <string>

#include "backend/cuda/kernels/linear/packing/packed_bytes.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kScaleBlockRows = 128;
constexpr std::int64_t kNvfp4Group = 16;

Status check_stored(const HostLinear& weight) {
  if (weight.first_row % kTileRows != 0) {
    return {StatusCode::kUnsupported, weight.name + ": slice begins at row " + std::to_string(weight.first_row) +
                                          "; a multiple of " + std::to_string(kTileRows) + " is accepted"};
  }
  const std::int64_t rows = weight.first_row + weight.out_features;
  std::int64_t weight_bytes = rows * weight.in_features;
  std::int64_t scale_bytes = 0;
  switch (weight.encoding) {
    case WeightEncoding::kBf16:
      weight_bytes *= 2;
      break;
    case WeightEncoding::kFp8Block128:
      scale_bytes = ceil_div(rows, kScaleBlockRows) * ceil_div<std::int64_t>(weight.in_features, kScaleBlockInputs);
      break;
    case WeightEncoding::kNvfp4:
      weight_bytes /= 2;
      scale_bytes = rows * (weight.in_features / kNvfp4Group);
      break;
  }
  const auto stored_weight = static_cast<std::int64_t>(weight.weight.size());
  const auto stored_scale = static_cast<std::int64_t>(weight.scale.size());
  if (stored_weight >= weight_bytes && stored_scale >= scale_bytes) return {};
  return {StatusCode::kBadInput, weight.name + ": " + std::to_string(stored_weight) + " B of weight and " +
                                     std::to_string(stored_scale) + " B of scales; rows up to " + std::to_string(rows) +
                                     " need " + std::to_string(weight_bytes) + " and " + std::to_string(scale_bytes)};
}

Result<Buffer> upload_bytes(Backend& backend, const HostBytes& bytes, const std::string& name) {
  DSV4RT_ASSIGN_OR_RETURN(Buffer buffer, backend.allocate(bytes.size, name));
  DSV4RT_RETURN_IF_ERROR(backend.upload(buffer.data(), bytes.data.get(), bytes.size));
  return buffer;
}

}  // namespace

CudaPackedLinear::CudaPackedLinear(const HostLinear& host, std::optional<TileKind> tiles, Buffer codes, Buffer scales)
    : encoding_(host.encoding),
      activation_(host.activation),
      tiles_(tiles),
      global_scale_(host.global_scale),
      input_scale_(host.input_scale),
      codes_(std::move(codes)),
      scales_(std::move(scales)) {
  out_features_ = host.out_features;
  in_features_ = host.in_features;
  bytes_ = static_cast<std::int64_t>(codes_.size() + scales_.size());
}

void CudaPackedLinear::hold_rows(Buffer codes, Buffer scales) {
  row_codes_ = std::move(codes);
  row_scales_ = std::move(scales);
}

std::int64_t CudaPackedLinear::padded_inputs() const noexcept {
  return round_up<std::int64_t>(in_features_, kInputPadding);
}

Result<std::unique_ptr<PackedLinear>> pack_linear(Backend& backend, const CudaDevice& device, const HostLinear& weight,
                                                  LinearPrecision precision) {
  DSV4RT_RETURN_IF_ERROR(check_stored(weight));
  const std::optional<TileKind> tiles = tile_kind_of(device.has_sm90a(), weight, precision);
  try {
    const PackedBytes packed = tiles ? pack_wgmma(weight, *tiles) : pack_mma(weight);
    DSV4RT_ASSIGN_OR_RETURN(Buffer codes, upload_bytes(backend, packed.codes, weight.name));
    Buffer scales;
    if (packed.scales.size > 0) {
      DSV4RT_ASSIGN_OR_RETURN(scales, upload_bytes(backend, packed.scales, weight.name + " scales"));
    }
    auto linear = std::make_unique<CudaPackedLinear>(weight, tiles, std::move(codes), std::move(scales));
    if (precision == LinearPrecision::kNvfp4 && can_be_rows(weight)) {
      const PackedBytes rows = pack_rows(weight);
      DSV4RT_ASSIGN_OR_RETURN(Buffer row_codes, upload_bytes(backend, rows.codes, weight.name + " rows"));
      DSV4RT_ASSIGN_OR_RETURN(Buffer row_scales, upload_bytes(backend, rows.scales, weight.name + " row scales"));
      linear->hold_rows(std::move(row_codes), std::move(row_scales));
    }
    return std::unique_ptr<PackedLinear>(std::move(linear));
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, weight.name + ": host memory for packing"};
  }
}

}  // namespace dsv4rt::cuda
