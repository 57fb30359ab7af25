#include "backend/cuda/kernels/linear/packed_linear.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "base/try.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kLaneValues = 8;
constexpr std::int64_t kScaleBlock = 128;
constexpr std::int64_t kNvfp4Group = 16;

// Row and column within a tile of a lane's i-th value.
struct TilePlace {
  int row;
  int column;
};
constexpr TilePlace tile_place(int lane, int i) {
  return {.row = lane / 4 + ((i >> 1) & 1) * 8, .column = 2 * (lane % 4) + (i & 1) + (i >> 2) * 8};
}

// Calls put(index, row, column) for every value in packed order; rows and columns may lie in the padding.
template <class Put>
void for_each_packed(std::int64_t groups, std::int64_t padded_inputs, int tiles_per_lane, const Put& put) {
  std::int64_t index = 0;
  const std::int64_t step = std::int64_t{tiles_per_lane} * kTileInputs;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t k = 0; k < padded_inputs; k += step) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int tile = 0; tile < tiles_per_lane; ++tile) {
          for (int i = 0; i < kLaneValues; ++i) {
            const TilePlace place = tile_place(lane, i);
            put(index++, group * kTileRows + place.row, k + tile * kTileInputs + place.column);
          }
        }
      }
    }
  }
}

struct Packed {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
};

Packed pack_bf16(const HostLinear& w, std::int64_t groups, std::int64_t padded) {
  Packed packed;
  packed.codes.resize(static_cast<std::size_t>(groups * kTileRows * padded * 2));
  for_each_packed(groups, padded, 1, [&](std::int64_t at, std::int64_t row, std::int64_t column) {
    if (row >= w.out_features || column >= w.in_features) return;
    std::memcpy(packed.codes.data() + at * 2, w.weight.data() + ((w.first_row + row) * w.in_features + column) * 2, 2);
  });
  return packed;
}

Packed pack_fp8(const HostLinear& w, std::int64_t groups, std::int64_t padded) {
  Packed packed;
  packed.codes.resize(static_cast<std::size_t>(groups * kTileRows * padded));
  for_each_packed(groups, padded, 2, [&](std::int64_t at, std::int64_t row, std::int64_t column) {
    if (row >= w.out_features || column >= w.in_features) return;
    packed.codes[static_cast<std::size_t>(at)] =
        w.weight[static_cast<std::size_t>((w.first_row + row) * w.in_features + column)];
  });
  const std::int64_t blocks = ceil_div(w.in_features, kScaleBlock);
  std::vector<float> scales(static_cast<std::size_t>(groups * blocks));
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t scale_row = (w.first_row + group * kTileRows) / kScaleBlock;
    for (std::int64_t block = 0; block < blocks; ++block) {
      scales[static_cast<std::size_t>(group * blocks + block)] = decode_e8m0(
          std::to_integer<std::uint8_t>(w.scale[static_cast<std::size_t>(scale_row * blocks + block)]));
    }
  }
  packed.scales.resize(scales.size() * sizeof(float));
  std::memcpy(packed.scales.data(), scales.data(), packed.scales.size());
  return packed;
}

Packed pack_nvfp4(const HostLinear& w, std::int64_t groups, std::int64_t padded) {
  Packed packed;
  packed.codes.resize(static_cast<std::size_t>(groups * kTileRows * padded / 2));
  for_each_packed(groups, padded, 4, [&](std::int64_t at, std::int64_t row, std::int64_t column) {
    if (row >= w.out_features || column >= w.in_features) return;
    const std::int64_t element = (w.first_row + row) * w.in_features + column;
    const auto byte = std::to_integer<unsigned>(w.weight[static_cast<std::size_t>(element / 2)]);
    const unsigned nibble = element % 2 == 0 ? byte & 0xfu : byte >> 4;
    packed.codes[static_cast<std::size_t>(at / 2)] |= std::byte(at % 2 == 0 ? nibble : nibble << 4);
  });
  const std::int64_t stored = w.in_features / kNvfp4Group;
  const std::int64_t padded_groups = padded / kNvfp4Group;
  packed.scales.resize(static_cast<std::size_t>(groups * padded_groups * kTileRows));
  for (std::int64_t row = 0; row < w.out_features; ++row) {
    for (std::int64_t g = 0; g < stored; ++g) {
      packed.scales[static_cast<std::size_t>((row / kTileRows * padded_groups + g) * kTileRows + row % kTileRows)] =
          w.scale[static_cast<std::size_t>((w.first_row + row) * stored + g)];
    }
  }
  return packed;
}

Result<Buffer> upload_bytes(Backend& backend, const std::vector<std::byte>& bytes, const std::string& name) {
  DSV4RT_ASSIGN_OR_RETURN(Buffer buffer, backend.allocate(bytes.size(), name));
  DSV4RT_RETURN_IF_ERROR(backend.upload(buffer.data(), bytes.data(), bytes.size()));
  return buffer;
}

}  // namespace

CudaPackedLinear::CudaPackedLinear(const HostLinear& host, std::int64_t padded_inputs, Buffer codes, Buffer scales)
    : encoding_(host.encoding),
      activation_(host.activation),
      padded_inputs_(padded_inputs),
      global_scale_(host.global_scale),
      codes_(std::move(codes)),
      scales_(std::move(scales)) {
  out_features_ = host.out_features;
  in_features_ = host.in_features;
  bytes_ = static_cast<std::int64_t>(codes_.size() + scales_.size());
}

Result<std::unique_ptr<PackedLinear>> pack_linear(Backend& backend, const HostLinear& weight) {
  if (weight.first_row % kTileRows != 0) {
    return Status{StatusCode::kUnsupported, weight.name + ": slice begins at row " + std::to_string(weight.first_row) +
                                                "; a multiple of " + std::to_string(kTileRows) + " is accepted"};
  }
  const std::int64_t groups = ceil_div<std::int64_t>(weight.out_features, kTileRows);
  const std::int64_t padded = round_up<std::int64_t>(weight.in_features, kInputPadding);
  try {
    Packed packed;
    switch (weight.encoding) {
      case WeightEncoding::kBf16: packed = pack_bf16(weight, groups, padded); break;
      case WeightEncoding::kFp8Block128: packed = pack_fp8(weight, groups, padded); break;
      case WeightEncoding::kNvfp4: packed = pack_nvfp4(weight, groups, padded); break;
    }
    DSV4RT_ASSIGN_OR_RETURN(Buffer codes, upload_bytes(backend, packed.codes, weight.name));
    Buffer scales;
    if (!packed.scales.empty()) {
      DSV4RT_ASSIGN_OR_RETURN(scales, upload_bytes(backend, packed.scales, weight.name + " scales"));
    }
    return std::unique_ptr<PackedLinear>(
        std::make_unique<CudaPackedLinear>(weight, padded, std::move(codes), std::move(scales)));
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, weight.name + ": host memory for packing"};
  }
}

}  // namespace dsv4rt::cuda
