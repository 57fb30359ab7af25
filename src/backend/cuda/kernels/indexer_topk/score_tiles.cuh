// Index scores on Hopper's matrix instruction: score[s] = sum over heads of w[h] * relu(q[h] . k[s]).
//
// One producer warp fills a ring of key tiles by bulk copies, straight from the paged blocks; three warpgroups
// take tiles in turn. A warpgroup turns its tile into register operands once and runs the queries of the
// run's tokens over it, so that tokens of one sequence decode a key once. Accumulators hold keys in rows and
// heads in columns: a thread sums its columns, four lanes add up to a key's score.
//
// A score's bits depend on its query, its key, its weights and the number of heads alone: the columns of a
// lane are added in head order, even and odd groups of eight heads apart, then the four partial sums of a
// lane, then the lanes as a tree. Keys that are not for integers have an order of their own (uneven_rows.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/early_reads.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/indexer_topk/index_mma.cuh"
#include "backend/cuda/kernels/indexer_topk/key_operand.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/query_loader.cuh"
#include "backend/cuda/kernels/indexer_topk/score_runs.cuh"

namespace dsv4rt::cuda {

inline constexpr int kScoreGroups = 3;  // warpgroups
inline constexpr int kScoreWorkers = kScoreGroups * 128;
static_assert(kScoreWorkers == kQueryLoaders);
inline constexpr int kPartFinders = 128;  // a warpgroup: one of its warps loads keys, all find the block's part
inline constexpr int kWgmmaScoreThreads = kScoreWorkers + kPartFinders;  // registers are moved between warpgroups
inline constexpr int kMostStages = 30;

// Division of the dynamic shared memory, chosen on the host.
struct ScoreShape {
  std::int32_t head_tiles = 1;
  std::int32_t stages = 0;       // stages of the ring, a multiple of kScoreGroups
  std::int32_t stage_bytes = 0;  // a tile's codes, then its scales
  std::int32_t weight_runs = 1;  // runs whose weights are held
};

// Bytes of a run's queries, and the weights of the runs whose weights are held.
__host__ __device__ inline std::int32_t run_query_bytes(const ScoreShape& shape, std::int32_t tokens) {
  return tokens * shape.head_tiles * kQueryTileBytes;
}
__host__ __device__ inline std::int32_t run_weights(const ScoreShape& shape, std::int32_t tokens) {
  return shape.weight_runs * tokens * shape.head_tiles * kTileHeads;
}

// What lies in shared memory beside the queries, the ring and the weights.
struct alignas(16) ScoreControl {
  std::uint64_t full[kMostStages];
  std::uint64_t empty[kMostStages];
  RunSum warp_total[kWgmmaScoreThreads / 32];
  std::uint64_t part_found;  // barrier: `part` is there, where the workers do not find it themselves
  ScorePart part;
  // Of a run of several tokens and of the next one: their tiles, and what their tokens see, ascending.
  RunTiles tiles[2];
  std::int32_t rows[2][kMostRunTokens];
  std::uint32_t fp16_tokens;  // a run's tokens that integers do not hold, a bit each
  bool last;                  // whether the block selects for the token whose rows it has scored
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Between the worker threads.
__device__ inline void sync_workers() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kScoreWorkers) : "memory");
}

// Between the threads that find the block's part.
__device__ inline void sync_finders() {
  asm volatile("bar.sync 2, %0;\n" ::"n"(kPartFinders) : "memory");
}

// Whether it is true of any of them.
__device__ inline bool any_worker(bool own) {
  int any;
  asm volatile(
      "{\n.reg .pred own, any;\nsetp.ne.s32 own, %1, 0;\nbar.red.or.pred any, 1, %2, own;\n"
      "selp.s32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(static_cast<int>(own)), "n"(kScoreWorkers)
      : "memory");
  return any != 0;
}

// The positive part of a product as weights expect it. NaN stays NaN.
template <OperandKind kKind>
__device__ inline float positive_part(IndexProduct<kKind> x) {
  if constexpr (kKind == OperandKind::kInteger) {
    return __int_as_float(max(x, 0));  // times 2^-149, see kIntegerWeightBits
  } else if constexpr (kKind == OperandKind::kF16) {
    // Twice it, and weights are halved: an addition is cheaper than a maximum, and -infinity, for which it does not
    // serve, arises with BF16 keys only.
    return __fadd_rn(x, fabsf(x));
  } else {
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;\n" : "=f"(y) : "f"(x));
    return y;
  }
}

