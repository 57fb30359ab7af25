// Sums of 256 values, a half, of 64 heads by a warpgroup: their products, and a warp's way out with them, of a block
// alone through the copy engine (stage_outputs, stage_encoded_block), of a pair's block by its own stores
// (write_half_outputs, write_encoded_half).
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/encoded_outputs.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/tile_scores.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kHalfValues = kHeadDim / 2;
inline constexpr int kHalfAtoms = kAtoms / 2;
inline constexpr int kHalfParts = 2;  // products that sum them
// A thread's sums, as wgmma leaves them: of two heads, eight apart.
using HalfSums = float[kHalfParts][kHalfValues / kHalfParts / 2];

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void hold_half_sums(HalfSums& sums) {
#pragma unroll
  for (auto& part : sums) wgmma_hold(part);
}

// Starts the products of a tile's values: product(part, i, values) for each of these parts and each 16 rows. `values`:
// atom_word() of the half's atoms.
template <class Product>
__device__ inline void start_half_products(HalfSums& sums, std::uint32_t values, const Product& product) {
  constexpr int kPartBytes = kHalfValues / kHalfParts / kAtomValues * kAtomBytes;
  hold_half_sums(sums);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTileRows / 16; ++i) {
#pragma unroll
    for (int part = 0; part < kHalfParts; ++part) {
      product(part, i, atom_descriptor(values + (i * 16 * kAtomRowBytes + part * kPartBytes) / 16));
    }
  }
  wgmma_commit();
}
using HalfProduct = Wgmma<kHalfValues / kHalfParts>;

// With weights in shared memory, `weights`: atom_word() of an atom whose rows are heads.
__device__ inline void start_half_products(HalfSums& sums, std::uint32_t weights, std::uint32_t values) {
  start_half_products(sums, values, [&](int part, int i, std::uint64_t rows) {
    HalfProduct::bf16<1>(sums[part], atom_descriptor(weights + i * 32 / 16), rows, true);
  });
}
// And with the warps' own; wgmma_hold() comes behind the wait for the products.
__device__ inline void start_half_products(HalfSums& sums, WeightWords& weights, std::uint32_t values) {
  wgmma_hold(weights);
  start_half_products(sums, values, [&](int part, int i, std::uint64_t rows) {
    HalfProduct::bf16_registers<1>(sums[part], weights[i], rows, true);
  });
}

#endif

// Sums of the half's atom `atom` times the heads' factors, rounded, and turned if `turned`, to 16 rows of an atom in
// shared memory. `to`: fragment_address() of the warp's first head.
__device__ inline void stage_outputs(const HalfSums& sums, const float (&factor)[2], int atom, bool turned,
                                     const Rotation* rotation, std::uint32_t to, int lane) {
  constexpr int kPartTiles = kHalfValues / kHalfParts / 8;
  constexpr int kUnits = kAtomValues / kUnitValues;
#pragma unroll
  for (int unit = 0; unit < kUnits; unit += 2) {
    std::uint32_t pairs[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = atom * kUnits + unit + i / 2;
      const float* pair = &sums[tile / kPartTiles][tile % kPartTiles * 4 + i % 2 * 2];
      std::uint32_t& values = pairs[i / 2][i % 2];
      values = round_pair(pair[0] * factor[i % 2], pair[1] * factor[i % 2]);
      if (turned) {
        float even = low_value(values);
        float odd = high_value(values);
        rotate_pair(rotation[(unit + i / 2) * 4 + lane % 4], even, odd);
        values = round_pair(even, odd);
      }
    }
    store_fragments(to ^ (unit * kUnitBytes), pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]);
  }
}

