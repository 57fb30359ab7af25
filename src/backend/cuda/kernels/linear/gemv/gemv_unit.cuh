// What a block of the gemv kernel works on.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_shape.h"
#include "backend/cuda/kernels/linear/shared/items.cuh"

namespace dsv4rt::cuda {

inline constexpr int kUnitsPerScale = kScaleBlockInputs / kUnitValues;

// One segment of one row tile; and shared-memory addresses.
struct GemvUnit {
  const LinearProblem* q;
  int row_tile;
  int first_block;  // number of the segment's first block of 128 inputs
  int blocks;
  int slots;                    // slots of the ring
  std::uint32_t ring;           // [slots][kGemvSlotBytes]
  std::uint32_t full;           // [slots] barriers
  std::uint32_t empty;          // [slots]
  std::uint32_t received;       // [segment][own outputs][kGemvTokens] sums that the cluster's blocks send
  std::uint32_t received_full;  // its barrier
  std::uint32_t norms;          // [kGemvTokens] scales of an RMS norm
  // [token] rows of inputs, row_bytes apart: with a norm whole ones, otherwise of the segment; none for codes alone.
  std::uint32_t rows;
  std::int32_t row_bytes;
  std::uint32_t inputs;       // the segment's first unit in the first row
  std::uint32_t codes;        // kFp8Products: [block][8 tokens][128], swizzled as weights are
  std::uint32_t code_scales;  // [block][kGemvTokens]

  // Unit `i` of the segment.
  __device__ __forceinline__ std::uint32_t place(int i, int token) const {
    return inputs + static_cast<std::uint32_t>(token * row_bytes + i * kUnitBytes);
  }
  __device__ __forceinline__ std::uint32_t slot(int i) const { return ring + i * kGemvSlotBytes; }
  __device__ __forceinline__ int stages() const { return blocks * (q->kind == TileKind::kBf16 ? 2 : 1); }
};

}  // namespace dsv4rt::cuda