// The matrix instruction reads its register operand until its results have been waited for: the compiler,
// which does not know, must not use the registers for anything else before.
template <int kSteps>
__device__ inline void hold_keys(KeyFragment<kSteps>& keys) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    asm volatile("" : "+r"(keys[s][0]), "+r"(keys[s][1]), "+r"(keys[s][2]), "+r"(keys[s][3])::"memory");
  }
}

// Products of the keys and one tile of heads; done at wgmma_wait.
template <OperandKind kKind, int kSteps>
__device__ inline void start_products(IndexProduct<kKind> (&d)[32], const KeyFragment<kSteps>& keys,
                                      std::uint32_t query_tile) {
  const std::uint64_t low = query_descriptor(query_tile);
  const std::uint64_t high = query_descriptor(query_tile + kQueryTileBytes / 2);
  wgmma_hold(d);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    index_mma<kKind>(d, keys[s], (s < 4 ? low : high) + s % 4 * kWgmmaStep, s > 0);
  }
  wgmma_commit();
}

// A lane's partial sums: [row r or r + 8][two of even groups of eight heads, two of odd groups].
using HeadSums = float[2][4];

// Weights of a lane's columns of a tile.
using HeadWeights = float[16];
__device__ inline void load_weights(const float* from, HeadWeights& weights) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    weights[4 * i] = four.x, weights[4 * i + 1] = four.y, weights[4 * i + 2] = four.z, weights[4 * i + 3] = four.w;
  }
}

// Heads that do not exist have queries of zeros, which add nothing to finite keys; BF16 keys may be infinite, and
// such heads are left out by their weight.
template <OperandKind kKind>
__device__ inline void add_heads(const IndexProduct<kKind> (&d)[32], const HeadWeights& weights, HeadSums& sum) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (kKind == OperandKind::kBf16 && __float_as_uint(weights[i]) == kNoHead) continue;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      float& chain = sum[below][i % 4];
      chain = __fmaf_rn(positive_part<kKind>(d[i / 2 * 4 + i % 2 + 2 * below]), weights[i], chain);
    }
  }
}

// The score of row r in even lanes, of row r + 8 in odd ones.
template <OperandKind kKind>
__device__ inline float finish_score(const HeadSums& sum, float factor, bool odd) {
  float total[2];
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    total[below] = __fadd_rn(__fadd_rn(sum[below][0], sum[below][2]), __fadd_rn(sum[below][1], sum[below][3]));
  }
  float own = odd ? total[1] : total[0];
  own = __fadd_rn(own, __shfl_xor_sync(0xffffffffU, odd ? total[0] : total[1], 1));
  own = __fadd_rn(own, __shfl_xor_sync(0xffffffffU, own, 2));
  if constexpr (kKind == OperandKind::kInteger) own = __fmul_rn(own, kIntegerSumFactor);
  return __fmul_rn(own, factor);
}

// Dynamic shared memory: the run's queries, the ring, the queries' weights, what the workers share.
struct ScoreMemory {
  std::byte* queries;  // [run tokens], see QueryLoader; of integers the next run's are in the other half
  std::byte* ring;
  float* weights;  // [this run, the next one where its are held][run tokens]
  ScoreControl* control;

  __device__ ScoreMemory(std::byte* shared, const ScoreShape& shape, const ScoreBatch& batch)
      : queries(shared),
        ring(queries + run_query_bytes(shape, batch.group_tokens)),
        weights(reinterpret_cast<float*>(ring + shape.stages * shape.stage_bytes)),
        control(reinterpret_cast<ScoreControl*>(weights + run_weights(shape, batch.group_tokens))) {}
};

// Before a barrier of the block.
__device__ inline void init_score_barriers(ScoreControl& control, const ScoreShape& shape) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < shape.stages) {
    barrier_init(shared_address(control.full + thread), 1);
    barrier_init(shared_address(control.empty + thread), 128);  // the lanes of one warpgroup
    barrier_init_fence();
  }
}

// A warpgroup's way through the ring: tile number n of the block is in stage n % stages and belongs to
// warpgroup n % kScoreGroups.
class RingReader {
 public:
  __device__ RingReader(const ScoreMemory& memory, const ScoreShape& shape)
      : memory_(memory), shape_(shape), stage_(static_cast<int>(threadIdx.x) / 128) {}

