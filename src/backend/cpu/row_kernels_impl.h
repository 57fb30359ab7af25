// The kernels of scores and weighted sums over one instruction set, and the whole set of RowKernels.
// Included by the translation unit of each instruction set.
#pragma once

#include "backend/attend_weights.h"
#include "backend/cpu/head_kernels_impl.h"
#include "backend/cpu/machine_lanes.h"
#include "backend/cpu/row_decoders_impl.h"

namespace dsv4rt::cpu {

template <class Machine>
struct RowKernelsOf : MachineLanes<Machine> {
  using Base = MachineLanes<Machine>;
  using Base::broadcast;
  using Base::kLanes;
  using Base::load;
  using Base::round_bf16;
  using Base::store;
  using typename Base::Bits;
  using typename Base::Float;
  using typename Base::Int;

  template <int kHeadVectors, int kRows>
  [[gnu::always_inline]] static void score_block(const float* columns, int padded, int dims, const float* rows,
                                                 int row_stride, float* scores) {
    Float sum[kRows][kHeadVectors] = {};
    for (int d = 0; d < dims; ++d) {
      Float column[kHeadVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kHeadVectors; ++v) column[v] = load(columns + std::int64_t{d} * padded + v * kLanes);
#pragma GCC unroll 32
      for (int r = 0; r < kRows; ++r) {
        const Float value = Machine::broadcast(rows + r * row_stride + d);
#pragma GCC unroll 8
        for (int v = 0; v < kHeadVectors; ++v) sum[r][v] = Machine::multiply_add(value, column[v], sum[r][v]);
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kHeadVectors; ++v) store(scores + r * padded + v * kLanes, sum[r][v]);
    }
  }

  static void scores(const float* columns, int padded, int dims, const float* rows, int row_stride, int row_count,
                     float* out) {
    constexpr int kWide = Machine::kWideHeadVectors * kLanes;
    static_assert(kTileRows % Machine::kWideRows == 0 && kTileRows % Machine::kNarrowRows == 0);
    int head = 0;
    for (; head + kWide <= padded; head += kWide) {
      for (int r = 0; r < row_count; r += Machine::kWideRows) {
        score_block<Machine::kWideHeadVectors, Machine::kWideRows>(columns + head, padded, dims, rows + r * row_stride,
                                                                   row_stride, out + r * padded + head);
      }
    }
    for (; head < padded; head += kHeadLanes) {
      for (int r = 0; r < row_count; r += Machine::kNarrowRows) {
        score_block<kHeadLanes / kLanes, Machine::kNarrowRows>(columns + head, padded, dims, rows + r * row_stride,
                                                               row_stride, out + r * padded + head);
      }
    }
  }

  // What weights are relative to (attend_weights.h): m is `largest` + `rest`.
  struct WeightReference {
    static constexpr float kLog2E = 0x1.715476p+0f;
    static constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits: products with integers of nine bits are exact
    static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
    static constexpr float kRoundMagic = 0x1.8p23f;  // adding it rounds to an integer

    // `score` is the greatest of all rows.
    [[gnu::always_inline]] void relate_to_power(Float score) {
      const Float power = (score * kLog2E + kRoundMagic) - kRoundMagic;
      largest = power * kLn2High;
      rest = power * kLn2Low;
    }
    [[gnu::always_inline]] void relate_to_window(Float window_score, Float score) {
      largest = window_score;
      shift = shift_of(score);
    }

    [[nodiscard]] bool is_shifted() const {
      for (int lane = 0; lane < kLanes; ++lane) {
        if (shift[lane] != 0.0f) return true;
      }
      return false;
    }
    [[nodiscard]] [[gnu::always_inline]] Float unshifted_weight(Float score) const {
      return exp_lanes<kLanes>((score - largest) - rest);
    }
    // Not rounded; lanes without a shift get the bits of unshifted_weight() of what it can represent.
    [[nodiscard]] [[gnu::always_inline]] Float weight(Float score) const {
      const Float own = shift_of(score);
      const Float p = exp_lanes<kLanes>((((score - largest) - own * kLn2High) - rest) - own * kLn2Low);
      return p * power_of_two(own - shift);
    }

