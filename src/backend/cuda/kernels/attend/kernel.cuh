// Attention of up to 64 query heads of one token over its rows.
//
// A cluster of thread blocks takes a token; block r of it takes KV split r (token_rows.cuh). A KV split of one
// chunk, which is every CSA and window layer, decodes each row once: scores stay in registers until the
// cluster has agreed on the greatest scores, rows stay in shared memory as values. Longer KV splits go over their
// rows twice. Scores, probabilities and sums come out the same for every number of heads per block.
//
//   shared memory   q [heads][512] BF16, later p [heads][kProbabilityStride] BF16 and sums per 8 rows
//                   rows [kChunkRows][512] BF16, at the end this split's sums [heads][kSumStride] FP32
//                   and denominators; addresses of the chunk's rows, maxima
#pragma once

#include <cmath>
#include <cooperative_groups.h>
#include <cstdint>

#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kAttendThreads = 256;
inline constexpr int kAttendWarps = kAttendThreads / 32;
inline constexpr int kRowUnits = kHeadDim / kUnitValues;
inline constexpr int kRowTiles = kChunkRows / 8;              // a chunk in columns of the score tiles
inline constexpr int kProbabilityStride = kChunkRows + 8;     // values: eight rows reach all 32 banks
inline constexpr int kSumStride = kHeadDim + 8;               // floats: no bank conflicts in fragment order
inline constexpr int kDimsPerWarp = kHeadDim / kAttendWarps;  // values of the output that a warp sums

template <int kHeadTiles>
struct AttendShared {
  static constexpr int kHeads = 16 * kHeadTiles;
  union alignas(128) Queries {
    std::byte q[kHeads * kHeadDim * 2];
    struct {
      bf16 p[kHeads * kProbabilityStride];
      float tile_sum[kRowTiles][kHeads];  // sums of p before rounding, over a tile's rows
    } weights;
    float2 warp_max[kAttendWarps][kHeads];
    Rotation rotation[kRotatedPairs];  // rotation of the output's last values
  } queries;
  union alignas(128) Rows {
    std::byte tile[kChunkRows * kHeadDim * 2];
    float sums[kHeads * kSumStride];  // [values of a head, denominator of the KV split]
  } rows;
  RowAddresses<kChunkRows> address;
  union {
    float2 split_max[kHeads];  // greatest scores of the KV split: of window rows, of all
    float total[kHeads];       // in the end: softmax denominator of the token, sink included
  };
  WeightReference reference[kHeads];
};

template <int kHeadTiles>
class AttendBlock {
 public:
  using Shared = AttendShared<kHeadTiles>;
  static constexpr int kHeads = Shared::kHeads;
  // 16-byte loads a thread has in flight. The compiler for 10.0 spills with more of them beside 64 heads' sums.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  static constexpr int kLoadBatch = kHeadTiles >= 4 ? 2 : 5;
#else
  static constexpr int kLoadBatch = 5;
#endif
  // Warps over the score tiles: head halves where there are several, row columns otherwise.
  static constexpr int kHeadWarps = kHeadTiles >= 2 ? 2 : 1;
  static constexpr int kRowWarps = kAttendWarps / kHeadWarps;
  static constexpr int kWarpHeadTiles = kHeadTiles / kHeadWarps;
  static constexpr int kWarpRowTiles = (kRowTiles + kRowWarps - 1) / kRowWarps;
  using Scores = float[kWarpHeadTiles][kWarpRowTiles][4];
  using Largest = float2[kWarpHeadTiles][2];
  using Sums = float[kHeadTiles][kDimsPerWarp / 8][4];

  __device__ AttendBlock(const AttendParams& params, const TokenRows& rows, std::int64_t token, int first_head,
                         Shared& shared)
      : p_(params), rows_(rows), token_(token), first_head_(first_head), shared_(shared) {}