  // The warpgroup's next tile.
  __device__ const std::byte* wait() const {
    barrier_wait(full(), phase_);
    return memory_.ring + stage_ * shape_.stage_bytes;
  }
  // Gives the tile's memory back and moves on. The fence lets this lane's reads end before the copy engine writes
  // there: the compiler starts them before the arrival but does not wait for them. Every lane arrives, since race
  // checkers do not see an arrival after __syncwarp() as that of the other lanes too.
  __device__ void release() {
    fence_async_proxy();
    barrier_arrive(full() + kFullToEmpty);
    stage_ += kScoreGroups;
    if (stage_ >= shape_.stages) {
      stage_ -= shape_.stages;
      phase_ ^= 1;
    }
  }

 private:
  static constexpr std::uint32_t kFullToEmpty = offsetof(ScoreControl, empty) - offsetof(ScoreControl, full);
  [[nodiscard]] __device__ std::uint32_t full() const { return shared_address(memory_.control->full + stage_); }

  const ScoreMemory& memory_;
  const ScoreShape& shape_;
  int stage_;
  std::uint32_t phase_ = 0;
};

// The warpgroup's first one of a run's tiles; every kScoreGroups-th from there on is its. A tile's number in the part
// is its warpgroup's modulo their count.
__device__ inline int first_own_tile(const RunTiles& tiles) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  return tiles.tile + (group + kScoreGroups - tiles.number % kScoreGroups) % kScoreGroups;
}