    Float largest{};
    Float rest{};
    Float shift{};  // 64 j

   private:
    // 64 j(x) of the score's x.
    [[nodiscard]] [[gnu::always_inline]] Float shift_of(Float score) const {
      const Float x = (score - largest) * kLog2E;
      const Float count = (x - kUnshiftedExponent) / kExponentShift;
      Float whole = (count + kRoundMagic) - kRoundMagic;
      whole = whole < count ? whole + 1.0f : whole;
      whole = count < kRoundMagic ? whole : count;  // such a count is an integer already
      return x > kUnshiftedExponent ? whole * kExponentShift : Float{};
    }
    // Of integers; zero below 2^-126, infinity above 2^127.
    [[nodiscard]] [[gnu::always_inline]] static Float power_of_two(Float exponent) {
      exponent = exponent > -127.0f ? exponent : Float{} - 127.0f;
      exponent = exponent < 128.0f ? exponent : Float{} + 128.0f;
      return (Float)(((Bits)(exponent + kRoundMagic) - (Bits)(Float{} + kRoundMagic) + 127u) << 23);
    }
  };

  // Scales the scores of kLanes heads and finds what their weights are relative to.
  static WeightReference scale_scores(float* column, int count, int window, int padded, float scale, bool by_power) {
    Float window_largest{};
    Float largest = broadcast(-__builtin_inff());
    for (int r = 0; r < count; ++r) {
      const Float s = load(column + std::int64_t{r} * padded) * scale;
      store(column + std::int64_t{r} * padded, s);
      largest = s > largest ? s : largest;
      if (r == window - 1) window_largest = largest;
    }
    WeightReference reference;
    if (by_power) {
      reference.relate_to_power(largest);
    } else {
      reference.relate_to_window(window_largest, largest);
    }
    return reference;
  }

  static void softmax(float* scores, int count, int window, int padded, float scale, bool by_power, const float* sink,
                      float* denominator) {
    for (int head = 0; head < padded; head += kLanes) {
      float* column = scores + head;
      const WeightReference reference = scale_scores(column, count, window, padded, scale, by_power);
      Float sum{};
      if (reference.is_shifted()) {
        for (int r = 0; r < count; ++r) {
          const Float p = reference.weight(load(column + std::int64_t{r} * padded));
          sum += p;
          store(column + std::int64_t{r} * padded, round_bf16(p));
        }
      } else {
        for (int r = 0; r < count; ++r) {
          const Float p = reference.unshifted_weight(load(column + std::int64_t{r} * padded));
          sum += p;
          store(column + std::int64_t{r} * padded, round_bf16(p));
        }
      }
      store(denominator + head, sum + reference.weight(load(sink + head)));
    }
  }

