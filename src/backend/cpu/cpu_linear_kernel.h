// The linear kernel, written once over a vector type V of 16 FP32 lanes (one lane per output).
//
// Every output is one chain of fused multiply-adds over its inputs in the order 1, 0, 3, 2, 5, 4, ...,
// with subnormal inputs taken as zero and subnormal results flushed to zero: the arithmetic of the
// AVX512_BF16 instruction vdpbf16ps. No sum is ever split or added across lanes, so a result depends
// neither on the shape of the tile nor on the number of rows, and all instruction sets agree bit for
// bit. Fused FP32 operations are used instead of vdpbf16ps itself because they do the same work at
// twice the rate on processors that issue one vdpbf16ps every two cycles (Sapphire Rapids).
//
// Included by one translation unit per instruction set. Everything is in an unnamed namespace and no
// library function with a body is called: see cpu_linear_block.h.
//
// V offers: Reg, load, store, broadcast, fma, kMaxRows, kMaxAccumulators (Reg values that fit
// the register file beside the operands), FlushScope, and decode_{bf16,fp8,nvfp4}(block, group, k, depth,
// panel, stride), which write weight k + i of lane n, times its block scale, to panel[i * stride + n].
#pragma once

#include "backend/cpu/cpu_linear_block.h"

namespace dsv4rt::cpu {
namespace {

// c[r, :] += sum over k of a[r, k] * panel[k, :], for R rows and G groups.
template <class V, int R, int G>
void multiply_tile(const float* a, const float* panel, int depth, float* c, std::int64_t c_stride) {
  typename V::Reg sum[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) sum[r][g] = V::load(c + r * c_stride + g * kGroupOutputs);
  }
  for (int k = 0; k < depth; k += 2) {
#pragma GCC unroll 2
    for (int half = 1; half >= 0; --half) {
      const float* w = panel + (k + half) * (G * kGroupOutputs);
      typename V::Reg weight[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) weight[g] = V::load(w + g * kGroupOutputs);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto x = V::broadcast(a + r * kBlockDepth + k + half);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) sum[r][g] = V::fma(weight[g], x, sum[r][g]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) V::store(c + r * c_stride + g * kGroupOutputs, sum[r][g]);
  }
}

using TileFunction = void (*)(const float* a, const float* panel, int depth, float* c, std::int64_t c_stride);

// Tile functions for 1..kMaxRows rows and as many groups as the registers hold; null beyond.
template <class V>
struct TileTable {
  TileFunction functions[V::kMaxRows + 1][kMaxPanelGroups + 1] = {};

  constexpr TileTable() { fill_rows<1>(); }
  template <int R>
  constexpr void fill_rows() {
    fill_groups<R, 1>();
    if constexpr (R < V::kMaxRows) fill_rows<R + 1>();
  }
  template <int R, int G>
  constexpr void fill_groups() {
    if constexpr (R * G <= V::kMaxAccumulators) {
      functions[R][G] = &multiply_tile<V, R, G>;
      if constexpr (G < kMaxPanelGroups) fill_groups<R, G + 1>();
    }
  }
};

// Inputs [k, k + depth) of all rows, widened to FP32; zero past in_features.
[[gnu::noinline]] void widen_inputs(const LinearBlock& block, std::int64_t k, int depth) {
  const std::int64_t left = block.weight.in_features - k;
  const int present = left < depth ? static_cast<int>(left < 0 ? 0 : left) : depth;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::uint16_t* from = block.x + r * block.x_stride + k;
    float* to = block.inputs + r * kBlockDepth;
    for (int i = 0; i < present; ++i) {
      const std::uint32_t bits = std::uint32_t{from[i]} << 16;
      __builtin_memcpy(to + i, &bits, sizeof bits);
    }
    for (int i = present; i < depth; ++i) to[i] = 0.0F;
  }
}

template <class V>
void decode_panel(const LinearBlock& block, std::int64_t group, int groups, std::int64_t k, int depth) {
  const std::int64_t stride = std::int64_t{groups} * kGroupOutputs;
  for (int g = 0; g < groups; ++g) {
    float* panel = block.panel + g * kGroupOutputs;
    switch (block.weight.encoding) {
      case PackedEncoding::kBf16: V::decode_bf16(block, group + g, k, depth, panel, stride); break;
      case PackedEncoding::kFp8: V::decode_fp8(block, group + g, k, depth, panel, stride); break;
      case PackedEncoding::kNvfp4: V::decode_nvfp4(block, group + g, k, depth, panel, stride); break;
    }
  }
}