// The same in all lanes, and known to be: products may be under way across branches that depend on it.
template <class Integer>
__device__ inline Integer warp_uniform(Integer value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

// The lane's first row of a tile, and its place among the four lanes of that row.
struct LanePlace {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  int column = lane % 4;

  __device__ LanePlace() {
    asm volatile("" : "+r"(row), "+r"(column));  // not worth computing again for every tile
  }
  [[nodiscard]] __device__ int reported_row() const { return row + column % 2 * 8; }
  [[nodiscard]] __device__ bool reports() const { return column < 2; }
  [[nodiscard]] __device__ bool odd() const { return column % 2 != 0; }
};

// What becomes of a lane's scores of one token, whose rows lie `kScoreGroups` tiles apart: stored.
class StoreScores {
 public:
  // `scores` of the token; the lane's first row.
  __device__ StoreScores(float* scores, int row) : out_(scores + row) {}
  __device__ void operator()(float score) const { *out_ = score; }
  __device__ void again(float score) const { *out_ = score; }  // takes the place of the first row's
  __device__ void advance() { out_ += kScoreGroups * kTileKeys; }

 private:
  float* out_;
};

// Which of a warpgroup's tiles have keys that are not for integers, as far as a lane sees: the last one may have rows
// that nobody sees, which hold anything.
class UnevenTiles {
 public:
  __device__ void add(const ConvertedKeys& keys) {
    before_ |= last_;
    last_ = keys.room;
  }
  // The first tile to look at of tiles [tile, end), `end` where there is none. By a whole warp.
  [[nodiscard]] __device__ int first(int tile, int end) const {
    if (__any_sync(0xffffffffU, before_ < 0)) return tile;
    if (!__any_sync(0xffffffffU, last_ < 0)) return end;
    return end - 1 - (end - 1 - tile) % kScoreGroups;
  }

 private:
  std::int32_t before_ = 0;
  std::int32_t last_ = 0;
};

// Tiles [tile, end) of a run of one token, every kScoreGroups-th. While the products of a tile are formed, the
// next one's bytes are read and the one before is summed over heads. report_from(row): takes the lane's scores from
// that row on. score_again(tile): of integers, from which tile on there may be keys that are not for them.
template <class Operand, class ReportFrom, class ScoreAgain>
__device__ inline void score_single(const ScoreMemory& memory, RingReader& ring, int tile, int end,
                                    const ReportFrom& report_from, const ScoreAgain& score_again) {
  constexpr OperandKind kKind = Operand::kKind;
  int left = warp_uniform((end - tile + kScoreGroups - 1) / kScoreGroups);  // tiles whose products are not formed
  if (left <= 0) return;
  const LanePlace place;
  const std::uint32_t queries = shared_address(memory.queries);
  const float* const weights_from = memory.weights + place.column * 16;
  HeadWeights weights;
  if constexpr (kKind != OperandKind::kBf16) load_weights(weights_from, weights);
  auto report = report_from(tile * kTileKeys + place.reported_row());
  typename Operand::Fragment keys;
  UnevenTiles uneven;
  typename Operand::Raw raw = Operand::read(ring.wait(), place.row, place.column);
  float factor;
  const auto read_next = [&] {
    if (--left > 0) raw = Operand::read(ring.wait(), place.row, place.column);
  };
  // The next tile's bytes and the weights are in registers before this tile is summed where they fit. BF16 bytes are
  // themselves the operand: the compiler reads them into the very registers that products under way still read, and
  // what hold_keys() holds is a copy.
  constexpr bool kAhead = kKind != OperandKind::kBf16;
  using Products = IndexProduct<kKind>[32];
  // Products of the keys just read.
  const auto start = [&](Products& d) {
    const ConvertedKeys converted = Operand::convert(raw, place.column, keys);
    factor = converted.factor;
    if constexpr (kKind == OperandKind::kInteger) uneven.add(converted);
    ring.release();
    start_products<kKind>(d, keys, queries);
    if constexpr (kAhead) read_next();
  };
  const auto step = [&](Products& now, Products& next) {
    wgmma_wait<0>();
    wgmma_hold(now);
    hold_keys(keys);
    if constexpr (!kAhead) read_next();
    const float own_factor = factor;
    const bool more = left > 0;
    if (more) start(next);
    HeadSums sum = {};
    if constexpr (kKind == OperandKind::kBf16) load_weights(weights_from, weights);
    add_heads<kKind>(now, weights, sum);
    const float score = finish_score<kKind>(sum, own_factor, place.odd());
    if (place.reports()) report(score);
    report.advance();
    return more;
  };
  Products d[2];
  start(d[0]);
#pragma unroll 1
  while (step(d[0], d[1]) && step(d[1], d[0])) {
  }
  wgmma_wait<0>();  // nothing is under way, which the compiler does not see
  if constexpr (kKind == OperandKind::kInteger) {
    const int first = uneven.first(tile, end);
    if (first < end) score_again(first);
  }
}

// The lane's part of the next tile's keys, whose stage is then free.
template <class Operand>
__device__ inline ConvertedKeys take_keys(RingReader& ring, const LanePlace& place, typename Operand::Fragment& keys) {
  const ConvertedKeys converted =
      Operand::convert(Operand::read(ring.wait(), place.row, place.column), place.column, keys);
  ring.release();
  return converted;
}

// Tiles [tile, end) of any run, every kScoreGroups-th, one product after the other: in registers that are left beside
// those of score_single() and score_run(). report_from(token, row) takes a score.
template <class Operand, class ReportFrom>
__device__ inline void score_plainly(const ScoreShape& shape, std::uint32_t queries, const float* all_weights,
                                     RingReader& ring, int tile, int end, int tokens, const ReportFrom& report_from) {
  constexpr OperandKind kKind = Operand::kKind;
  const LanePlace place;
#pragma unroll 1
  for (; tile < end; tile += kScoreGroups) {
    typename Operand::Fragment keys;
    const ConvertedKeys converted = take_keys<Operand>(ring, place, keys);
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      HeadSums sum = {};
#pragma unroll 1
      for (int head_tile = 0; head_tile < shape.head_tiles; ++head_tile) {
        const int query_tile = token * shape.head_tiles + head_tile;
        IndexProduct<kKind> products[32];
        start_products<kKind>(products, keys, queries + query_tile * kQueryTileBytes);
        wgmma_wait<0>();
        wgmma_hold(products);
        hold_keys(keys);
        HeadWeights weights;
        load_weights(all_weights + query_tile * kTileHeads + place.column * 16, weights);
        add_heads<kKind>(products, weights, sum);
      }
      const float score = finish_score<kKind>(sum, converted.factor, place.odd());
      if (place.reports()) report_from(token, tile * kTileKeys + place.reported_row())(score);
    }
  }
}

// Places the queries of one token and scores with them. By the workers: place(operand) puts queries into shared memory
// and tells whether integers hold them, as far as the thread sees; any(value) is a barrier that tells whether it is
// true of one of them; score(operand) scores; score_plainly() does where integers do not hold them.
template <IndexKeyFormat kFormat, class Place, class Any, class Score, class ScorePlainly>
__device__ inline void place_and_score(const Place& place, const Any& any, const Score& score,
                                       const ScorePlainly& score_plainly) {
  if constexpr (kFormat == IndexKeyFormat::kMxfp4) {
    const bool integers = place(IntegerKeys{});
    fence_async_proxy();
    if (!any(!integers)) {
      score(IntegerKeys{});
      return;
    }
    place(KeyOperand<kFormat>{});
    fence_async_proxy();
    any(false);
    score_plainly();
  } else {
    place(KeyOperand<kFormat>{});
    fence_async_proxy();
    any(false);
    score(KeyOperand<kFormat>{});
  }
}

