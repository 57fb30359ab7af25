// Host side of packing: bytes ready for upload in each order of packed_linear.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "checkpoint/host_linear.h"
#include "dsv4rt/linear_precision.h"

namespace dsv4rt::cuda {

// An array whose size is known before its contents.
struct HostBytes {
  std::unique_ptr<std::byte[]> data;
  std::size_t size = 0;

  [[nodiscard]] std::span<const std::byte> view() const { return {data.get(), size}; }
};

struct PackedBytes {
  HostBytes codes;
  HostBytes scales;  // empty for BF16
};

// The kind of tiles that hold the weight; nothing when lanes must.
std::optional<TileKind> tile_kind_of(bool has_sm90a, const HostLinear& weight, LinearPrecision precision);

// All throw std::bad_alloc. The stored arrays are long enough.
PackedBytes pack_wgmma(const HostLinear& weight, TileKind kind);
PackedBytes pack_mma(const HostLinear& weight);
PackedBytes pack_rows(const HostLinear& weight);  // precondition: can_be_rows(weight)

}  // namespace dsv4rt::cuda
