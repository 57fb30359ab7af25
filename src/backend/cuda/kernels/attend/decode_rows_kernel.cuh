// Decodes rows to their places in decoded_rows.cuh: a thread takes 16 bytes of a row.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"

namespace dsv4rt::cuda {

inline constexpr int kDecodeRowsThreads = 256;
inline constexpr int kDecodeRowsUnits = Fp8DsMlaRow::kDataBytes / kUnitBytes;
inline constexpr int kDecodeRowsCodeUnits = kNopeDim / kUnitBytes;  // those of E4M3 codes, the first ones

// Where a row comes from and where it goes; a place that no row has is not `real`.
struct RowToDecode {
  bool real;
  RowSlot to;
  RowSource from;
};
__device__ inline RowToDecode staged_row_to_decode(const AttendParams& p, std::int32_t row) {
  const auto place = static_cast<RowSlot>(row);
  return {true, place, row_source(p.staged, p.staged_shape.rows, place)};
}
// The `i`-th of DecodedRowsShape::cached().
__device__ inline RowToDecode cached_row_to_decode(const AttendParams& p, const DecodedRows& decoded, std::int32_t i) {
  const DecodedRowsShape& shape = decoded.shape;
  const std::int32_t of_sequence = shape.ring + shape.compressed;
  const std::int32_t sequence = i / of_sequence;
  const std::int32_t row = i % of_sequence;
  const std::int32_t start = p.step.sequence_start[sequence];
  const std::int32_t slot = p.step.sequence_slot[sequence];
  if (row < shape.ring) {  // positions before the step's, the last ones
    return {row < start, decoded.ring_row(sequence, row), window_source(p, slot, static_cast<RowSlot>(row))};
  }
  const std::int32_t compressed = row - shape.ring;
  const std::int32_t end = start + p.step.sequence_first_token[sequence + 1] - p.step.sequence_first_token[sequence];
  if (compressed >= end / p.ratio) return {};
  return {true, decoded.compressed_row(sequence, compressed), compressed_source(p, row_slot(p, slot, compressed))};
}

// Unit `unit` of a row's data.
__device__ inline void decode_row_unit(const RowSource& from, bf16* to, int unit) {
  auto* units = reinterpret_cast<uint4*>(to);
  const uint4 source = load_unit(from.data + unit * kUnitBytes);
  if (unit >= kDecodeRowsCodeUnits) {
    units[unit + kDecodeRowsCodeUnits] = source;
    return;
  }
  const std::uint32_t scale = load_scale_bytes<1>(from.scales + unit * kUnitBytes / Fp8DsMlaRow::kGroupValues);
  uint4 values[2];
  decode_e4m3_unit_by_bits(source, e4m3_factor(scale), values);
  if (scale > kGreatestFactor) {
    const std::uint32_t rest = missing_factor(scale);
    for (uint4& v : values) {
      v = make_uint4(multiply_pairs(v.x, rest), multiply_pairs(v.y, rest), multiply_pairs(v.z, rest),
                     multiply_pairs(v.w, rest));
    }
  }
  units[2 * unit] = values[0];
  units[2 * unit + 1] = values[1];
}

// Grid: any number of blocks.
__global__ void __launch_bounds__(kDecodeRowsThreads)
    attend_decode_rows_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ DecodedRows decoded) {
  allow_dependents();
  wait_for_predecessors();
  // Rows of the whole step, of which `p` may be a part.
  const std::int32_t staged = min(p.step.sequence_first_token[decoded.shape.sequences], decoded.shape.staged);
  const std::int64_t units = (staged + decoded.shape.cached()) * kDecodeRowsUnits;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kDecodeRowsThreads + threadIdx.x; i < units;
       i += std::int64_t{gridDim.x} * kDecodeRowsThreads) {
    const auto index = static_cast<std::int32_t>(i / kDecodeRowsUnits);
    const RowToDecode row =
        index < staged ? staged_row_to_decode(p, index) : cached_row_to_decode(p, decoded, index - staged);
    if (row.real) {
      decode_row_unit(row.from, decoded.rows + std::int64_t{row.to} * kHeadDim, static_cast<int>(i % kDecodeRowsUnits));
    }
  }
}

}  // namespace dsv4rt::cuda
