// swa_kv and swa_cache_write: values, addressed bytes, ring wrap-around.
#include <array>

#include <gtest/gtest.h>

#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr float kNormEps = 1e-6f;
constexpr std::array kFormats = {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16};

struct Inputs {
  explicit Inputs(std::int32_t tokens)
      : kv(random_bf16(21, static_cast<std::size_t>(tokens) * kHeadDim, 2.0f)),
        weight(random_bf16(22, kHeadDim)),
        frequencies(test_frequencies()) {}

  SwaKvParams params(const TestStep& step, RowFormat format, std::vector<std::byte>& staged) const {
    return {.step = step.view(),
            .kv = kv.data(),
            .norm_weight = weight.data(),
            .eps = kNormEps,
            .rope = {frequencies.data(), false},
            .format = format,
            .staged_shape = block_shape(format, step.tokens()),
            .staged = staged.data()};
  }

  std::vector<bf16> kv, weight;
  std::vector<float> frequencies;
};

TEST(WindowRows, ValuesMatchDoubleReferenceAndFormatsAgree) {
  const TestStep step({{0, 3, 3}, {2, 70000, 2}});
  const Inputs inputs(step.tokens());
  const BlockShape shape = block_shape(RowFormat::kBf16, step.tokens());
  std::vector<std::byte> staged(static_cast<std::size_t>(shape.block_bytes));
  TestOps ops;
  ASSERT_TRUE(ops->swa_kv(inputs.params(step, RowFormat::kBf16, staged)).ok());
  std::vector<std::vector<float>> rows;
  for (int t = 0; t < step.tokens(); ++t) {
    const bf16* kv = inputs.kv.data() + t * kHeadDim;
    double sum = 0;
    for (int i = 0; i < kHeadDim; ++i) sum += std::pow(static_cast<double>(to_float(kv[i])), 2);
    const double scale = 1.0 / std::sqrt(sum / kHeadDim + static_cast<double>(kNormEps));
    std::vector<double> expected(kHeadDim);
    for (std::size_t i = 0; i < kHeadDim; ++i) {
      expected[i] =
          bf16_of(static_cast<double>(to_float(kv[i])) * scale * static_cast<double>(to_float(inputs.weight[i])));
    }
    reference_rope(expected, inputs.frequencies, step.view().token_position[t]);
    rows.emplace_back(kHeadDim);
    decode_row(RowFormat::kBf16, shape, staged.data(), t, rows.back().data());
    for (std::size_t i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(static_cast<double>(rows.back()[i]), expected[i], std::abs(expected[i]) * 0x1p-7 + 1e-5);
    }
  }
  for (const RowFormat format : kFormats) {
    const BlockShape format_shape = block_shape(format, step.tokens());
    std::vector<std::byte> actual(static_cast<std::size_t>(format_shape.block_bytes));
    ASSERT_TRUE(ops->swa_kv(inputs.params(step, format, actual)).ok());
    std::vector<std::byte> expected(actual.size());
    for (int t = 0; t < step.tokens(); ++t)
      encode_row(format, format_shape, rows[static_cast<std::size_t>(t)].data(), expected.data(), t);
    EXPECT_TRUE(same_bytes(actual, expected)) << row_format_name(format);
  }
}

TEST(WindowRows, PaddingWithNanInputStagesFiniteRows) {
  const TestStep step({{0, 0, 1}}, 2);
  Inputs inputs(step.tokens());
  for (std::size_t i = kHeadDim; i < inputs.kv.size(); ++i) inputs.kv[i].bits = 0x7fc0;
  std::vector<std::byte> staged = poisoned(static_cast<std::size_t>(block_shape(RowFormat::kFp8DsMla, 3).block_bytes));
  TestOps ops;
  ASSERT_TRUE(ops->swa_kv(inputs.params(step, RowFormat::kFp8DsMla, staged)).ok());
  std::array<float, kHeadDim> values;
  for (int row : {1, 2}) {
    decode_row(RowFormat::kFp8DsMla, block_shape(RowFormat::kFp8DsMla, 3), staged.data(), row, values.data());
    for (const float value : values) EXPECT_TRUE(std::isfinite(value));
  }
}

// The check sits in the workers' loop: it must come back as a status, whatever the number of threads.
TEST(WindowRows, AShapeOfAnotherFormatIsAStatusNotTheEndOfTheProcess) {
  const TestStep step({{0, 0, 8}});
  const Inputs inputs(step.tokens());
  const BlockShape larger = block_shape(RowFormat::kBf16, step.tokens());
  std::vector<std::byte> staged(static_cast<std::size_t>(larger.block_bytes));
  SwaKvParams params = inputs.params(step, RowFormat::kFp8DsMla, staged);
  params.staged_shape = larger;
  for (const int threads : {1, 2, 5}) {
    TestOps ops(threads);
    const Status status = ops->swa_kv(params);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << threads;
    EXPECT_NE(status.message().find("check failed"), std::string::npos) << status.message();
  }
}

