// The inputs of the gemv kernel, from global to shared memory by the warps that multiply: normed where the launch
// asks for it, rounded where the problem does.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
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

  // Unit `i` of a row from `rows` on, which is where its first unit of any token would lie.
  __device__ __forceinline__ std::uint32_t place(std::uint32_t rows, int i, int token) const {
    return rows + static_cast<std::uint32_t>(i * unit_tokens(p.tokens) + token) * kUnitBytes;
  }
  __device__ __forceinline__ static void sync() { asm volatile("bar.sync 1, 128;\n" ::: "memory"); }

  // work(unit, token, value) for `units` units of every token from value `first` of its row on; several are loaded at
  // a time. All lanes of a block of 128 inputs call it together.
  template <class Work>
  __device__ __forceinline__ void for_units(int first, int units, const Work& work) const {
    constexpr int kLoads = 4;
    const InputRows& rows = p.rows[unit.q->input];
    const int count = units * p.tokens;
    for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kLoads * kWarpgroup) {
      uint4 values[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int i = begin + k * kWarpgroup;
        if (i < count) {
          values[k] =
              *reinterpret_cast<const uint4*>(rows.x + i / units * rows.x_stride + first + i % units * kUnitValues);
        }
      }
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int i = begin + k * kWarpgroup;
        if (i < count) work(i % units, i / units, values[k]);
      }
    }
  }

  // Unit `i` of the segment as the problem multiplies it.
  __device__ __forceinline__ void store(int i, int token, uint4 values) const {
    if (unit.q->kind == TileKind::kFp8Products) {
      const EncodedInputs encoded = encode_block(values, block_members());
      const int block = i / kUnitsPerScale;
      const int at = i % kUnitsPerScale;  // eight codes of the token's row of 128, whose 16-byte units are swizzled
      store_shared(unit.codes + static_cast<std::uint32_t>(block * kGemvCodeBytes + token * kScaleBlockInputs +
                                                           ((at / 2 ^ token) * 16 + at % 2 * 8)),
                   encoded.codes);
      if (at == 0) store_shared(unit.code_scales + (block * kGemvTokens + token) * 4, encoded.scale());
      return;
    }
    const bool rounds = p.rows[unit.q->input].rounds;
    store_shared(place(unit.inputs, i, token), rounds ? round_block(values, block_members()) : values);
  }

  __device__ __forceinline__ void plain() const {
    for_units(unit.first_block * kScaleBlockInputs, unit.blocks * kUnitsPerScale,
              [&](int i, int token, uint4 values) { store(i, token, values); });
  }

  // The whole row to shared memory, its norm, and then the segment in place. A half-warp sums a row.
  __device__ __forceinline__ void normed() const {
    const std::uint32_t rows = unit.inputs - (place(unit.inputs, unit.first_block * kUnitsPerScale, 0) - unit.inputs);
    for_units(0, unit.q->scale_blocks * kUnitsPerScale,
              [&](int i, int token, uint4 values) { store_shared(place(rows, i, token), values); });
    sync();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread / 32 * 2 < p.tokens) {
      const int width = unit.q->scale_blocks * kScaleBlockInputs;
      const int summed = thread / kSumChains;
      const int chain = thread % kSumChains;
      const std::uint32_t first = place(rows, chain / kUnitValues, min(summed, p.tokens - 1)) +
                                  static_cast<std::uint32_t>(chain) % kUnitValues * 2;
      const std::uint32_t next = place(rows, kSumChains / kUnitValues, 0) - rows;
      const float sum = sum_in_chains(width, [&](int i) {
        const float value = load_shared_bf16(first + static_cast<std::uint32_t>(i / kSumChains) * next);
        return __fmul_rn(value, value);
      });
      if (chain == 0 && summed < p.tokens) store_shared(unit.norms + summed * 4, rms_scale(sum, width, p.norm.eps));
    }
    sync();
    const int units = unit.blocks * kUnitsPerScale;
    for (int at = thread; at < units * p.tokens; at += kWarpgroup) {
      const int i = at % units;
      const int token = at / units;
      const uint4 w = __ldg(reinterpret_cast<const uint4*>(p.norm.weight) + unit.first_block * kUnitsPerScale + i);
      const uint4 x = load_shared_uint4(place(unit.inputs, i, token));
      const float scale = load_shared_float(unit.norms + token * 4);
      const uint4 y = make_uint4(normalized_pair(x.x, scale, w.x), normalized_pair(x.y, scale, w.y),
                                 normalized_pair(x.z, scale, w.z), normalized_pair(x.w, scale, w.w));
      store(i, token, y);
    }
  }

  // Precondition: the kernels before have ended. All warps may read the inputs afterwards.
  __device__ __forceinline__ void bring() const {
    if (p.norm.weight != nullptr) {
      normed();
    } else {
      plain();
    }
    if (unit.q->kind == TileKind::kFp8Products) fence_async_proxy();  // the matrix instruction reads codes
    sync();
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
