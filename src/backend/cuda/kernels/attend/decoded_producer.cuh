// The producers of block_plan.cuh where the rows of splits lie decoded (decoded_rows.cuh): by asynchronous copies to
// the atoms in the slots, eight threads for each 128 bytes of a row.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

// Only the window's rows have places, compressed ones lie in their order.
class DecodedProducer {
 public:
  // `own`: rows of the item. `place`: of the window's rows in `decoded`.
  __device__ DecodedProducer(const DecodedRows& decoded, const TokenRows& rows, const ItemRows& own,
                             const RowSlot* place, BlockShared& shared)
      : decoded_(decoded),
        sequence_(rows.place.sequence),
        window_(rows.window),
        begin_(own.begin),
        count_(own.count),
        place_(place),
        shared_(shared) {}

  // All rows, a tile in each slot in turn. `filled`: fills of the slots before.
  __device__ void run(int (&filled)[2]) const {
    const int tiles = (count_ + kTileRows - 1) / kTileRows;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      int thread;  // read where it is needed, as BlockProducer's
      asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
      thread -= kBlockConsumers;
      const int unit = thread % kUnitsOfAtom;
      const bf16* from[kRows];
      bool exists[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const std::int32_t row = tile * kTileRows + row_in_tile(thread, i);
        exists[i] = row < count_;
        from[i] = decoded_.at(place_of(min(row, count_ - 1))) + unit * kUnitValues;
      }
      const int slot = tile % 2;
      const int fill = (slot == 0 ? filled[0] : filled[1]) + tile / 2;
      if (fill > 0) barrier_wait(shared_address(&shared_.empty[slot]), (fill - 1) & 1);
      const std::uint32_t to = shared_address(shared_.slot[slot]);
#pragma unroll
      for (int atom = 0; atom < kAtoms; ++atom) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          copy_unit(to + atom * kAtomBytes + atom_offset(row_in_tile(thread, i), unit), from[i] + atom * kAtomValues,
                    exists[i]);
        }
      }
      arrive_after_copies(shared_address(&shared_.full[slot]));
    }
    filled[0] += (tiles + 1) / 2;
    filled[1] += tiles / 2;
  }

 private:
  static constexpr int kUnitsOfAtom = kAtomRowBytes / kUnitBytes;
  static constexpr int kRowsAtOnce = kBlockProducers / kUnitsOfAtom;
  static constexpr int kRows = kTileRows / kRowsAtOnce;  // rows of a tile that a thread brings units of

  [[nodiscard]] __device__ static int row_in_tile(int thread, int i) {
    return i * kRowsAtOnce + thread / kUnitsOfAtom;
  }
  // Of the item's row.
  [[nodiscard]] __device__ RowSlot place_of(std::int32_t row) const {
    row += begin_;
    if (row < window_) return place_[row];
    return decoded_.compressed_row(sequence_, row - window_);
  }

  const DecodedRows& decoded_;
  std::int32_t sequence_;
  std::int32_t window_;
  std::int32_t begin_;
  std::int32_t count_;
  const RowSlot* place_;
  BlockShared& shared_;
};

}  // namespace dsv4rt::cuda
