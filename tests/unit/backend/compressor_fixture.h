// A compressor with its inputs, state rings and paged rows, for the tests of compress and state_store.
#pragma once

#include <algorithm>

#include <gtest/gtest.h>

#include "unit/backend/ops_fixture.h"

namespace dsv4rt::test {

struct CompressorKind {
  const char* name;
  int ratio;
  bool overlap;
  int dim;
  int ring_rows;
};
inline constexpr CompressorKind kMainOverlap{"overlap, 512 wide", 4, true, kHeadDim, 8};
inline constexpr CompressorKind kIndexOverlap{"overlap, index keys", 4, true, kIndexHeadDim, 8};
inline constexpr CompressorKind kPlain{"plain", 128, false, kHeadDim, 128};

// Slots 0..2; the sequence under test lives in slot 1, its rows in blocks 5, 2, 7, ...: out of order.
class CompressorSetup {
 public:
  static constexpr int kBlockRows = 3;
  static constexpr int kBlocksPerSequence = 8;

  CompressorSetup(const CompressorKind& kind, int positions, int threads = 2)
      : kind_(kind), ops_(threads), positions(positions) {
    const auto rows = static_cast<std::size_t>(positions);
    kv = random_floats(31, rows * width());
    score = random_floats(32, rows * width(), 2.0f);
    ape = random_floats(33, static_cast<std::size_t>(kind.ratio) * width());
    norm = random_bf16(34, static_cast<std::size_t>(kind.dim));
    frequencies = test_frequencies(160000.0);
    for (int i = 0; i < 3 * kBlocksPerSequence; ++i) table.push_back(1 + i * 7 % (3 * kBlocksPerSequence));
    ring = poisoned(static_cast<std::size_t>(3 * slot_bytes()), 35);
    reset();
  }

  [[nodiscard]] std::size_t width() const { return static_cast<std::size_t>(kind_.dim * (kind_.overlap ? 2 : 1)); }
  [[nodiscard]] bool is_key() const { return kind_.dim == kIndexHeadDim; }
  [[nodiscard]] std::int64_t slot_bytes() const {
    return static_cast<std::int64_t>(2 * width() * sizeof(float)) * kind_.ring_rows + 64;
  }
  [[nodiscard]] BlockShape shape() const {
    return is_key() ? block_shape(key_format, kBlockRows) : block_shape(row_format, kBlockRows);
  }
  void use_bf16() {
    row_format = RowFormat::kBf16;
    key_format = IndexKeyFormat::kBf16;
    reset();
  }
  // A fresh poisoned pool for the current format.
  void reset() { pool = poisoned(static_cast<std::size_t>((3 * kBlocksPerSequence + 1) * shape().block_bytes), 36); }

