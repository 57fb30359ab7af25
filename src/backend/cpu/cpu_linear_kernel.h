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
// V offers: Reg, load, store, broadcast, fma, FlushScope, kMaxRows, kMaxAccumulators (Reg values that fit the
// register file beside the operands), kMaxDirectAccumulators (the same beside a decoder; 0: never) and the
// decoders Bf16, Fp8 and Nvfp4. A decoder stands at a group and an input k; decode(line, g, weight) gives the
// kInputs weights of each lane, block scale included, that lie in 64-byte line `line` of the g-th group from
// there. Groups of one Fp8 decoder share their scale.
#pragma once

#include "backend/cpu/cpu_linear_block.h"

namespace dsv4rt::cpu {
namespace {

constexpr int kLineBytes = 64;

// R x G vectors of sums that stay in registers during a tile.
template <class V, int R, int G>
struct Sums {
  typename V::Reg value[R][G];

  void load(const float* c, std::int64_t c_stride) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) value[r][g] = V::load(c + r * c_stride + g * kGroupOutputs);
    }
  }
  void store(float* c, std::int64_t c_stride) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) V::store(c + r * c_stride + g * kGroupOutputs, value[r][g]);
    }
  }
};

// c[r, :] += sum over k of a[r, k] * panel[k, :], for R rows and G groups.
template <class V, int R, int G>
void multiply_panel(const float* a, const float* panel, int depth, float* c, std::int64_t c_stride) {
  Sums<V, R, G> sums;
  sums.load(c, c_stride);
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
        for (int g = 0; g < G; ++g) sums.value[r][g] = V::fma(weight[g], x, sums.value[r][g]);
      }
    }
  }
  sums.store(c, c_stride);
}

// The same straight from the codes of the groups from `group` on, inputs [k, k + depth).
template <class V, class Decoder, int R, int G>
void multiply_codes(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* c,
                    std::int64_t c_stride) {
  const Decoder decoder(block, group, k);
  const float* a = block.inputs;
  Sums<V, R, G> sums;
  sums.load(c, c_stride);
  for (int line = 0; line < depth / Decoder::kInputs; ++line, a += Decoder::kInputs) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      typename V::Reg weight[Decoder::kInputs];
      decoder.decode(line, g, weight);
#pragma GCC unroll 8
      for (int i = 0; i < Decoder::kInputs; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          sums.value[r][g] = V::fma(weight[i ^ 1], V::broadcast(a + r * kBlockDepth + (i ^ 1)), sums.value[r][g]);
        }
      }
    }
  }
  sums.store(c, c_stride);
}

using PanelFunction = void (*)(const float* a, const float* panel, int depth, float* c, std::int64_t c_stride);
using CodesFunction = void (*)(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* c,
                               std::int64_t c_stride);

// Instances by rows and groups, for 1..kMaxRows rows and as many groups as the registers hold; null beyond.
template <class V, class Decoder>
struct TileTable {
  PanelFunction panel[V::kMaxRows + 1][kMaxPanelGroups + 1] = {};
  CodesFunction codes[V::kMaxRows + 1][kMaxPanelGroups + 1] = {};