  // Rows of the chunk, and their values and the queries into shared memory. Ends with a barrier.
  __device__ int load(int chunk, int chunk_rows, bool queries) {
    if (queries) load_queries();
    const int begin = chunk * chunk_rows;
    const int count = min(chunk_rows, rows_.count - begin);
    const int window = min(count, window_rows(begin));
    for (int i = thread_; i < count; i += kAttendThreads) {
      shared_.address.set(i, i < window ? window_address(p_, rows_, begin + i)
                                        : compressed_address(p_, rows_, begin + i - rows_.window));
    }
    __syncthreads();
    std::byte* tile = shared_.rows.tile;
    // Window rows, then compressed rows, at one place of the code: the decoders of all formats are large.
#pragma unroll 1
    for (int first = 0; first < count;) {
      const bool compressed = first >= window;
      const RowFormat format = compressed ? p_.row_format : p_.ring.format;
      const int end = !compressed && p_.ring.format != p_.row_format ? window : count;
      decode_rows<kAttendThreads, kLoadBatch>(format, shared_.address, first, end, tile, thread_);
      first = end;
    }
    // What a multiple of 16 adds has weight zero, which must not meet a NaN.
    const int padded = (count + 15) / 16 * 16;
    for (int i = thread_; i < (padded - count) * kRowUnits; i += kAttendThreads) {
      *reinterpret_cast<uint4*>(tile + tile_offset<kRowUnits>(count + i / kRowUnits, i % kRowUnits)) = uint4{};
    }
    if (queries) wait_for_copies();
    __syncthreads();
    return count;
  }

  // s = q . k * kHeadDim^-0.5; -infinity past `count`.
  __device__ void score(int count, Scores& s) const {
#pragma unroll
    for (int m = 0; m < kWarpHeadTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kWarpRowTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][i][e] = 0.0f;
      }
    }
    const std::uint32_t q = shared_address(shared_.queries.q);
    const std::uint32_t k = shared_address(shared_.rows.tile);
#pragma unroll 1
    for (int d = 0; d < kHeadDim / 32; ++d) {
      std::uint32_t a[kWarpHeadTiles][2][4];
#pragma unroll
      for (int m = 0; m < kWarpHeadTiles; ++m) {
        const int row = (head_warp() * kWarpHeadTiles + m) * 16 + lane_ % 16;
        load_matrix_x4(a[m][0], q + tile_offset<kRowUnits>(row, 4 * d + lane_ / 16));
        load_matrix_x4(a[m][1], q + tile_offset<kRowUnits>(row, 4 * d + 2 + lane_ / 16));
      }
#pragma unroll
      for (int i = 0; i < kWarpRowTiles; ++i) {
        const int tile = row_tile(i);
        if (tile * 8 >= count) break;
        std::uint32_t b[4];
        load_matrix_x4(b, k + tile_offset<kRowUnits>(tile * 8 + lane_ % 8, 4 * d + lane_ / 8));
#pragma unroll
        for (int m = 0; m < kWarpHeadTiles; ++m) {
          mma_16x8x16(s[m][i], a[m][0], b[0], b[1]);
          mma_16x8x16(s[m][i], a[m][1], b[2], b[3]);
        }
      }
    }
    constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
    static_assert(kHeadDim == 512);