// Rings after feeding `chunks` of one sequence in `slot`; the other slots belong to nobody.
std::vector<std::byte> feed(RowFormat format, int ring_rows, const std::vector<int>& chunks, int threads, int slot,
                            std::int64_t* slot_bytes_out = nullptr) {
  const BlockShape ring_shape = block_shape(format, ring_rows);
  const std::int64_t slot_bytes = ring_shape.block_bytes + 64;  // a canary behind every ring
  std::vector<std::byte> memory = poisoned(static_cast<std::size_t>(3 * slot_bytes));
  if (slot_bytes_out != nullptr) *slot_bytes_out = slot_bytes;
  int total = 0;
  for (const int chunk : chunks) total += chunk;
  const Inputs inputs(total);
  TestOps ops(threads);
  int start = 0;
  for (const int chunk : chunks) {
    const TestStep step({{slot, start, chunk}}, 1);
    const BlockShape staged_shape = block_shape(format, step.tokens());
    std::vector<std::byte> staged(static_cast<std::size_t>(staged_shape.block_bytes));
    SwaKvParams rows = inputs.params(step, format, staged);
    std::vector<bf16> kv(inputs.kv.begin() + start * kHeadDim, inputs.kv.begin() + (start + chunk) * kHeadDim);
    kv.resize(kv.size() + kHeadDim);  // the padding token
    rows.kv = kv.data();
    EXPECT_TRUE(ops->swa_kv(rows).ok());
    const SwaRing ring{.base = memory.data(), .slot_bytes = slot_bytes, .shape = ring_shape, .format = format};
    EXPECT_TRUE(
        ops->swa_cache_write({.step = step.view(), .staged_shape = staged_shape, .staged = staged.data(), .ring = ring})
            .ok());
    start += chunk;
  }
  return memory;
}

TEST(WindowStore, EveryChunkingGivesTheSameRing) {
  for (const int ring_rows : {128, 131}) {
    const auto whole = feed(RowFormat::kFp8DsMla, ring_rows, {300}, 1, 1);
    EXPECT_TRUE(same_bytes(feed(RowFormat::kFp8DsMla, ring_rows, std::vector<int>(300, 1), 2, 1), whole));
    EXPECT_TRUE(same_bytes(feed(RowFormat::kFp8DsMla, ring_rows, {127, 1, 128, 5, 39}, 3, 1), whole));
    EXPECT_TRUE(same_bytes(feed(RowFormat::kFp8DsMla, ring_rows, {3, 129, 131, 37}, 2, 1), whole));
  }
}

TEST(WindowStore, OnlyTheSequencesRowsChange) {
  for (const RowFormat format : kFormats) {
    std::int64_t slot_bytes = 0;
    const auto memory = feed(format, 131, {2, 1}, 2, 1, &slot_bytes);
    const auto before = poisoned(memory.size());
    const BlockShape shape = block_shape(format, 131);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const std::int64_t offset = static_cast<std::int64_t>(i) - slot_bytes;
      const bool data = offset >= 0 && offset < 3 * shape.data_bytes;
      const bool scale = offset >= shape.scale_offset(0) && offset < shape.scale_offset(3);
      if (!data && !scale) {
        EXPECT_EQ(memory[i], before[i]) << row_format_name(format) << " byte " << i;
      }
    }
    EXPECT_NE(std::memcmp(memory.data() + slot_bytes, before.data() + slot_bytes,
                          static_cast<std::size_t>(3 * shape.data_bytes)),
              0);
  }
}

TEST(WindowStore, RowOfAPositionIsThePositionModuloTheRing) {
  const auto short_run = feed(RowFormat::kBf16, 131, {200}, 1, 0);
  const Inputs inputs(200);
  const TestStep step({{0, 0, 200}});
  std::vector<std::byte> staged(static_cast<std::size_t>(block_shape(RowFormat::kBf16, 200).block_bytes));
  TestOps ops;
  ASSERT_TRUE(ops->swa_kv(inputs.params(step, RowFormat::kBf16, staged)).ok());
  for (int p = 69; p < 200; ++p) {
    EXPECT_EQ(std::memcmp(short_run.data() + p % 131 * 1024, staged.data() + p * 1024, 1024), 0) << p;
  }
}

}  // namespace
}  // namespace dsv4rt
