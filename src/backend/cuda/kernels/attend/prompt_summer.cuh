// Sums of values and outputs of prompt_plan.cuh, by a warpgroup for each half of the columns.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_items.cuh"
#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/half_sums.cuh"
#include "backend/cuda/kernels/attend/prompt_plan.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <bool kShifted>
class PromptSummer {
 public:
  // `half`: of the columns, known to be the same for a warp.
  __device__ PromptSummer(const AttendParams& params, const CUtensorMap& outputs, int half, PromptShared& shared)
      : p_(params), outputs_(outputs), half_(half), shared_(shared) {}

  // The `n`-th item that the block has had in both rounds.
  __device__ void sum(int n) {
    at_ = n % 2;
    barrier_wait(shared_address(&shared_.item_full[at_]), n / 2 & 1);
    const PromptItem& item = shared_.item[at_];
    if (item.rows > 0) {
      const int tiles = item.tiles();
      int tile = item.first_tile;
      if constexpr (kShifted) {
        for (const int end = tile + tiles; tile < end; ++tile) {
          wait_weights(tile);
          __syncwarp();  // no lane still waits when the tile is gone
          release(tile);
        }
      }
#pragma unroll
      for (auto& part : o_) {
#pragma unroll
        for (float& value : part) value = 0.0f;
      }
      const int last = tile + tiles - 1;
#pragma unroll 1
      for (; true; ++tile) {
        wait_weights(tile);
        start_half_products(o_, atom_word(shared_address(shared_.weights[tile % 2]), 16),
                            atom_word(shared_address(half_of_slot(tile)), kAtomBytes));
        wgmma_wait<0>();
        hold_half_sums(o_);
        if (tile == last) break;
        release(tile);
      }
      barrier_wait(shared_address(&shared_.factor_full[at_]), n / 2 & 1);
      // Other warps' products have read the rows in whose place outputs are staged.
      named_sync(kSummersBarrier + half_, kRoleThreads);
      write(last);
    } else {
      barrier_wait(shared_address(&shared_.factor_full[at_]), n / 2 & 1);
      if (item.rows == 0) write_item_zeros<true>(p_, item, half_ * kRoleThreads + thread());
    }
    barrier_arrive(shared_address(&shared_.item_empty[at_]));  // every thread for itself, as the scorer's
  }

 private:
  __device__ static int thread() {
    int value;  // read where it is needed: what follows from it would otherwise be kept, or spilled
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
    return value % kRoleThreads;
  }
  [[nodiscard]] __device__ const std::byte* half_of_slot(int tile) const {
    return shared_.slot[tile % 2] + half_ * kHalfBytes;
  }
  __device__ void wait_weights(int tile) const {
    barrier_wait(shared_address(&shared_.weights_full[tile % 2]), tile / 2 & 1);
    barrier_wait(shared_address(&shared_.full[tile % 2][half_]), tile / 2 & 1);
    fence_async_proxy();
  }
  // This warp arrives, one of the four that free a half.
  __device__ void release(int tile) const {
    if (thread() % 32 == 0) barrier_arrive(shared_address(&shared_.empty[tile % 2][half_]));
  }

  // The sums, multiplied, rounded, turned, maybe encoded, and out through the half of the last tile's slot, which is
  // then free.
  __device__ void write(int last) {
    const int own = thread();
    const int lane = own % 32;
    const int first_row = own / 32 * 16;
    const std::uint32_t staged = shared_address(half_of_slot(last));
    const bool turns = half_ == 1 && p_.output_rope.inverse_frequency != nullptr;
    const float factor[2] = {shared_.factor[at_][first_row + lane / 4], shared_.factor[at_][first_row + 8 + lane / 4]};
    const PromptItem& item = shared_.item[at_];
    const int head = item.first_head + first_row;
    // An atom's rows of this warp to column `column` of the map.
    const auto store = [&](int atom, int column) {
      fence_async_proxy();
      __syncwarp();
      if (lane != 0) return;
      store_box_of_matrix(&outputs_, column, head, item.token, staged + atom * kAtomBytes + first_row * kAtomRowBytes);
    };
    if (p_.encoded) {
#pragma unroll
      for (int part = 0; part < kHalfParts; ++part) {
        stage_encoded_block(*p_.encoded, p_.heads, item.token, head, half_, part, o_, factor, turns,
                            shared_.rotation[at_], code_address(staged + part * kAtomBytes, first_row, lane), lane);
        store(part, (half_ * kHalfParts + part) * static_cast<int>(kEncodedBlockValues));
      }
    } else {
#pragma unroll
      for (int atom = 0; atom < kHalfAtoms; ++atom) {
        stage_outputs(o_, factor, atom, turns && atom == kHalfAtoms - 1, shared_.rotation[at_],
                      fragment_address(staged + atom * kAtomBytes, first_row, lane), lane);
        store(atom, (half_ * kHalfAtoms + atom) * kAtomValues);
      }
    }
    if (lane != 0) return;
    commit_stores();
    wait_stores_read<0>();
    release(last);
  }

  const AttendParams& p_;
  const CUtensorMap& outputs_;
  int half_;
  PromptShared& shared_;
  int at_ = 0;  // where the item is
  HalfSums o_;
};

#endif

}  // namespace dsv4rt::cuda