  // Compresses and stores the sequence's next chunks, from position `start`.
  void feed(const std::vector<int>& chunks, int start = 0) {
    for (const int chunk : chunks) {
      const TestStep step({{slot, start, chunk}}, 1, {kind_.ratio});
      run_rows(step, 0, start);
      start += chunk;
    }
  }
  // Runs both operations over `step`, whose row `first_row` carries position `first_position` of the
  // sequence under test; the rows of neighbours and padding are filled with other data.
  void run_rows(const TestStep& step, int first_row, int first_position = 0) {
    const auto rows = static_cast<std::size_t>(step.tokens());
    prepare(step);
    const auto count =
        std::min(rows - static_cast<std::size_t>(first_row), static_cast<std::size_t>(positions - first_position));
    const auto at = static_cast<std::size_t>(first_row) * width();
    const auto from = static_cast<std::size_t>(first_position) * width();
    std::copy_n(kv.begin() + static_cast<std::ptrdiff_t>(from), count * width(),
                step_kv_.begin() + static_cast<std::ptrdiff_t>(at));
    std::copy_n(score.begin() + static_cast<std::ptrdiff_t>(from), count * width(),
                step_score_.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_TRUE(ops_->compress(params(step)).ok());
    ASSERT_TRUE(ops_->state_store({.step = step.view(), .input = input(), .state = state()}).ok());
  }
  void compress(const TestStep& step) {
    prepare(step);
    ASSERT_TRUE(ops_->compress(params(step)).ok());
  }
  void store(const TestStep& step) {
    prepare(step);
    ASSERT_TRUE(ops_->state_store({.step = step.view(), .input = input(), .state = state()}).ok());
  }

  [[nodiscard]] std::int64_t block_of(int row) const {
    return table[static_cast<std::size_t>(slot * kBlocksPerSequence + row / kBlockRows)] * shape().block_bytes;
  }
  [[nodiscard]] std::vector<float> decoded_row(int row) const {
    std::vector<float> values(static_cast<std::size_t>(kind_.dim));
    const std::byte* block = pool.data() + block_of(row);
    if (is_key()) {
      decode_row(key_format, shape(), block, row % kBlockRows, values.data());
    } else {
      decode_row(row_format, shape(), block, row % kBlockRows, values.data());
    }
    return values;
  }
  void encode_into(std::vector<std::byte>& target, int row, const float* values) const {
    std::byte* block = target.data() + block_of(row);
    if (is_key()) {
      encode_row(key_format, shape(), values, block, row % kBlockRows);
    } else {
      encode_row(row_format, shape(), values, block, row % kBlockRows);
    }
  }
  void copy_row_bytes(const std::vector<std::byte>& from, std::vector<std::byte>& to, int row) const {
    const BlockShape s = shape();
    const std::int64_t data = block_of(row) + s.data_offset(row % kBlockRows);
    const std::int64_t scale = block_of(row) + s.scale_offset(row % kBlockRows);
    std::memcpy(to.data() + data, from.data() + data, static_cast<std::size_t>(s.data_bytes));
    std::memcpy(to.data() + scale, from.data() + scale, static_cast<std::size_t>(s.scale_bytes));
  }
  [[nodiscard]] std::vector<std::byte> slot_ring(int which) const {
    return {ring.begin() + which * slot_bytes(), ring.begin() + (which + 1) * slot_bytes() - 64};
  }

  // The row in double with roundings only where the model has them.
  [[nodiscard]] std::vector<double> reference_row(int row) const {
    const auto dim = static_cast<std::size_t>(kind_.dim);
    std::vector<double> values(dim);
    for (std::size_t i = 0; i < dim; ++i) {
      test::ReferencePool pooled;
      const int first = kind_.overlap && row > 0 ? (row - 1) * kind_.ratio : row * kind_.ratio;
      for (int p = first; p < (row + 1) * kind_.ratio; ++p) {
        const std::size_t column = kind_.overlap && p >= row * kind_.ratio ? dim + i : i;
        const std::size_t at = static_cast<std::size_t>(p) * width() + column;
        const auto bias = static_cast<double>(ape[static_cast<std::size_t>(p % kind_.ratio) * width() + column]);
        pooled.add(static_cast<double>(score[at]) + bias, static_cast<double>(kv[at]));
      }
      values[i] = bf16_of(pooled.value());
    }
    double squares = 0;
    for (const double value : values) squares += value * value;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + 1e-6);
    for (std::size_t i = 0; i < dim; ++i)
      values[i] = bf16_of(values[i] * scale * static_cast<double>(to_float(norm[i])));
    const bool last = anchor == Profile::RopeAnchor::kLastToken;
    reference_rope(values, frequencies, row * kind_.ratio + (last ? kind_.ratio - 1 : 0));
    return is_key() ? reference_hadamard(values) : values;
  }

  static std::vector<double> reference_hadamard(const std::vector<double>& values) {
    std::vector<double> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < values.size(); ++j) sum += __builtin_parityll(i & j) != 0 ? -values[j] : values[j];
      result[i] = bf16_of(sum / std::sqrt(static_cast<double>(values.size())));
    }
    return result;
  }

 private:
  void prepare(const TestStep& step) {
    step_kv_.assign(static_cast<std::size_t>(step.tokens()) * width(), 17.5f);
    step_score_.assign(static_cast<std::size_t>(step.tokens()) * width(), -1.25f);
  }
  [[nodiscard]] CompressorInput input() const {
    return {.kv = step_kv_.data(),
            .score = step_score_.data(),
            .stride = static_cast<std::int64_t>(width()),
            .ape = ape.data(),
            .ratio = kind_.ratio,
            .ratio_class = 0,
            .dim = kind_.dim,
            .overlap = kind_.overlap};
  }
  [[nodiscard]] StateRing state() { return {ring.data(), slot_bytes(), kind_.ring_rows}; }
  [[nodiscard]] CompressParams params(const TestStep& step) {
    return {.step = step.view(),
            .input = input(),
            .state = state(),
            .norm_weight = norm.data(),
            .eps = 1e-6f,
            .rope = {frequencies.data(), false},
            .anchor = anchor,
            .hadamard = is_key(),
            .is_index_key = is_key(),
            .row_format = row_format,
            .key_format = key_format,
            .rows = {pool.data(), shape(), table.data(), kBlocksPerSequence}};
  }

  CompressorKind kind_;
  TestOps ops_;
  std::vector<float> step_kv_, step_score_;

 public:
  int positions;
  int slot = 1;
  Profile::RopeAnchor anchor = Profile::RopeAnchor::kFirstToken;
  RowFormat row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat key_format = IndexKeyFormat::kMxfp4;
  std::vector<float> kv, score, ape, frequencies;
  std::vector<bf16> norm;
  std::vector<std::int32_t> table;
  std::vector<std::byte> ring, pool;
};

}  // namespace dsv4rt::test