// The sums of `groups` groups from `group` on: all rows, all inputs.
template <class V>
[[gnu::noinline]] void accumulate(const LinearBlock& block, std::int64_t group, int groups) {
  static constexpr TileTable<V> kTiles;
  const int tile_rows = block.rows < V::kMaxRows ? static_cast<int>(block.rows) : V::kMaxRows;
  int panel_groups = V::kMaxAccumulators / tile_rows;
  panel_groups = panel_groups < kMaxPanelGroups ? panel_groups : kMaxPanelGroups;
  // A decoded panel must stay in the first-level cache beside the inputs of one tile.
  const int step = panel_groups > 4 ? kBlockDepth / 2 : kBlockDepth;
  const std::int64_t c_stride = std::int64_t{groups} * kGroupOutputs;

  const typename V::FlushScope flush;
  for (std::int64_t k = 0; k < block.weight.depth; k += step) {
    const std::int64_t left = block.weight.depth - k;
    const int depth = left < step ? static_cast<int>(left) : step;
    widen_inputs(block, k, depth);
    for (int g = 0; g < groups; g += panel_groups) {
      const int count = groups - g < panel_groups ? groups - g : panel_groups;
      decode_panel<V>(block, group + g, count, k, depth);
      for (std::int64_t r = 0; r < block.rows; r += tile_rows) {
        const std::int64_t rows = block.rows - r < tile_rows ? block.rows - r : tile_rows;
        kTiles.functions[rows][count](block.inputs + r * kBlockDepth, block.panel, depth,
                                      block.sums + r * c_stride + g * kGroupOutputs, c_stride);
      }
    }
  }
}

// Scales and rounds the sums into y. Every NaN becomes the same quiet NaN: which operand's payload
// survives a fused multiply-add is the compiler's choice.
[[gnu::noinline]] void write_outputs(const LinearBlock& block, std::int64_t group, int groups) {
  constexpr std::uint32_t kInfinityBits = 0x7f800000U;
  constexpr std::uint32_t kNanBits = 0x7fc00000U;
  const std::int64_t first = group * kGroupOutputs;
  const std::int64_t width = std::int64_t{groups} * kGroupOutputs;
  const std::int64_t left = block.weight.out_features - first;
  const std::int64_t count = left < width ? left : width;
  const float global_scale = block.weight.global_scale;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const float* sums = block.sums + r * width;
    if (block.y_is_float) {
      float* y = static_cast<float*>(block.y) + r * block.y_stride + first;
      for (std::int64_t n = 0; n < count; ++n) {
        const float value = sums[n] * global_scale;
        std::uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        bits = (bits & 0x7fffffffU) > kInfinityBits ? kNanBits : bits;
        __builtin_memcpy(y + n, &bits, sizeof bits);
      }
    } else {
      std::uint16_t* y = static_cast<std::uint16_t*>(block.y) + r * block.y_stride + first;
      for (std::int64_t n = 0; n < count; ++n) {
        const float value = sums[n] * global_scale;
        std::uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);  // to nearest, ties to even
        y[n] = static_cast<std::uint16_t>(((bits & 0x7fffffffU) > kInfinityBits ? kNanBits : rounded) >> 16);
      }
    }
  }
}

template <class V>
void linear_block(const LinearBlock& block) {
  const std::int64_t groups = block.group_end - block.group_begin;
  // Few rows: one panel at a time, so that the codes are read as few long streams.
  const int most = block.rows <= V::kMaxRows ? kMaxPanelGroups : kMaxBlockGroups;
  const std::int64_t parts = (groups + most - 1) / most;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = groups * part / parts;
    const int count = static_cast<int>(groups * (part + 1) / parts - begin);
    __builtin_memset(block.sums, 0,
                     static_cast<std::size_t>(block.rows * count * kGroupOutputs) * sizeof(float));
    accumulate<V>(block, block.group_begin + begin, count);
    write_outputs(block, block.group_begin + begin, count);
  }
}

}  // namespace
}  // namespace dsv4rt::cpu
