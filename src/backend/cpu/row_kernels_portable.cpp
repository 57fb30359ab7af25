// Row kernels in plain C++ with four-lane vectors, which every target lowers to what it has.
#include "backend/cpu/row_kernels_impl.h"

namespace dsv4rt::cpu {
namespace {

struct PortableMachine {
  static constexpr int kLanes = 4;
  static constexpr bool kDecodes = false;
  static constexpr int kWideHeadVectors = 4;
  static constexpr int kWideRows = 2;
  static constexpr int kNarrowRows = 2;
  static constexpr int kSumHeads = 4;
  static constexpr int kSumVectors = 2;
  using Float = LanesOf<kLanes>::Float;

  [[gnu::always_inline]] static Float load(const float* from) {
    Float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  [[gnu::always_inline]] static void store(float* to, Float value) { std::memcpy(to, &value, sizeof(value)); }
  [[gnu::always_inline]] static Float broadcast(const float* from) { return Float{} + *from; }
  [[gnu::always_inline]] static Float multiply_add(Float a, Float b, Float c) { return a * b + c; }

  static void transpose_heads(const bf16* x, int dims, int padded, float* columns) {
    for (int d = 0; d < dims; ++d) {
      float* column = columns + std::int64_t{d} * padded;
      for (int h = 0; h < kHeadLanes; ++h) column[h] = to_float(x[std::int64_t{h} * dims + d]);
    }
  }
};

constexpr RowKernels kKernels = RowKernelsOf<PortableMachine>::table();

}  // namespace

const RowKernels* portable_row_kernels() {
  return &kKernels;
}

}  // namespace dsv4rt::cpu