// Sums of a block of 128 values times the heads' factors, rounded, and the last 64 of them turned if `turned`.
__device__ __forceinline__ void round_block(const float (&sums)[kHalfValues / kHalfParts / 2], const float (&factor)[2],
                                            bool turned, const Rotation* rotation, int lane, BlockPairs& pairs) {
  constexpr int kTurned = (static_cast<int>(kEncodedBlockValues) - kRopeDim) / 8;  // tiles before those
  static_assert(kHalfValues / kHalfParts == kEncodedBlockValues);
#pragma unroll
  for (int tile = 0; tile < kBlockTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* pair = &sums[tile * 4 + i * 2];
      std::uint32_t& values = pairs[i][tile];
      values = round_pair(pair[0] * factor[i], pair[1] * factor[i]);
      if (tile >= kTurned && turned) {
        float even = low_value(values);
        float odd = high_value(values);
        rotate_pair(rotation[(tile - kTurned) * 4 + lane % 4], even, odd);
        values = round_pair(even, odd);
      }
    }
  }
}
// A block of the half, encoded, to 16 rows of an atom in shared memory, and its scales out. `half`: which of the two;
// `head`: the warp's first one, of `heads` of the token; `to`: code_address() of it.
__device__ __forceinline__ void stage_encoded_block(const EncodedRows& rows, int heads, std::int64_t token, int head,
                                                    int half, int part, const HalfSums& sums, const float (&factor)[2],
                                                    bool turns, const Rotation* rotation, std::uint32_t to, int lane) {
  BlockPairs pairs;
  round_block(sums[part], factor, turns && half == 1 && part == kHalfParts - 1, rotation, lane, pairs);
  const BlockScales scales(pairs);
  stage_codes(pairs, scales, to);
  store_scales(rows, heads, token, head + lane / 4, half * kHalfParts + part, scales, lane);
}

inline constexpr int kStagedOutputBytes = 16 * kAtomRowBytes;  // 16 heads x 64 values or 128 codes

// Times the heads' factors, rounded, turned, and out through `staged`, kStagedOutputBytes of this warp. `out`: the
// first of the values of the warp's first head, of which `heads` exist. `rotation`: of the last 64 values, if `turns`,
// which says that these are among them. `lane`: of this thread.
__device__ inline void write_half_outputs(const HalfSums& sums, const float (&factor)[2], std::byte* staged, bf16* out,
                                          int heads, bool turns, const Rotation* rotation, int lane) {
  constexpr int kPartTiles = kHalfValues / kHalfParts / 8;
#pragma unroll
  for (int atom = 0; atom < kHalfValues / kAtomValues; ++atom) {
    const bool turned = turns && atom == kHalfValues / kAtomValues - 1;
#pragma unroll
    for (int unit = 0; unit < kAtomValues / kUnitValues; ++unit) {
      const int i = atom * kAtomValues / kUnitValues + unit;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = &sums[i / kPartTiles][i % kPartTiles * 4 + 2 * half];
        std::uint32_t values = round_pair(pair[0] * factor[half], pair[1] * factor[half]);
        if (turned) {
          float even = low_value(values);
          float odd = high_value(values);
          rotate_pair(rotation[unit * 4 + lane % 4], even, odd);
          values = round_pair(even, odd);
        }
        *reinterpret_cast<std::uint32_t*>(staged + atom_offset(half * 8 + lane / 4, unit) + lane % 4 * 4) = values;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8;
      if (row < heads) {
        bf16* to = out + row * kHeadDim + atom * kAtomValues;
        reinterpret_cast<uint4*>(to)[lane % 8] = *reinterpret_cast<const uint4*>(staged + atom_offset(row, lane % 8));
      }
    }
    __syncwarp();
  }
}

// The same, encoded, a block at a time. `half`: which of the two; `head`: the warp's first one, of `heads` of the
// token.
__device__ __forceinline__ void write_encoded_half(const EncodedRows& rows, int heads, std::int64_t token, int head,
                                                   int half, const HalfSums& sums, const float (&factor)[2],
                                                   std::byte* staged, bool turns, const Rotation* rotation, int lane) {
  const std::uint32_t to = static_cast<std::uint32_t>(__cvta_generic_to_shared(staged));
#pragma unroll
  for (int part = 0; part < kHalfParts; ++part) {
    stage_encoded_block(rows, heads, token, head, half, part, sums, factor, turns, rotation, code_address(to, 0, lane),
                        lane);
    __syncwarp();
    std::uint8_t* out =
        rows.codes + (token * heads + head) * kHeadDim + (half * kHalfParts + part) * kEncodedBlockValues;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8;
      if (head + row < heads) {
        reinterpret_cast<uint4*>(out + row * kHeadDim)[lane % 8] =
            *reinterpret_cast<const uint4*>(staged + atom_offset(row, lane % 8));
      }
    }
    __syncwarp();
  }
}

}  // namespace dsv4rt::cuda