#pragma unroll
    for (int m = 0; m < kWarpHeadTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kWarpRowTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][i][e] = column(i, e) < count ? __fmul_rn(s[m][i][e], kScale) : -INFINITY;
      }
    }
  }

  // largest[m][half]: over this lane's scores of one head, of window rows and of all, NaN aside. The chunk begins with
  // row `begin` of the token.
  __device__ void raise(const Scores& s, int begin, Largest& largest) const {
    const int window = window_rows(begin);
#pragma unroll
    for (int m = 0; m < kWarpHeadTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kWarpRowTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float2& of_head = largest[m][e / 2];
          of_head.y = fmaxf(of_head.y, s[m][i][e]);
          if (column(i, e) < window) of_head.x = fmaxf(of_head.x, s[m][i][e]);
        }
      }
    }
  }

  // Maxima of the KV split from the lanes'. Between barriers; the queries are gone afterwards.
  __device__ void reduce_max(const Largest& largest) {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kWarpHeadTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 value = largest[m][half];
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
          value = greater(value, make_float2(__shfl_xor_sync(0xffffffffu, value.x, distance),
                                             __shfl_xor_sync(0xffffffffu, value.y, distance)));
        }
        if (lane_ % 4 == 0) shared_.queries.warp_max[warp_ / kHeadWarps][head_row(m, half)] = value;
      }
    }
    __syncthreads();
    if (thread_ < kHeads) {
      float2 value = shared_.queries.warp_max[0][thread_];
      for (int w = 1; w < kRowWarps; ++w) value = greater(value, shared_.queries.warp_max[w][thread_]);
      shared_.split_max[thread_] = value;
    }
  }

  // p = weights of s: rounded into shared memory, unrounded onto the denominator. In place of the queries.
  __device__ void weigh(const Scores& s, int count) {
    __syncthreads();
    auto& weights = shared_.queries.weights;
#pragma unroll
    for (int m = 0; m < kWarpHeadTiles; ++m) {
      const WeightReference reference[2] = {shared_.reference[head_row(m, 0)], shared_.reference[head_row(m, 1)]};
#pragma unroll
      for (int i = 0; i < kWarpRowTiles; ++i) {
        const int tile = row_tile(i);
        if (tile * 8 >= (count + 15) / 16 * 16) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = head_row(m, half);
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            p[e] = column(i, e) < count ? weight(reference[half], s[m][i][2 * half + e]) : 0.0f;
          }
          *reinterpret_cast<std::uint32_t*>(weights.p + head * kProbabilityStride + column(i, 0)) =
              round_pair(p[0], p[1]);
          // One sum per tile of eight rows: its order does not depend on how tiles fall to warps.
          float sum = p[0] + p[1];
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          if (lane_ % 4 == 0) weights.tile_sum[tile][head] = sum;
        }
      }
    }
    __syncthreads();
    if (thread_ < kHeads) {
      for (int tile = 0; tile < (count + 7) / 8; ++tile) denominator_ += weights.tile_sum[tile][thread_];
    }
  }

  // sums += p * v over the chunk's rows. A warp takes all heads and kDimsPerWarp values.
  __device__ void accumulate(int count, Sums& sums) const {
    const std::uint32_t p = shared_address(shared_.queries.weights.p);
    const std::uint32_t v = shared_address(shared_.rows.tile);
    const int steps = (count + 15) / 16;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      std::uint32_t a[kHeadTiles][4];
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
        const int value = (m * 16 + lane_ % 16) * kProbabilityStride + step * 16 + (lane_ / 16) * 8;
        load_matrix_x4(a[m], p + static_cast<std::uint32_t>(value) * 2);
      }
