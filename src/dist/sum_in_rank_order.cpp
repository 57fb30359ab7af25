#include "dist/sum_in_rank_order.h"

#include <cstring>

#include "base/bfloat16.h"

namespace dsv4rt {
namespace {

template <class T>
T read(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}
float as_float(float value) {
  return value;
}
float as_float(bf16 value) {
  return to_float(value);
}
void store(float value, float& to) {
  to = value;
}
void store(float value, bf16& to) {
  to = to_bf16(value);
}

template <class Term, class Sum>
void add(const std::byte* terms, std::size_t part_bytes, std::int32_t ranks, Sum* sum, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    float total = as_float(read<Term>(terms, i));
    for (std::int32_t rank = 1; rank < ranks; ++rank) {
      total += as_float(read<Term>(terms + static_cast<std::size_t>(rank) * part_bytes, i));
    }
    store(total, sum[i]);
  }
}

}  // namespace

void sum_in_rank_order(const std::byte* terms, std::size_t part_bytes, std::int32_t ranks, ElementType terms_type,
                       void* sum, ElementType sum_type, std::int64_t elements) {
  const bool wide = sum_type == ElementType::kF32;
  if (terms_type == ElementType::kF32) {
    wide ? add<float>(terms, part_bytes, ranks, static_cast<float*>(sum), elements)
         : add<float>(terms, part_bytes, ranks, static_cast<bf16*>(sum), elements);
  } else {
    wide ? add<bf16>(terms, part_bytes, ranks, static_cast<float*>(sum), elements)
         : add<bf16>(terms, part_bytes, ranks, static_cast<bf16*>(sum), elements);
  }
}

}  // namespace dsv4rt
