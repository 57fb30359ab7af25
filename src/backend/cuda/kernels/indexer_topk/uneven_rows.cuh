// Scores of keys whose scales lie too far apart for integers (integer_keys.cuh): one by one, in FP32. Of keys that went
// through a Hadamard transform there are hardly any; of others, or of hostile ones, this takes long.
//
// The bits depend on the query, the key, the weights and the number of heads alone.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/early_reads.cuh"
#include "backend/cuda/kernels/indexer_topk/integer_keys.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {

// The rows of a sequence.
class UnevenRows {
 public:
  __device__ UnevenRows(const IndexerTopkParams& params, std::int32_t sequence) : p_(params), sequence_(sequence) {}

  // Scores again, of one token, the uneven among the rows that the calling warp has in tiles [tile, end), every
  // `step`th, as far as the token sees them: report_from(row).again(score). All lanes of the warp call, and lane 0
  // reports.
  template <class ReportFrom>
  __device__ void score_again(std::int64_t token, std::int32_t rows, int tile, int end, int step,
                              const ReportFrom& report_from) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    __syncwarp();  // what other lanes have reported comes before
#pragma unroll 1
    for (; tile < end; tile += 2 * step) {  // a tile for each half of the lanes
      const int own_tile = tile + lane / 16 * step;
      const int row = own_tile * kTileKeys + warp_row + lane % 16;
      const bool uneven = own_tile < end && row < rows && spread(scales_of(row)) > kMostSpread;
#pragma unroll 1
      for (unsigned left = __ballot_sync(0xffffffffU, uneven); left != 0; left &= left - 1) {
        const int uneven_row = __shfl_sync(0xffffffffU, row, __ffs(static_cast<int>(left)) - 1);
        const float score = score_of(token, uneven_row);
        if (lane == 0) report_from(uneven_row).again(score);
        __syncwarp();
      }
    }
  }

 private:
  __device__ const std::byte* block_of(std::int32_t row) const {
    const PagedRows& keys = p_.keys;
    const std::int64_t table = load_early(p_.step.sequence_slot + sequence_) * keys.table_stride;
    return keys.blocks + load_early(keys.block_table + table + row / keys.shape.rows) * keys.shape.block_bytes;
  }
  __device__ std::uint32_t scales_of(std::int32_t row) const {
    const std::byte* const scales = block_of(row) + p_.keys.shape.scale_offset(row % p_.keys.shape.rows);
    return *reinterpret_cast<const std::uint32_t*>(scales);
  }
  __device__ static std::uint32_t scale(std::uint32_t scales, int group) {
    return scales >> (8 * group) & 0xffU;
  }
  __device__ static std::uint32_t largest(std::uint32_t scales) {
    return max(max(scale(scales, 0), scale(scales, 1)), max(scale(scales, 2), scale(scales, 3)));
  }
  __device__ static int spread(std::uint32_t scales) {
    const std::uint32_t least = min(min(scale(scales, 0), scale(scales, 1)), min(scale(scales, 2), scale(scales, 3)));
    return static_cast<int>(largest(scales) - least);
  }
  // 2^(own - top).
  __device__ static float below(std::uint32_t own, std::uint32_t top) {
    return top - own < 127 ? __uint_as_float((127 - (top - own)) << 23) : 0.0F;
  }
  __device__ static float e2m1(std::uint32_t code) {
    const auto bits = static_cast<unsigned short>((code & 7U) << 9 | (code & 8U) << 12);
    return __fmul_rn(__half2float(__ushort_as_half(bits)), 0x1p14F);
  }

  // A warp; the same in all its lanes.
  __device__ float score_of(std::int64_t token, std::int32_t row) const {
    const std::uint32_t scales = scales_of(row);
    const std::uint32_t top = largest(scales);
    const auto* const codes =
        reinterpret_cast<const uint4*>(block_of(row) + p_.keys.shape.data_offset(row % p_.keys.shape.rows));
    float sum = 0.0F;
#pragma unroll 1
    for (int head = static_cast<int>(threadIdx.x) % 32; head < p_.heads; head += 32) {
      const bf16* const query = p_.q + (token * p_.heads + head) * kIndexHeadDim;
      float product = 0.0F;
#pragma unroll 1
      for (int group = 0; group < kIndexHeadDim / kMxfp4GroupValues; ++group) {
        const float factor = below(scale(scales, group), top);
        product = __fmaf_rn(group_product(codes[group], query + group * kMxfp4GroupValues), factor, product);
      }
      const float weight = __fmul_rn(to_float(p_.head_weight[token * p_.head_weight_stride + head]), p_.head_scale);
      sum = __fmaf_rn(product < 0.0F ? 0.0F : product, weight, sum);  // NaN stays
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, distance));
    }
    return __fmul_rn(sum, __uint_as_float(top == kE8m0NanCode ? 0x7fc00000U : top << 23));
  }
  __device__ static float group_product(const uint4& codes, const bf16* query) {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    float product = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll 1
      for (int j = 0; j < 8; ++j) product = __fmaf_rn(e2m1(words[i] >> (4 * j)), to_float(query[8 * i + j]), product);
    }
    return product;
  }

  const IndexerTopkParams& p_;
  std::int32_t sequence_;
};

}  // namespace dsv4rt::cuda