#pragma unroll
      for (int n = 0; n < kDimsPerWarp / 16; ++n) {
        const int unit = warp_ * (kDimsPerWarp / kUnitValues) + 2 * n + lane_ / 16;
        std::uint32_t b[4];
        load_matrix_x4_transposed(b, v + tile_offset<kRowUnits>(step * 16 + lane_ % 16, unit));
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
          mma_16x8x16(sums[m][2 * n], a[m], b[0], b[1]);
          mma_16x8x16(sums[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // This split's sums to where the cluster reads them; the rows are gone afterwards.
  __device__ void publish(const Sums& sums) {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kDimsPerWarp / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = m * 16 + half * 8 + lane_ / 4;
          const int dim = warp_ * kDimsPerWarp + n * 8 + (lane_ % 4) * 2;
          *reinterpret_cast<float2*>(shared_.rows.sums + head * kSumStride + dim) =
              make_float2(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
        }
      }
    }
    if (thread_ < kHeads) *denominator() = denominator_;
  }

  // What the token's weights are relative to, from all KV splits' maxima. After a cluster barrier.
  template <class Cluster>
  __device__ void gather_max(const Cluster& cluster, int splits) {
    if (thread_ < kHeads) {
      float2 value = make_float2(-INFINITY, -INFINITY);
      for (int r = 0; r < splits; ++r) value = greater(value, *remote(cluster, shared_.split_max + thread_, r));
      WeightReference& reference = shared_.reference[thread_];
      if (rows_.is_dense()) {
        reference = {__fmul_rn(rintf(__fmul_rn(value.y, 0x1.715476p+0f)), 0x1.62e43p-1f), 0.0f};  // log2 e, ln 2
      } else {
        reference = weight_reference(value.x, value.y);
      }
    }
  }

  // o = sums / denominator for this block's share of the values. After a cluster barrier.
  template <class Cluster>
  __device__ void finish(const Cluster& cluster, int split, int splits) {
    if (thread_ < kHeads) {
      float value = 0.0f;
      for (int r = 0; r < splits; ++r) value += *remote(cluster, denominator(), r);
      const float sink = first_head_ + thread_ < p_.heads ? p_.sink[first_head_ + thread_] : 0.0f;
      shared_.total[thread_] = value + shared_.reference[thread_].sink_weight(sink);
    }
    const bool rotates = p_.output_rope.inverse_frequency != nullptr;
    if (const int pair = kAttendThreads - 1 - thread_; rotates && pair < kRotatedPairs) {
      shared_.queries.rotation[pair] = rotation_of(p_.output_rope, rows_.place.position, pair);
    }
    __syncthreads();
    constexpr int kQuads = kHeadDim / 4;
    const int heads = min(kHeads, p_.heads - first_head_);
    bf16* out = p_.o + (token_ * p_.heads + first_head_) * kHeadDim;
    for (int i = split * kAttendThreads + thread_; i < heads * kQuads; i += splits * kAttendThreads) {
      const int head = i / kQuads;
      float* at = shared_.rows.sums + head * kSumStride + i % kQuads * 4;
      float4 sum = *reinterpret_cast<const float4*>(remote(cluster, at, 0));
      for (int r = 1; r < splits; ++r) {
        const float4 more = *reinterpret_cast<const float4*>(remote(cluster, at, r));
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
      }
      const float total = shared_.total[head];
      float o[4] = {sum.x / total, sum.y / total, sum.z / total, sum.w / total};
      if (const int first = i % kQuads * 4 - kNopeDim; rotates && first >= 0) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          float& even = o[2 * pair];
          float& odd = o[2 * pair + 1];
          even = round_to_bf16(even);
          odd = round_to_bf16(odd);
          rotate_pair(shared_.queries.rotation[first / 2 + pair], even, odd);
        }
      }
      *reinterpret_cast<uint2*>(out + std::int64_t{i} * 4) = make_uint2(round_pair(o[0], o[1]), round_pair(o[2], o[3]));
    }
  }

 private:
  __device__ void load_queries() {
    const int heads = min(kHeads, p_.heads - first_head_);
    const auto* source = reinterpret_cast<const uint4*>(p_.q + (token_ * p_.heads + first_head_) * kHeadDim);
    const std::uint32_t q = shared_address(shared_.queries.q);
#pragma unroll 2
    for (int i = thread_; i < kHeads * kRowUnits; i += kAttendThreads) {
      const int head = i / kRowUnits;
      const bool present = head < heads;
      copy_unit(q + tile_offset<kRowUnits>(head, i % kRowUnits), source + (present ? i : 0), present);
    }
  }

  __device__ static float2 greater(float2 a, float2 b) {
    return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y));
  }
  __device__ static float weight(const WeightReference& reference, float score) {
    return reference.shift == 0.0f ? expf(score - reference.window_max) : reference.weight(score);
  }
  // Rows of the window from row `begin` of the token on.
  [[nodiscard]] __device__ int window_rows(int begin) const {
    return max(0, rows_.window - begin);
  }
  // Of the thread's head.
  [[nodiscard]] __device__ float* denominator() {
    return shared_.rows.sums + thread_ * kSumStride + kHeadDim;
  }

  template <class Cluster, class Value>
  __device__ static Value* remote(const Cluster& cluster, Value* address, int rank) {
    return cluster.map_shared_rank(address, static_cast<unsigned>(rank));
  }

  [[nodiscard]] __device__ int head_warp() const {
    return warp_ % kHeadWarps;
  }
  [[nodiscard]] __device__ int row_tile(int i) const {
    return warp_ / kHeadWarps + i * kRowWarps;
  }
  [[nodiscard]] __device__ int column(int i, int e) const {
    return row_tile(i) * 8 + (lane_ % 4) * 2 + e % 2;
  }
  [[nodiscard]] __device__ int head_row(int m, int half) const {
    return (head_warp() * kWarpHeadTiles + m) * 16 + half * 8 + lane_ / 4;
  }

  const AttendParams& p_;
  const TokenRows& rows_;
  std::int64_t token_;
  int first_head_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
  float denominator_ = 0.0f;  // softmax denominator of the KV split, for the head that the thread has the number of
};

