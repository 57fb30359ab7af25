// The rows of a run on their way to shared memory (run_plan.cuh).
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/run_plan.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"

namespace dsv4rt::cuda {

// The run's rows: window rows of the positions [first_position, + window), compressed rows [0, compressed).
struct RunRows {
  TokenPosition place;  // any of the run's tokens
  std::int32_t first_position = 0;
  std::int32_t window = 0;
  std::int32_t compressed = 0;
  // Of the room: the first window row. A multiple of 16.
  [[nodiscard]] __device__ int window_row() const { return (compressed + 15) / 16 * 16; }
};

// Decodes them, by the consumers: four threads for a row.
template <bool kCompresses>
class RunDecoder {
 public:
  using Shape = RunShape<kCompresses>;
  using Room = typename Shape::Room;
  static constexpr int kPassRows = kRunConsumers / 4;

  __device__ RunDecoder(const AttendParams& params, std::byte* room) : p_(params), room_(room) {}

  // Rows that products reach and the run does not have are zero. Returns whether the thread decoded a value that is not
  // finite.
  __device__ bool decode(const RunRows& rows) {
    const int before = rows.window_row();
    const int total = before + max(rows.window, kRunWindow);
    const int passes = (total + kPassRows - 1) / kPassRows;
    bool finite = true;
    LoadedRow loaded;
    bool exists = load(rows, row_, loaded);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      const int row = pass * kPassRows + row_;
      LoadedRow next;
      const bool next_exists = load(rows, row + kPassRows, next);
      if (row < Shape::kRows) finite = store(loaded, exists, row) && finite;
      loaded = next;
      exists = next_exists;
    }
    return !finite;
  }

 private:
  // Row `row` of the room; false: there is none.
  __device__ bool load(const RunRows& rows, int row, LoadedRow& loaded) const {
    if (kCompresses && row < rows.compressed) {
      loaded.load(compressed_source(p_, row_slot(p_, rows.place.slot, row)), unit_);
      return true;
    }
    row -= rows.window_row();
    if (row < 0 || row >= rows.window) return false;
    loaded.load(window_source(p_, rows.place.slot, window_slot(p_, rows.place, rows.first_position + row)), unit_);
    return true;
  }

  // To row `row` of the room. Returns whether all values are finite.
  __device__ bool store(const LoadedRow& loaded, bool exists, int row) const {
    std::uint32_t infinite = 0;
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      uint4 values[2] = {};
      if (exists && atom < kAtoms - 1) {
        decode_group(loaded.codes, atom, values);
      } else if (exists) {
        values[0] = loaded.rope[0], values[1] = loaded.rope[1];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        infinite |=
            not_finite(values[i].x) | not_finite(values[i].y) | not_finite(values[i].z) | not_finite(values[i].w);
        *reinterpret_cast<uint4*>(room_ + Room::offset(row, atom, unit_ * 2 + i)) = values[i];
      }
    }
    return infinite == 0;
  }

  // A thread's 16 values of a group of 64.
  __device__ static void decode_group(const LoadedCodes& codes, int atom, uint4 (&values)[2]) {
    const std::uint32_t scale = scale_of(codes.scales, atom);
    decode_e4m3_unit_by_bits(codes.raw[atom], e4m3_factor(scale), values);
    if (scale <= kGreatestFactor) return;
    const std::uint32_t rest = missing_factor(scale);
#pragma unroll
    for (uint4& four : values) {
      four = make_uint4(multiply_pairs(four.x, rest), multiply_pairs(four.y, rest), multiply_pairs(four.z, rest),
                        multiply_pairs(four.w, rest));
    }
  }

  // Bits of the pair's exponents that are all ones, moved to their lowest place plus one.
  __device__ static std::uint32_t not_finite(std::uint32_t pair) {
    return ((pair & 0x7f807f80u) + 0x00800080u) & 0x80008000u;
  }

  const AttendParams& p_;
  std::byte* room_;
  int row_ = static_cast<int>(threadIdx.x) / 4;
  int unit_ = static_cast<int>(threadIdx.x) % 4;
};

}  // namespace dsv4rt::cuda
