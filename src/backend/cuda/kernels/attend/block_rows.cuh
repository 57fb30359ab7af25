// The producers of block_plan.cuh: packed rows from global memory to BF16 atoms in the slots.
//
// Four threads take a row. While a thread decodes its units, their registers take those of the next tile's row. Rotated
// values are copied to their place, behind the same barrier.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

// kSplits: of a split only the window's rows have places, others are looked up two tiles before their turn. kBegins:
// items may begin behind a token's first row.
template <bool kSplits, bool kBegins>
class BlockProducer {
 public:
  // `own`: rows of the item. `place`: of the token's rows.
  __device__ BlockProducer(const AttendParams& params, const TokenRows& rows, const ItemRows& own, const RowSlot* place,
                           BlockShared& shared)
      : p_(params),
        slot_(rows.place.slot),
        window_(rows.window),
        begin_(own.begin),
        count_(own.count),
        place_(place),
        shared_(shared) {}

  // All rows, a tile in each slot in turn. `filled`: fills of the slots before.
  __device__ void run(int (&filled)[2]) {
    const int tiles = (count_ + kTileRows - 1) / kTileRows;
    RowSlot place = place_of(0);
    RowSource source = source_of(0, place);
    const std::byte* data = source.data;  // the row that is in registers
    LoadedCodes loaded;
    loaded.load(source, producer_thread() % 4);
    place = place_of(1);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int slot = tile % 2;
      const int thread = producer_thread();
      const int row = thread / 4;
      const int row_unit = thread % 4;
      const bool exists = tile * kTileRows + row < count_;
      const bool more = tile + 1 < tiles;
      source = source_of(tile + 1, place);
      place = place_of(tile + 2);
      if (more) prefetch_quarter_row(source, row_unit);  // read once the slot is free
      const int fill = (slot == 0 ? filled[0] : filled[1]) + tile / 2;
      if (fill > 0) barrier_wait(shared_address(&shared_.empty[slot]), (fill - 1) & 1);
      copy_rope_units(data, exists, shared_.slot[slot], row, row_unit);
      arrive_after_copies(shared_address(&shared_.full[slot]));
      loaded.decode_and_load(exists, shared_.slot[slot], row, row_unit, source, more);
      data = source.data;
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared_.full[slot]));
    }
    filled[0] += (tiles + 1) / 2;
    filled[1] += tiles / 2;
  }

 private:
  // Four threads for a row of a tile, one for each unit of an atom's 64 codes. Read where it is needed: what follows
  // from it would otherwise be kept in registers, or spilled, and a local load takes an access to the level-2 cache.
  [[nodiscard]] __device__ static int producer_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread - kBlockConsumers;
  }
  // The thread's row of a tile, of the token's; the item's last one instead of one that does not exist.
  [[nodiscard]] __device__ std::int32_t row_of(int tile) const {
    return (kBegins ? begin_ : 0) + min(tile * kTileRows + producer_thread() / 4, count_ - 1);
  }
  // Looked up before other accesses are waiting to be served: a look-up queues behind them. Of a split's compressed
  // row its block: what is combined with a load is waited for.
  [[nodiscard]] __device__ RowSlot place_of(int tile) const {
    const std::int32_t row = row_of(tile);
    if (!kSplits || row < window_) return place_of_row(place_, window_, row);
    return static_cast<RowSlot>(load_index(block_entry(p_, slot_, row - window_)));
  }
  [[nodiscard]] __device__ RowSource source_of(int tile, RowSlot place) const {
    const std::int32_t row = row_of(tile);
    if (row < window_) return window_source(p_, slot_, place);
    return compressed_source(p_, kSplits ? row_in_block(p_, place, row - window_) : place);
  }

  const AttendParams& p_;
  std::int32_t slot_;
  std::int32_t window_;
  std::int32_t begin_;
  std::int32_t count_;
  const RowSlot* place_;
  BlockShared& shared_;
};

}  // namespace dsv4rt::cuda