// Grid: x = tokens * cluster, y = groups of 16 * kHeadTiles heads; clusters of `cluster` blocks along x,
// at least as many as the longest token has KV splits.
template <int kHeadTiles>
__global__ void __launch_bounds__(kAttendThreads, 1)
    attend_kernel(const __grid_constant__ AttendParams p, int cluster_blocks) {
  extern __shared__ __align__(128) std::byte attend_shared[];
  using Block = AttendBlock<kHeadTiles>;
  auto& shared = *reinterpret_cast<typename Block::Shared*>(attend_shared);
  const std::int64_t token = static_cast<int>(blockIdx.x) / cluster_blocks;
  const int split = static_cast<int>(blockIdx.x) % cluster_blocks;
  const int first_head = static_cast<int>(blockIdx.y) * Block::kHeads;
  const TokenRows rows = token_rows(p, token);
  if (rows.count == 0) {
    if (split != 0) return;
    const int units = min(Block::kHeads, p.heads - first_head) * kRowUnits;
    auto* out = reinterpret_cast<uint4*>(p.o + (token * p.heads + first_head) * kHeadDim);
    for (int i = static_cast<int>(threadIdx.x); i < units; i += kAttendThreads) out[i] = uint4{};
    return;
  }
  const int chunks = rows.chunks();
  const int chunk_rows = rows.chunk_rows();
  const int splits = min(chunks, cluster_blocks);
  // Blocks without a KV split leave; barriers of the cluster do not wait for threads that have.
  if (split >= splits) return;

  const auto cluster = cooperative_groups::this_cluster();
  Block block(p, rows, token, first_head, shared);
  typename Block::Scores s;
  typename Block::Largest largest;
#pragma unroll
  for (int m = 0; m < Block::kWarpHeadTiles; ++m) largest[m][0] = largest[m][1] = make_float2(-INFINITY, -INFINITY);
  int count = 0;
  for (int chunk = split; chunk < chunks; chunk += splits) {
    __syncthreads();
    count = block.load(chunk, chunk_rows, chunk == split);
    block.score(count, s);
    block.raise(s, chunk * chunk_rows, largest);
  }
  block.reduce_max(largest);
  cluster.sync();
  block.gather_max(cluster, splits);

  typename Block::Sums sums;
#pragma unroll
  for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kDimsPerWarp / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][n][e] = 0.0f;
    }
  }
  const bool resident = chunks == splits;  // one chunk a KV split: its scores and rows are still there
  for (int chunk = split; chunk < chunks; chunk += splits) {
    if (!resident) {
      __syncthreads();
      count = block.load(chunk, chunk_rows, true);
      block.score(count, s);
    }
    block.weigh(s, count);
    block.accumulate(count, sums);
  }
  block.publish(sums);
  cluster.sync();
  block.finish(cluster, split, splits);
  cluster.sync();
}

}  // namespace dsv4rt::cuda
