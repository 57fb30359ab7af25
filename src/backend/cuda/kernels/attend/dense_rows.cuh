// The producers of dense_plan.cuh: packed rows from global memory to BF16 atoms in the slots.
//
// Rows come to the level-2 cache four units of the slot ahead, and their codes to registers one ahead.
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
  // Of the item: the units that fall to this thread's slot, rows first_row + 32 * (2 * i + slot) and on. fills: of the
  // slot before the item; a unit is known by the number of its fill.
  __device__ DenseProducer(const AttendParams& params, const TokenRows& rows, std::int32_t first_row, int fills,
                           int thread, DenseShared& shared)
      : p_(params), shared_(shared), group_(thread / 128), own_(thread % 128 / 4), unit_(thread % 4) {
    __syncwarp();
    if (thread % 32 == 0) {
      volatile DenseToken& own = token();
      own.slot = rows.place.slot;
      own.count = rows.count;
      own.window = rows.window;
      own.first_position = rows.place.position - rows.window + 1;
      own.start = rows.place.start;
      own.first_token = rows.place.first_token;
      own.first_row = first_row + (group_ - 2 * fills) * kUnitRows;
    }
    __syncwarp();
  }

  // Units [begin, end).
  __device__ void run(int begin, int end) {
    if (begin == end) return;
    RowSlot first[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) first[i] = place(begin + i);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) keep_place(begin + i, first[i]);
    __syncwarp();
    LoadedCodes loaded{};  // otherwise the previous item's would be kept
    loaded.load(source(begin), unit_);
#pragma unroll
    for (int i = 1; i < kAhead; ++i) {
      if (begin + i < end) prefetch(begin + i);
    }
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const RowSlot later = place(i + kAhead);
      if (i > 1) barrier_wait(shared_address(&shared_.empty[group_][i & 1]), ((i >> 1) - 1) & 1);
      const bool exists = row_of(i) < token().count;
      const int row = (i & 1) * kUnitRows + own_;
      const std::uint32_t full = shared_address(&shared_.full[group_][i & 1]);
      copy_rope_units(source(i).data, exists, shared_.slot[group_], row, unit_);
      arrive_after_copies(full);
      loaded.decode(exists, shared_.slot[group_], row, unit_);
      if (i + 1 < end) loaded.load(source(i + 1), unit_);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(full);
      keep_place(i + kAhead, later);
      __syncwarp();
      if (i + kAhead < end) prefetch(i + kAhead);
    }
  }

 private:
  static constexpr int kAhead = 4;  // units of the slot

  // Registers are full of packed rows: what is known of the token lies in shared memory, for every warp.
  [[nodiscard]] __device__ volatile DenseToken& token() const {
    return shared_.token[(threadIdx.x - kDenseConsumers) / 32];
  }
  [[nodiscard]] __device__ int row_of(int i) const {
    return token().first_row + own_ + i * 2 * kUnitRows;
  }

  // The thread's row of a unit; a row that does not exist lies where the last one does that does.
  [[nodiscard]] __device__ RowSlot place(int i) const {
    const int row = min(row_of(i), token().count - 1);
    const std::int32_t window = token().window;
    if (row >= window) return row_slot(p_, token().slot, row - window);
    const std::int32_t position = token().first_position + row;
    return kWindowRow | (position >= token().start
                             ? kStagedDenseRow | static_cast<RowSlot>(token().first_token + position - token().start)
                             : static_cast<RowSlot>(position % p_.ring.shape.rows));
  }
  __device__ void keep_place(int i, RowSlot place) const {
    if (unit_ == 0) shared_.place[group_][i & (kPlaces - 1)][own_] = place;
  }
  [[nodiscard]] __device__ RowSource source(int i) const {
    const RowSlot place = shared_.place[group_][i & (kPlaces - 1)][own_];
    if ((place & kWindowRow) == 0) return compressed_source(p_, place);
    const bool staged = (place & kStagedDenseRow) != 0;
    return window_source(p_, token().slot, (place & ~(kWindowRow | kStagedDenseRow)) | (staged ? kStagedRow : 0));
  }

  // The four threads of a row share its lines.
  __device__ void prefetch(int i) const {
    prefetch_quarter_row(source(i), unit_);
  }

  const AttendParams& p_;
  DenseShared& shared_;
  int group_;  // the slot
  int own_;    // this one of a unit's rows
  int unit_;   // this part of an atom's 64 codes
};

}  // namespace dsv4rt::cuda
