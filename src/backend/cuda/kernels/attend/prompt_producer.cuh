// The producers of prompt_plan.cuh: where a token's rows lie, and copies of them to the slots. Tiles whose rows lie one
// behind the other come as boxes, others by asynchronous copies, eight threads for each 128 bytes of a row.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/attend/prompt_plan.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

class PromptProducer {
 public:
  // `boxes`: encode_decoded_rows_map()'s.
  __device__ PromptProducer(const AttendParams& params, const BlockPass& pass, const DecodedRows& decoded,
                            const CUtensorMap& boxes, PromptShared& shared)
      : p_(params), pass_(pass), decoded_(decoded), boxes_(boxes), shared_(shared) {}

  // The block's `i`-th item, `n`-th of those that it has had in both rounds: looks its rows up, publishes it and brings
  // them, `times` times.
  __device__ void produce(int i, int n, int times) {
    const std::int32_t item = pass_.item_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), i);
    const std::int32_t token = pass_.token(item);
    // The places two items before are not looked up any more: their rows are in the slots.
    RowSlot* places = shared_.place[n % 2];
    const TokenRows rows = token_rows(p_, token);
    const ItemRows own = pass_.rows(rows, item);
    if (own.count > 0) place_rows(rows, places);
    if (thread() >= kRoleThreads - 32) publish(item, n, rows, own.count);
    named_sync(kPromptProducersBarrier, kRoleThreads);
    if (own.count <= 0) return;
#pragma unroll 1
    for (int time = 0; time < times; ++time) bring(rows, own.count, places);
  }

 private:
  static constexpr int kUnitsOfAtom = kAtomRowBytes / kUnitBytes;
  static constexpr int kRowsAtOnce = kRoleThreads / kUnitsOfAtom;
  static constexpr int kRows = kTileRows / kRowsAtOnce;  // rows of a tile that a thread brings units of

  __device__ static int thread() {
    int value;  // read where it is needed: registers are few
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
    return value % kRoleThreads;
  }

  __device__ void place_rows(const TokenRows& rows, RowSlot* places) const {
    static_assert(kMappedWindow <= kRoleThreads, "one window row a thread");
    static_assert(kMaximumRows <= kMappedRows, "so are rows that are not selected; attend_slow_path() bounds others");
    const int own = thread();
    if (own < rows.window) {
      places[own] = decoded_.window_row(rows.place, rows.place.position - rows.window + 1 + own);
    }
    const std::int32_t compressed = rows.count - rows.window;
    if (rows.topk_indices == nullptr) {
      for (std::int32_t index = own; index < compressed; index += kRoleThreads) {
        places[kMappedWindow + index] = decoded_.compressed_row(rows.place.sequence, index);
      }
      return;
    }
    // Four loads under way at a time.
    constexpr int kTogether = 4;
#pragma unroll 1
    for (std::int32_t first = own; first < compressed; first += kTogether * kRoleThreads) {
      std::int32_t row[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const std::int32_t index = min(first + k * kRoleThreads, compressed - 1);
        row[k] = rows.topk_indices[index];
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const std::int32_t index = first + k * kRoleThreads;
        if (index < compressed) {
          places[kMappedWindow + index] = decoded_.compressed_row(rows.place.sequence, row[k]);
        }
      }
    }
  }

  // By one warp.
  __device__ void publish(std::int32_t item, int n, const TokenRows& rows, std::int32_t count) const {
    const int at = n % 2;
    if (n >= 2) barrier_wait(shared_address(&shared_.item_empty[at]), (n / 2 - 1) & 1);
    const int pair = thread() % 32;
    if (pair == 0) {
      shared_.item[at] = {.token = pass_.token(item),
                          .first_head = pass_.first_head(item),
                          .rows = count,
                          .reference_rows = rows.window,
                          .first_tile = filled_};
    }
#pragma unroll
    for (int h = pair; h < kTileHeads; h += 32) {
      const int head = pass_.first_head(item) + h;
      shared_.sink[at][h] = head < p_.heads ? p_.sink[head] : 0.0f;
    }
    if (count > 0 && p_.output_rope.inverse_frequency != nullptr) {
      shared_.rotation[at][pair] = rotation_of(p_.output_rope, rows.place.position, pair);
    }
    barrier_arrive(shared_address(&shared_.item_full[at]));  // every lane for itself, as the scorer's
  }

  __device__ void bring(const TokenRows& rows, std::int32_t count, const RowSlot* places) {
    const int tiles = (count + kTileRows - 1) / kTileRows;
    // Rows of the step lie by their tokens; of those before it, a ring may end amid the window.
    const std::int32_t window_boxes = rows.place.position - rows.window + 1 >= rows.place.start ? rows.window : 0;
    const std::int32_t compressed_boxes = rows.topk_indices == nullptr ? rows.window : count;  // from there on
#pragma unroll 1
    for (int t = 0; t < tiles; ++t, ++filled_) {
      const std::int32_t first = t * kTileRows;
      const std::int32_t end = first + kTileRows;
      if (end <= window_boxes || (first >= compressed_boxes && end <= count)) {
        bring_boxes(place_of_row(places, rows.window, first));
      } else {
        bring_rows(first, count, rows.window, places);
      }
    }
  }

  // The slot's half is free.
  __device__ void wait_empty(int slot, int half) const {
    if (filled_ >= 2) barrier_wait(shared_address(&shared_.empty[slot][half]), (filled_ / 2 - 1) & 1);
  }

  // A tile of rows that lie one behind the other.
  __device__ void bring_boxes(RowSlot row) const {
    const int slot = filled_ % 2;
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      wait_empty(slot, half);
      const std::uint32_t full = shared_address(&shared_.full[slot][half]);
      if (thread() != 0) {
        barrier_arrive(full);
        continue;
      }
      barrier_arrive_expect(full, kHalfBytes);
      const std::uint32_t to = shared_address(shared_.slot[slot]) + half * kHalfBytes;
#pragma unroll 1
      for (int atom = 0; atom < kHalfAtoms; ++atom) {
        copy_box(to + atom * kAtomBytes, &boxes_, (half * kHalfAtoms + atom) * kAtomValues, static_cast<int>(row),
                 full);
      }
    }
  }

  __device__ void bring_rows(std::int32_t first, std::int32_t count, std::int32_t window, const RowSlot* places) const {
    const int own = thread();
    const int unit = own % kUnitsOfAtom;
    const bf16* from[kRows];
    bool exists[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int32_t row = first + i * kRowsAtOnce + own / kUnitsOfAtom;
      exists[i] = row < count;
      from[i] = decoded_.at(place_of_row(places, window, min(row, count - 1))) + unit * kUnitValues;
    }
    const int slot = filled_ % 2;
    const std::uint32_t to = shared_address(shared_.slot[slot]) + atom_offset(own / kUnitsOfAtom, unit);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      wait_empty(slot, half);
#pragma unroll
      for (int atom = half * kHalfAtoms; atom < (half + 1) * kHalfAtoms; ++atom) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          static_assert(kRowsAtOnce % 8 == 0, "swizzled alike");
          copy_unit(to + atom * kAtomBytes + i * kRowsAtOnce * kAtomRowBytes, from[i] + atom * kAtomValues, exists[i]);
        }
      }
      arrive_after_copies(shared_address(&shared_.full[slot][half]));
    }
  }

  const AttendParams& p_;
  const BlockPass& pass_;
  const DecodedRows& decoded_;
  const CUtensorMap& boxes_;
  PromptShared& shared_;
  int filled_ = 0;  // tiles of the items before
};

#endif

}  // namespace dsv4rt::cuda
