// Rows of boundary states: from rings and back, and from what a layer computed.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/boundary/params.h"
#include "backend/cuda/kernels/common/copy_bytes.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/compress/pool_source.cuh"

namespace dsv4rt::cuda {

inline constexpr int kBoundaryThreads = 256;

// Rows one after another in two blocks, by `threads` threads. Data and scales begin at opposite ends of them: those
// that have the most data to move have no scales.
__device__ inline void copy_rows(std::byte* to, std::int64_t to_row, std::int32_t to_rows, const std::byte* from,
                                 std::int64_t from_row, std::int32_t from_rows, std::int32_t count,
                                 std::int32_t data_bytes, std::int32_t scale_bytes, std::int64_t thread,
                                 std::int64_t threads) {
  copy_bytes(to + to_row * data_bytes, from + from_row * data_bytes, std::int64_t{count} * data_bytes, thread, threads);
  copy_bytes(to + std::int64_t{to_rows} * data_bytes + to_row * scale_bytes,
             from + std::int64_t{from_rows} * data_bytes + from_row * scale_bytes, std::int64_t{count} * scale_bytes,
             threads - 1 - thread, threads);
}

// Grid: (shares of a ring's rows, rings, copies). Rows that follow each other in a state do so in the ring, which
// turns once at most: a state has no more rows than its ring.
__global__ __launch_bounds__(kBoundaryThreads) void copy_boundary_kernel(const __grid_constant__ RingChunk rings,
                                                                         const __grid_constant__ CopyChunk chunk) {
  const RingPlace& place = rings.rings[blockIdx.y];
  const RingShape& shape = rings.shapes[place.shape];
  const BoundaryCopy& copy = chunk.copies[blockIdx.z];
  const std::int32_t oldest = copy.boundary - shape.state_rows;
  const std::int32_t first = max(oldest, 0);
  if (copy.end <= first) return;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kBoundaryThreads + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kBoundaryThreads;
  std::byte* ring = place.rings + copy.slot * shape.slot_bytes;
  std::byte* state =
      chunk.states.states + copy.state * chunk.states.state_bytes + std::int64_t{place.state_place} * kPlaceBytes;
  const auto move = [&](std::int32_t ring_row, std::int32_t state_row, std::int32_t count) {
    if (chunk.direction == BoundaryDirection::kFromRings) {
      copy_rows(state, state_row, shape.state_rows, ring, ring_row, shape.ring_rows, count, shape.data_bytes,
                shape.scale_bytes, thread, threads);
    } else {
      copy_rows(ring, ring_row, shape.ring_rows, state, state_row, shape.state_rows, count, shape.data_bytes,
                shape.scale_bytes, thread, threads);
    }
  };
  const std::int32_t count = copy.end - first;
  const std::int32_t ring_row = first % shape.ring_rows;
  const std::int32_t to_turn = min(count, shape.ring_rows - ring_row);
  move(ring_row, first - oldest, to_turn);
  if (count > to_turn) move(0, first - oldest + to_turn, count - to_turn);
}

// Rows [first, boundary) of a compressor, as the state ring would have them: kv, then score + ape.
__device__ inline void keep_projections(const KeepProjections& p, const BoundaryCapture& capture, std::byte* state,
                                        std::int32_t thread, std::int32_t threads) {
  const std::int32_t oldest = capture.boundary - p.rows;
  const std::int32_t first = max(oldest, capture.start);
  const std::int32_t row_quads = p.width / 4;
  const std::int32_t quads = (capture.boundary - first) * row_quads;
  for (std::int32_t i = thread; i < quads; i += threads) {
    const std::int32_t position = first + i / row_quads;
    const std::int32_t column = i % row_quads * 4;
    const std::int64_t from = (capture.first_token + (position - capture.start)) * p.input.stride + column;
    const float* ape = p.input.ape + std::int64_t{position % p.input.ratio} * p.width + column;
    float* row = reinterpret_cast<float*>(state + p.offset) + std::int64_t{position - oldest} * 2 * p.width + column;
    const float4 values = load_quad(p.input.kv + from);
    const float4 sum = add_quads(load_quad(p.input.score + from), load_quad(ape));
    *reinterpret_cast<float4*>(row) = values;
    *reinterpret_cast<float4*>(row + p.width) = sum;
  }
}

// Grid: (shares of the rows, captures, window and compressors).
__global__ __launch_bounds__(kBoundaryThreads) void keep_boundary_kernel(const __grid_constant__ KeepChunk chunk) {
  allow_dependents();
  wait_for_predecessors();
  const BoundaryCapture& capture = chunk.captures[blockIdx.y];
  const std::int32_t thread = static_cast<std::int32_t>(blockIdx.x * kBoundaryThreads + threadIdx.x);
  const std::int32_t threads = static_cast<std::int32_t>(gridDim.x * kBoundaryThreads);
  std::byte* state = chunk.states.states + capture.state * chunk.states.state_bytes;
  if (blockIdx.z > 0) {
    keep_projections(chunk.projections[blockIdx.z - 1], capture, state, thread, threads);
    return;
  }
  const std::int32_t oldest = capture.boundary - chunk.window.rows;
  const std::int32_t first = max(oldest, capture.start);
  copy_rows(state + chunk.window_offset, first - oldest, chunk.window.rows, chunk.staged,
            capture.first_token + (first - capture.start), chunk.staged_shape.rows, capture.boundary - first,
            chunk.window.data_bytes, chunk.window.scale_bytes, thread, threads);
}

}  // namespace dsv4rt::cuda
