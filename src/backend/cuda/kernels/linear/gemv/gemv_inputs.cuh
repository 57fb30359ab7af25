// The inputs of the gemv kernel, from global to shared memory by the warps that multiply: normed where the launch
// asks for it, rounded where the problem does.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_unit.cuh"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void store_shared(std::uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};\n" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ float load_shared_float(std::uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ float load_shared_bf16(std::uint32_t address) {
  std::uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(bits) : "r"(address) : "memory");
  return __uint_as_float(std::uint32_t{bits} << 16U);
}

// Called by the threads of one warpgroup.
struct GemvInputs {
  const LinearParams& p;
  const GemvUnit& unit;
  const bf16* first_unit;  // the thread's first one of the first token, of those that copy() brings

  // Needs nothing of the kernels in front.
  __device__ __forceinline__ GemvInputs(const LinearParams& params, const GemvUnit& gemv_unit)
      : p(params), unit(gemv_unit), first_unit(source(norms() ? 0 : first_value(), static_cast<int>(threadIdx.x), 0)) {
    have_ready(first_unit);
  }

  // With a norm whole rows come, and the segment lies in its place among them.
  __device__ __forceinline__ bool norms() const { return p.norm.weight != nullptr; }
  __device__ __forceinline__ int first_value() const { return unit.first_block * kScaleBlockInputs; }

  __device__ __forceinline__ static void sync() { asm volatile("bar.sync 1, 128;\n" ::: "memory"); }

  // work(unit, token, exists) for `units` units of every token. All lanes of a warp call it together, 16 of them maybe
  // with a unit that does not exist.
  template <class Work>
  __device__ __forceinline__ void for_units(int units, const Work& work) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int token = 0; token < p.tokens; ++token) {
#pragma unroll 1
      for (int first = thread / 32 * 32; first < units; first += kWarpgroup) {
        const int i = first + thread % 32;
        work(i, token, i < units);
      }
    }
  }

  // `units` units of every token's row to unit.rows. Every thread waits for its own. A copy of 16 bytes whose
  // neighbours' targets are not beside its own takes as long as all of theirs.
  __device__ __forceinline__ void copy(int units) const {
    const int thread = static_cast<int>(threadIdx.x);
    const bf16* row = first_unit;
    std::uint32_t to = unit.rows + static_cast<std::uint32_t>(thread * kUnitBytes);
#pragma unroll 1
    for (int token = 0; token < p.tokens; ++token) {
#pragma unroll 1
      for (int i = 0; i < units - thread; i += kWarpgroup) {
        copy_unit(to + static_cast<std::uint32_t>(i * kUnitBytes), row + i * kUnitValues, true);
      }
      row += p.rows[unit.q->input].x_stride;
      to += static_cast<std::uint32_t>(unit.row_bytes);
    }
    wait_for_copies();
  }
  __device__ __forceinline__ const bf16* source(int first, int i, int token) const {
    const InputRows& rows = p.rows[unit.q->input];
    return rows.x + token * rows.x_stride + first + i * kUnitValues;
  }

  // Unit `i` of the segment as the problem multiplies it. All lanes of a warp call it; 16 have a block of 128 inputs.
  __device__ __forceinline__ void store(int i, int token, bool exists, uint4 values) const {
    if (unit.q->kind == TileKind::kFp8Products) {
      const EncodedInputs encoded = encode_block(values, kFullWarp);
      if (!exists) return;
      const int block = i / kUnitsPerScale;
      const int at = i % kUnitsPerScale;  // eight codes of the token's row of 128, whose 16-byte units are swizzled
      store_shared(unit.codes + static_cast<std::uint32_t>(block * kGemvCodeBytes + token * kScaleBlockInputs +
                                                           ((at / 2 ^ token) * 16 + at % 2 * 8)),
                   encoded.codes);
      if (at == 0) store_shared(unit.code_scales + (block * kGemvTokens + token) * 4, encoded.scale());
      return;
    }
    const uint4 rounded = p.rows[unit.q->input].rounds ? round_block(values, kFullWarp) : values;
    if (exists) store_shared(unit.place(i, token), rounded);
  }

  // The scale of every token's norm. A half-warp sums a row.
  __device__ __forceinline__ void sum_rows() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread / 32 * 2 >= p.tokens) return;
    const int width = unit.q->scale_blocks * kScaleBlockInputs;
    const int summed = thread / kSumChains;
    const int chain = thread % kSumChains;
    const std::uint32_t first = unit.rows + static_cast<std::uint32_t>(min(summed, p.tokens - 1) * unit.row_bytes +
                                                                       chain * static_cast<int>(sizeof(bf16)));
    const float sum = sum_in_chains(width, [&](int i) {
      const float value = load_shared_bf16(first + static_cast<std::uint32_t>(i - chain) * sizeof(bf16));
      return __fmul_rn(value, value);
    });
    if (chain == 0 && summed < p.tokens) store_shared(unit.norms + summed * 4, rms_scale(sum, width, p.norm.eps));
  }

  __device__ __forceinline__ uint4 norm_weight(int i) const {
    return __ldg(reinterpret_cast<const uint4*>(p.norm.weight) + unit.first_block * kUnitsPerScale + i);
  }
  // first_weight: that of the thread's first unit, loaded while the row comes.
  __device__ __forceinline__ uint4 normed(uint4 x, int i, int token, uint4 first_weight) const {
    const uint4 w = i < kWarpgroup ? first_weight : norm_weight(i);
    const float scale = load_shared_float(unit.norms + token * 4);
    return make_uint4(normalized_pair(x.x, scale, w.x), normalized_pair(x.y, scale, w.y),
                      normalized_pair(x.z, scale, w.z), normalized_pair(x.w, scale, w.w));
  }

  // Precondition: the kernels before have ended. All warps may read the inputs afterwards.
  //
  // Every line of code is here once: what a block runs of it is fetched by all multiprocessors at the same time, while
  // memory is busy with weights.
  __device__ __forceinline__ void bring() const {
    const int units = unit.blocks * kUnitsPerScale;
    const int first = first_value();
    const bool norms = this->norms();
    const bool codes = unit.q->kind == TileKind::kFp8Products;
    const bool staged = norms || !codes;  // without a norm no room is planned for values beside their codes
    uint4 first_weight{};
    if (norms) {
      first_weight = norm_weight(min(static_cast<int>(threadIdx.x), units - 1));
      copy(unit.q->scale_blocks * kUnitsPerScale);
      sync();
      sum_rows();
      sync();
    } else if (staged) {
      copy(units);
    }
    if (norms || codes || p.rows[unit.q->input].rounds) {
      for_units(units, [&](int i, int token, bool exists) {
        uint4 x{};
        if (exists) {  // without a norm what is staged is the thread's own copy
          x = staged ? load_shared_uint4(unit.place(i, token))
                     : *reinterpret_cast<const uint4*>(source(first, i, token));
          if (norms) x = normed(x, i, token, first_weight);
        }
        store(i, token, exists, x);
      });
    }
    if (codes) fence_async_proxy();  // the matrix instruction reads codes
    sync();
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
