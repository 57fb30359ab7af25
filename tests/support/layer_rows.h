// Rows of hidden values for every loaded layer: what a test feeds and what it gets.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bfloat16.h"
#include "checkpoint/synthetic_values.h"
#include "dsv4rt/engine.h"

namespace dsv4rt::test {

// [layer][token * d + i], BF16 bits.
using LayerRows = std::vector<std::vector<Bf16Bits>>;

// Normally distributed rows; other seeds give unrelated rows.
inline LayerRows random_rows(std::uint64_t seed, std::int64_t layers, std::int64_t tokens, std::int64_t hidden) {
  const SyntheticStream stream(seed, "test rows");
  LayerRows rows(static_cast<std::size_t>(layers));
  std::uint64_t index = 0;
  for (auto& layer : rows) {
    layer.reserve(static_cast<std::size_t>(tokens * hidden));
    for (std::int64_t i = 0; i < tokens * hidden; ++i) layer.push_back(to_bf16(stream.normal(index++)).bits);
  }
  return rows;
}

// Rows [first, first + tokens) of every layer.
inline LayerRows slice_rows(const LayerRows& rows, std::int64_t first, std::int64_t tokens, std::int64_t hidden) {
  LayerRows slice;
  for (const auto& layer : rows) {
    slice.emplace_back(layer.begin() + first * hidden, layer.begin() + (first + tokens) * hidden);
  }
  return slice;
}

inline void append_rows(LayerRows& rows, const LayerRows& more) {
  if (rows.empty()) rows.resize(more.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].insert(rows[i].end(), more[i].begin(), more[i].end());
}

inline LayerRows join_rows(LayerRows first, const LayerRows& second) {
  append_rows(first, second);
  return first;
}

}  // namespace dsv4rt::test