// Where the keys of a tile lie: a block of the cache, and the row in it.
struct TilePlace {
  const std::byte* block;
  std::int32_t row;
};

// Finds the places of a part's tiles, which a lane asks for in ascending order. What it reads is known before the
// step's first kernel (early_reads.cuh).
class TileFinder {
 public:
  __device__ TileFinder(const IndexerTopkParams& params, const ScoreRuns& runs, const ScorePart& part)
      : p_(params),
        runs_(runs),
        run_(part.run),
        number_(-part.first_tile),
        tiles_of_block_(static_cast<std::uint32_t>(params.keys.shape.rows) / kTileKeys) {
    find_table();
  }

  // The tile of this number in the part.
  __device__ TilePlace find(std::int32_t number) {
#pragma unroll 1
    while (number >= number_ + run_.tiles) {
      number_ += run_.tiles;
      run_ = runs_.run_after(run_);
      find_table();
    }
    const auto tile = static_cast<std::uint32_t>(number - number_);
    const std::uint32_t column = tile / tiles_of_block_;
    return {.block = p_.keys.blocks + load_early(p_.keys.block_table + table_ + column) * p_.keys.shape.block_bytes,
            .row = static_cast<std::int32_t>((tile - column * tiles_of_block_) * kTileKeys)};
  }
  [[nodiscard]] __device__ bool whole_blocks() const {
    return tiles_of_block_ == 1;
  }

 private:
  __device__ void find_table() {
    table_ = load_early(p_.step.sequence_slot + run_.sequence) * p_.keys.table_stride;
  }

  const IndexerTopkParams& p_;
  const ScoreRuns& runs_;
  ScoreRun run_;
  std::int32_t number_;  // number in the part of the run's tile 0
  std::uint32_t tiles_of_block_;
  std::int64_t table_ = 0;
};

// Fills the ring with a part's tiles, of which `mine` is the one whose number is the lane's, if there is one. One warp:
// its lanes look up where 32 tiles lie; one of them copies them.
template <IndexKeyFormat kFormat>
__device__ inline void produce_tiles(const IndexerTopkParams& p, TileFinder& finder, TilePlace mine, std::int32_t tiles,
                                     const ScoreShape& shape, std::uint32_t ring, const ScoreControl& control) {
  using Layout = typename KeyOperand<kFormat>::Layout;
  constexpr std::uint32_t kCodeBytes = kTileKeys * Layout::kDataBytes;
  constexpr std::uint32_t kScaleBytes = kTileKeys * Layout::kScaleBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_first_policy();
  const bool together = finder.whole_blocks();  // codes and scales lie side by side
  int stage = 0;
  std::uint32_t phase = 1;  // the ring starts empty
#pragma unroll 1
  for (std::int32_t first = 0; first < tiles; first += 32) {
    if (first > 0) mine = finder.find(min(first + lane, tiles - 1));
    const std::byte* codes = mine.block + p.keys.shape.data_offset(mine.row);  // a block's scales lie behind its codes
    const auto to_scales =
        static_cast<std::uint32_t>(p.keys.shape.scale_offset(mine.row) - p.keys.shape.data_offset(mine.row));
    const std::int32_t count = min(tiles - first, 32);
#pragma unroll 1
    for (std::int32_t i = 0; i < count; ++i) {
      const std::uint32_t full = shared_address(control.full + stage);
      const auto from =
          reinterpret_cast<const std::byte*>(__shfl_sync(0xffffffffU, reinterpret_cast<std::uintptr_t>(codes), i));
      const std::uint32_t distance = __shfl_sync(0xffffffffU, to_scales, i);
      barrier_wait(shared_address(control.empty + stage), phase);
      if (elected_lane()) {
        const std::uint32_t target = ring + static_cast<std::uint32_t>(stage * shape.stage_bytes);
        barrier_arrive_expect(full, kCodeBytes + kScaleBytes);
        copy_bulk(target, from, together ? kCodeBytes + kScaleBytes : kCodeBytes, full, policy);
        if (kScaleBytes > 0 && !together) copy_bulk(target + kCodeBytes, from + distance, kScaleBytes, full, policy);
      }
      if (++stage == shape.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
}

#endif  // sm_90a

}  // namespace dsv4rt::cuda