  template <int kHeads, int kVectors>
  [[gnu::always_inline]] static void accumulate_block(const float* p, int padded, const float* rows, int row_stride,
                                                      int row_count, float* sums) {
    Float sum[kHeads][kVectors];
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[h][v] = load(sums + h * kHeadDim + v * kLanes);
    }
    for (int r = 0; r < row_count; ++r) {
      Float value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = load(rows + r * row_stride + v * kLanes);
#pragma GCC unroll 16
      for (int h = 0; h < kHeads; ++h) {
        const Float weight = Machine::broadcast(p + r * padded + h);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[h][v] = Machine::multiply_add(weight, value[v], sum[h][v]);
      }
    }
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store(sums + h * kHeadDim + v * kLanes, sum[h][v]);
    }
  }

  static void accumulate(const float* p, int padded, const float* rows, int row_stride, int row_count, float* sums) {
    constexpr int kHeads = Machine::kSumHeads;
    constexpr int kVectors = Machine::kSumVectors;
    static_assert(kHeadLanes % kHeads == 0 && kHeadDim % (kVectors * kLanes) == 0);
    for (int d = 0; d < kHeadDim; d += kVectors * kLanes) {
      for (int head = 0; head < padded; head += kHeads) {
        accumulate_block<kHeads, kVectors>(p + head, padded, rows + d, row_stride, row_count,
                                           sums + head * kHeadDim + d);
      }
    }
  }

  static void finish(const float* sums, const float* denominator, int heads, bf16* out) {
    for (int h = 0; h < heads; ++h) {
      const Float divisor = broadcast(denominator[h]);
      for (int d = 0; d < kHeadDim; d += kLanes) {
        const Int bits = (Int)round_bf16(load(sums + h * kHeadDim + d) / divisor);
        for (int lane = 0; lane < kLanes; ++lane) {
          out[h * kHeadDim + d + lane].bits = static_cast<std::uint16_t>(static_cast<std::uint32_t>(bits[lane]) >> 16);
        }
      }
    }
  }

  static void index_sum(const float* scores, int padded, int heads, int row_count, const float* weight, float* out) {
    constexpr int kParts = kHeadLanes / kLanes;
    Int real[kParts];  // lanes of the last group that are heads: all bits set
    const int tail = heads - (padded - kHeadLanes);
    for (int part = 0; part < kParts; ++part) {
      for (int lane = 0; lane < kLanes; ++lane) real[part][lane] = part * kLanes + lane < tail ? -1 : 0;
    }
    for (int r = 0; r < row_count; ++r) {
      const float* row = scores + r * padded;
      Float sum[kParts] = {};
      for (int head = 0; head < padded; head += kHeadLanes) {
        for (int part = 0; part < kParts; ++part) {
          const Float s = load(row + head + part * kLanes);
          const Float positive = s < 0.0f ? Float{} : s;  // keeps NaN
          Float term = positive * load(weight + head + part * kLanes);
          if (head + kHeadLanes == padded) term = (Float)((Int)term & real[part]);
          sum[part] += term;
        }
      }
      float lanes[kHeadLanes];
      std::memcpy(lanes, sum, sizeof(lanes));
      for (int width = kHeadLanes / 2; width > 0; width /= 2) {
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
      }
      out[r] = lanes[0];
    }
  }

  static void heads_to_lanes(const bf16* x, int heads, int dims, int padded, float* columns) {
    for (int head = 0; head < padded; head += kHeadLanes) {
      const int group = heads - head < kHeadLanes ? heads - head : kHeadLanes;
      if (group == kHeadLanes) {
        Machine::transpose_heads(x + std::int64_t{head} * dims, dims, padded, columns + head);
        continue;
      }
      for (int d = 0; d < dims; ++d) {
        float* column = columns + std::int64_t{d} * padded + head;
        for (int h = 0; h < kHeadLanes; ++h) {
          const std::uint32_t bits = h < group ? x[std::int64_t{head + h} * dims + d].bits : 0u;
          column[h] = __builtin_bit_cast(float, bits << 16);
        }
      }
    }
  }

  static constexpr RowKernels table() {
    return {.decode_row = RowDecodersOf<Machine>::decode_row,
            .decode_key = RowDecodersOf<Machine>::decode_key,
            .heads_to_lanes = heads_to_lanes,
            .scores = scores,
            .softmax = softmax,
            .accumulate = accumulate,
            .finish = finish,
            .index_sum = index_sum,
            .normalize_head = HeadKernelsOf<Machine>::normalize_head,
            .hadamard_bf16 = HeadKernelsOf<Machine>::hadamard_bf16,
            .round_mxfp4 = HeadKernelsOf<Machine>::round_mxfp4};
  }
};

}  // namespace dsv4rt::cpu