  constexpr TileTable() { fill_rows<1>(); }
  template <int R>
  constexpr void fill_rows() {
    fill_groups<R, 1>();
    if constexpr (R < V::kMaxRows) fill_rows<R + 1>();
  }
  template <int R, int G>
  constexpr void fill_groups() {
    if constexpr (R * G <= V::kMaxAccumulators) panel[R][G] = &multiply_panel<V, R, G>;
    if constexpr (R * G <= V::kMaxDirectAccumulators && G <= kMaxDirectGroups) {
      codes[R][G] = &multiply_codes<V, Decoder, R, G>;
    }
    if constexpr (G < kMaxPanelGroups) fill_groups<R, G + 1>();
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

// Weights of `groups` groups, inputs [k, k + depth), to block.panel as [depth][groups][16].
template <class V, class Decoder>
void decode_panel(const LinearBlock& block, std::int64_t group, int groups, std::int64_t k, int depth) {
  const std::int64_t stride = std::int64_t{groups} * kGroupOutputs;
  for (int g = 0; g < groups; ++g) {
    const Decoder decoder(block, group + g, k);
    float* to = block.panel + g * kGroupOutputs;
    for (int line = 0; line < depth / Decoder::kInputs; ++line) {
      typename V::Reg weight[Decoder::kInputs];
      decoder.decode(line, 0, weight);
#pragma GCC unroll 8
      for (int i = 0; i < Decoder::kInputs; ++i, to += stride) V::store(to, weight[i]);
    }
  }
}

bool share_scale(const PackedView& weight, std::int64_t group, int groups, std::int64_t k) {
  if (weight.encoding != PackedEncoding::kFp8) return true;
  const std::uint8_t* scale = weight.scales + group * weight.scale_columns + k / kBlockDepth;
  bool same = true;
  for (int g = 1; g < groups; ++g) same = same && scale[g * weight.scale_columns] == scale[0];
  return same;
}

// The sums of `groups` groups from `group` on: all rows, all inputs. Few rows are multiplied straight
// from the codes; otherwise a panel of decoded weights serves all rows.
template <class V, class Decoder>
[[gnu::noinline]] void accumulate(const LinearBlock& block, std::int64_t group, int groups) {
  static constexpr TileTable<V, Decoder> kTiles;
  const int tile_rows = block.rows < V::kMaxRows ? static_cast<int>(block.rows) : V::kMaxRows;
  int direct_groups = block.rows <= V::kMaxRows ? V::kMaxDirectAccumulators / tile_rows : 0;
  direct_groups = direct_groups < kMaxDirectGroups ? direct_groups : kMaxDirectGroups;
  int panel_groups = V::kMaxAccumulators / tile_rows;
  panel_groups = panel_groups < kMaxPanelGroups ? panel_groups : kMaxPanelGroups;
  const int tile_groups = direct_groups != 0 ? direct_groups : panel_groups;
  const std::int64_t c_stride = std::int64_t{groups} * kGroupOutputs;

  const typename V::FlushScope flush;
  for (std::int64_t k = 0; k < block.weight.depth; k += kBlockDepth) {
    const std::int64_t left = block.weight.depth - k;
    const int depth = left < kBlockDepth ? static_cast<int>(left) : kBlockDepth;
    widen_inputs(block, k, depth);
    for (int g = 0; g < groups; g += tile_groups) {
      const int count = groups - g < tile_groups ? groups - g : tile_groups;
      float* sums = block.sums + g * kGroupOutputs;
      if (direct_groups != 0 && share_scale(block.weight, group + g, count, k)) {
        kTiles.codes[tile_rows][count](block, group + g, k, depth, sums, c_stride);
        continue;
      }
      decode_panel<V, Decoder>(block, group + g, count, k, depth);
      for (std::int64_t r = 0; r < block.rows; r += tile_rows) {
        const std::int64_t rows = block.rows - r < tile_rows ? block.rows - r : tile_rows;
        kTiles.panel[rows][count](block.inputs + r * kBlockDepth, block.panel, depth, sums + r * c_stride, c_stride);
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
        const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);  // rounded to nearest, ties to even
        y[n] = static_cast<std::uint16_t>(((bits & 0x7fffffffU) > kInfinityBits ? kNanBits : rounded) >> 16);
      }
    }
  }
}

template <class V>
void linear_block(const LinearBlock& block) {
  const std::int64_t groups = block.group_end - block.group_begin;
  // Few rows: few groups at a time, so that the codes are read as few long streams.
  const int most = block.rows <= V::kMaxRows ? kMaxPanelGroups : kMaxBlockGroups;
  const std::int64_t parts = (groups + most - 1) / most;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = groups * part / parts;
    const int count = static_cast<int>(groups * (part + 1) / parts - begin);
    __builtin_memset(block.sums, 0, static_cast<std::size_t>(block.rows * count * kGroupOutputs) * sizeof(float));
    switch (block.weight.encoding) {
      case PackedEncoding::kBf16:
        accumulate<V, typename V::Bf16>(block, block.group_begin + begin, count);
        break;
      case PackedEncoding::kFp8:
        accumulate<V, typename V::Fp8>(block, block.group_begin + begin, count);
        break;
      case PackedEncoding::kNvfp4:
        accumulate<V, typename V::Nvfp4>(block, block.group_begin + begin, count);
        break;
    }
    write_outputs(block, block.group_begin + begin, count);
  }
}

}  // namespace
}  // namespace dsv4rt::cpu
