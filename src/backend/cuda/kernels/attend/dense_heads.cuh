// The consumers of dense_plan.cuh: scores, weights and sums of 64 heads over a KV split.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

class DenseConsumer {
 public:
  static constexpr int kBarrier = 1;  // barrier of the consumers

  __device__ explicit DenseConsumer(DenseShared& shared) : shared_(shared) {}

  // The block's `n`-th item. next() is called when the queries are not needed any more.
  template <class Next>
  __device__ void run(int n, const Next& next) {
#pragma unroll
    for (auto& part : o_) {
#pragma unroll
      for (float& value : part) value = 0.0f;
    }
    power_[0] = power_[1] = kNoPower;
    total_[0] = total_[1] = 0.0f;
#pragma unroll 1
    for (int first = 0; first < rows(n); first += 2 * kUnitRows) {
      weigh(n, first, next);
      sum_values(first + kUnitRows < rows(n));
    }
  }

  // What run() left.
  __device__ void write(float4* sums, float2* states) {
    sums += group() * kSumQuads * 128 + thread() % 128;
#pragma unroll
    for (int i = 0; i < kSumQuads; ++i) {
      const float* quad = &o_[i / (kSumQuads / kParts)][i % (kSumQuads / kParts) * 4];
      sums[i * 128] = make_float4(quad[0], quad[1], quad[2], quad[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = total_[half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (lane() % 4 == 0) states[group() * kTileHeads + head(half)] = make_float2(power_[half], total);
    }
  }

 private:
  static constexpr int kScores = kUnitRows / 2;  // scores of a thread
  static constexpr int kParts = 2;               // products that a warpgroup's values take
  static constexpr int kPartValues = kHeadDim / 2 / kParts;
  static constexpr int kPartBytes = kPartValues / kAtomValues * kAtomBytes;

  __device__ void sync() const {
    named_sync(kBarrier, kDenseConsumers);
  }

  // Rows of the item: read where they are needed, registers are full of sums.
  [[nodiscard]] __device__ int rows(int n) const {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(value) : "r"(shared_address(&shared_.item[n % 2].rows)));
    return value;
  }
  [[nodiscard]] __device__ unsigned fills(int slot) const {
    return slot == 0 ? fills_[0] : fills_[1];
  }
  [[nodiscard]] __device__ std::uint32_t unit(int slot) const {
    return shared_address(shared_.slot[slot]) + fills(slot) % 2 * kUnitOffset;
  }
  __device__ void wait_full(int slot) const {
    barrier_wait(shared_address(&shared_.full[slot][fills(slot) % 2]), fills(slot) / 2 & 1);
    fence_async_proxy();
  }
  // The slot's unit is used up.
  __device__ void release(int slot) {
    if (lane() == 0) barrier_arrive(shared_address(&shared_.empty[slot][fills(slot) % 2]));
    if (slot == 0) ++fills_[0];
    if (slot == 1) ++fills_[1];
  }

  // Scores of the warpgroup's unit and their weights, if it has one; `first` is the first row of the two. The queries
  // are not needed any more after the item's last scores.
  template <class Next>
  __device__ void weigh(int n, int first, const Next& next) {
    const bool mine = group() == 0 || first + kUnitRows < rows(n);
    float s[kScores];
    if (mine) {
      score(n, first, s);
    } else if (lane() % 4 == 0) {
      shared_.row_max[1][head(0)] = shared_.row_max[1][head(1)] = -INFINITY;
    }
    sync();
    if (first + 2 * kUnitRows >= rows(n)) next();
    raise_power();
    if (mine) weigh_scores(s);
    sync();
  }

  // Scaled scores, -infinity past the item's end, and their maxima.
  __device__ void score(int n, int first, float (&s)[kScores]) {
    wait_full(group());
    const std::uint32_t q = atom_word(shared_address(shared_.q), 16);
    const std::uint32_t k = atom_word(unit(group()), 16);
#pragma unroll
    for (float& value : s) value = 0.0f;
    wgmma_hold(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const int step = (i / 4 * kAtomBytes + i % 4 * 32) / 16;
      Wgmma<kUnitRows>::bf16(s, atom_descriptor(q + step), atom_descriptor(k + step), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(s);
    constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
    static_assert(kHeadDim == 512);
    const int own_rows = rows(n) - first - group() * kUnitRows - lane() % 4 * 2;
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = i / 4 * 8 + i % 2 < own_rows ? __fmul_rn(s[i], kScale) : -INFINITY;
      largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], s[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 1));
      largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));
      if (lane() % 4 == 0) shared_.row_max[group()][head(half)] = largest[half];
    }
  }

  __device__ void weigh_scores(float (&s)[kScores]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = s[4 * i + 2 * half + e];
          value = exp2_fast(__fmaf_rn(value, kLog2E, -power_[half]));
          sum += value;
        }
      }
      total_[half] += sum;
    }
