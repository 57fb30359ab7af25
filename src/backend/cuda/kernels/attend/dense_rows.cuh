// The producers of dense_plan.cuh: packed rows from global memory to BF16 atoms in the slots.
//
// Rows come to the level-2 cache two tiles of the slot ahead. Half a tile at a time they are copied, packed, to where
// the first half of their values will lie, and decoded in place, every thread what it copied itself.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

// The producers' part of an item with rows, of one slot.
class DenseProducer {
 public:
  // Of the item: the tiles from `first_tile` on that fall to this thread's slot. fills: of the slot before the item.
  __device__ DenseProducer(const AttendParams& params, const TokenRows& rows, std::int32_t first_tile, int fills,
                           int thread, DenseShared& shared)
      : p_(params), rows_(rows), fills_(fills), shared_(shared), group_(thread / 128), unit_(thread % 4) {
    row_ = (first_tile + group_) * kTileRows + thread % 128 / 4;
  }

  __device__ void run(int count) {
    if (count == 0) return;
    std::byte* slot = shared_.slot[group_];
    keep_place(0, place(0));
    keep_place(1, place(1));
    __syncwarp();
    prefetch(0, 1);
    if (count > 1) {
      prefetch(1, 0);
      prefetch(1, 1);
    }
#pragma unroll 1
    for (int fill = 0; fill < count; ++fill) {
      const RowSlot later = place(fill + 2);
      wait_empty(0, fill);
      const uint2 first = copy(fill, 0, slot);
      wait_empty(1, fill);
      const uint2 second = copy(fill, 1, slot);
      keep_place(fill + 2, later);
      __syncwarp();
      if (fill + 2 < count) {
        prefetch(fill + 2, 0);
        prefetch(fill + 2, 1);
      }
      wait_copy_groups<1>();
      decode_staged_row(slot, half_row(), unit_, first);
      wait_copy_groups<0>();
      decode_staged_row(slot, half_row() + kHalfTileRows, unit_, second);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared_.full[group_]));
    }
  }

 private:
  [[nodiscard]] __device__ int row_of(int fill) const { return row_ + fill * 2 * kTileRows; }
  [[nodiscard]] __device__ int half_row() const { return row_ % kTileRows; }
  __device__ void wait_empty(int half, int fill) const {
    if (fills_ + fill > 0) barrier_wait(shared_address(&shared_.empty[group_][half]), (fills_ + fill - 1) & 1);
  }

  // Of the tile's two rows that are the thread's: the first of its four threads looks up one, the second the other.
  // Rows that do not exist lie where the last one does that does.
  [[nodiscard]] __device__ RowSlot place(int fill) const {
    const int row = min(row_of(fill) + unit_ % 2 * kHalfTileRows, rows_.count - 1);
    if (row >= rows_.window) return row_slot(p_, rows_.place.slot, row - rows_.window);
    const std::int32_t position = rows_.place.position - rows_.window + 1 + row;
    return kWindowRow | (position >= rows_.place.start
                             ? kStagedDenseRow | static_cast<RowSlot>(rows_.place.token_of(position))
                             : static_cast<RowSlot>(position % p_.ring.shape.rows));
  }
  __device__ void keep_place(int fill, RowSlot place) const {
    if (unit_ < 2) shared_.place[group_][fill % kPlaces][half_row() + unit_ * kHalfTileRows] = place;
  }
  [[nodiscard]] __device__ RowSource source(int fill, int half) const {
    const RowSlot place = shared_.place[group_][fill % kPlaces][half_row() + half * kHalfTileRows];
    if ((place & kWindowRow) == 0) return compressed_source(p_, place);
    const bool staged = (place & kStagedDenseRow) != 0;
    return window_source(p_, rows_.place.slot, place & ~(kWindowRow | kStagedDenseRow) | (staged ? kStagedRow : 0));
  }
  // Returns the row's scales. Codes and scales of rows that do not exist are zero.
  __device__ uint2 copy(int fill, int half, std::byte* slot) const {
    const bool exists = row_of(fill) + half * kHalfTileRows < rows_.count;
    const RowSource from = source(fill, half);
    stage_row_units(from, exists, slot, half_row() + half * kHalfTileRows, unit_);
    commit_copy_group();
    return exists ? load_scales(from.scales) : uint2{};
  }

  // The four threads of a row share its lines.
  __device__ void prefetch(int fill, int half) const {
    const RowSource from = source(fill, half);
    prefetch_line(from.data + unit_ * kLineBytes);
    if (unit_ == 0) prefetch_line(from.data + 4 * kLineBytes);
    if (unit_ == 1) prefetch_line(from.scales);
  }

  const AttendParams& p_;
  const TokenRows& rows_;
  int fills_;
  DenseShared& shared_;
  int group_;  // the slot
  int unit_;   // of an atom's 64 codes
  int row_;    // of the token: the first one that is the thread's
};

}  // namespace dsv4rt::cuda