#pragma unroll
    for (int i = 0; i < kUnitProducts; ++i) {
      const float* v = &s[8 * i];
      *weights(group(), i) =
          make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    }
  }

  // Sums are scaled only when scores exceed what they are relative to by much: any power gives the same sums.
  __device__ void raise_power() {
    constexpr float kSlack = 6.0f;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = fmaxf(shared_.row_max[0][head(half)], shared_.row_max[1][head(half)]) * kLog2E;
      factor[half] = 1.0f;
      if (largest > power_[half] + kSlack) {
        const float power = ceilf(largest);
        factor[half] = power_of_two(power_[half] - power);
        power_[half] = power;
      }
    }
    if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (auto& part : o_) {
#pragma unroll
      for (int i = 0; i < kPartValues / 2; ++i) part[i] *= factor[i % 4 / 2];
    }
    total_[0] *= factor[0];
    total_[1] *= factor[1];
  }

  // Weights times values of the two units, or of the first one.
  __device__ void sum_values(bool second) {
    uint4 a[2][kUnitProducts];
    load_weights(0, a[0]);
    if (second) load_weights(1, a[1]);
    if (group() == 1) wait_full(0);
    multiply(0, a[0]);
    if (second) {
      if (group() == 0) wait_full(1);
      multiply(1, a[1]);
      wgmma_wait<1>();
      release(0);
      wgmma_wait<0>();
      release(1);
      hold(a[1]);
    } else {
      wgmma_wait<0>();
      release(0);
    }
    hold(a[0]);
#pragma unroll
    for (auto& part : o_) wgmma_hold(part);
  }

  __device__ void load_weights(int slot, uint4 (&a)[kUnitProducts]) const {
#pragma unroll
    for (int i = 0; i < kUnitProducts; ++i) a[i] = *weights(slot, i);
    hold(a);
  }
  // Registers that products read count as free as soon as the products are issued: they are kept until these end.
  __device__ static void hold(uint4 (&a)[kUnitProducts]) {
#pragma unroll
    for (uint4& unit : a) asm volatile("" : "+r"(unit.x), "+r"(unit.y), "+r"(unit.z), "+r"(unit.w)::"memory");
  }

  // Issues the products of a slot's unit.
  __device__ void multiply(int slot, const uint4 (&a)[kUnitProducts]) {
#pragma unroll
    for (auto& part : o_) wgmma_hold(part);
    const std::uint32_t v = atom_word(unit(slot) + group() * (kAtoms / 2) * kAtomBytes, kAtomBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kUnitProducts; ++i) {
      const std::uint32_t weights[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Wgmma<kPartValues>::template bf16_registers<1>(
            o_[part], weights, atom_descriptor(v + (i * 16 * kAtomRowBytes + part * kPartBytes) / 16), true);
      }
    }
    wgmma_commit();
  }

  // This thread's unit of 16 rows.
  [[nodiscard]] __device__ uint4* weights(int slot, int product) const {
    return reinterpret_cast<uint4*>(shared_.weights[slot] + product * kWeightBytes) + thread() % 128;
  }
  // The head that this thread's accumulators in the half given belong to.
  [[nodiscard]] __device__ int head(int half) const {
    return warp() % 4 * 16 + half * 8 + lane() / 4;
  }

  // 2^x; results below 2^-126 are zero.
  __device__ static float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
  }

  // Computed where they are needed.
  __device__ static int thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }  // known to be uniform
  __device__ static int group() {
    return warp() / 4;
  }

  DenseShared& shared_;
  unsigned fills_[2] = {0, 0};  // fills of the slots that have been used up
  float o_[kParts][kPartValues / 2];
  float power_[2];  // what weights are relative to, of the thread's two heads
  float total_[2];  // sums of the thread's weights
};

#endif

}  // namespace dsv4rt::cuda
