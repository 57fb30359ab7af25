// attend against a double-precision reference, and its independence of batch, threads and chunking.
#include <algorithm>
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "support/weights_reference.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

// One sequence in slot 1 with random rows: every position's window row, and compressed rows.
class AttendSetup {
 public:
  AttendSetup(RowFormat format, std::int32_t positions, std::int32_t heads, std::int32_t ratio,
              std::int32_t ring_rows = 131, float compressed_scale = 1.0f)
      : format(format),
        heads(heads),
        ratio(ratio),
        positions(positions),
        ring_shape(block_shape(format, ring_rows)),
        rows_shape(block_shape(format, 16)),
        stride(ratio > 0 ? positions / ratio / 16 + 1 : 1) {
    swa_kv = random_rows(101, positions);
    q = random_bf16(103, static_cast<std::size_t>(positions * heads) * kHeadDim);
    sink = random_floats(104, static_cast<std::size_t>(heads), 2.0f);
    const std::int32_t compressed = ratio > 0 ? positions / ratio : 0;
    auto values = random_rows(102, compressed);
    for (auto& row : values) {
      for (float& value : row) value *= compressed_scale;
    }
    for (std::int64_t i = 0; i < 2 * stride; ++i) table.push_back(static_cast<std::int32_t>(2 * stride - i));
    blocks.resize(static_cast<std::size_t>((2 * stride + 1) * rows_shape.block_bytes));
    for (std::int32_t row = 0; row < compressed; ++row) {
      std::byte* block = blocks.data() + table[static_cast<std::size_t>(stride + row / 16)] * rows_shape.block_bytes;
      encode_row(format, rows_shape, values[static_cast<std::size_t>(row)].data(), block, row % 16);
      compressed_values.push_back(decoded(rows_shape, block, row % 16));
    }
    const BlockShape single = block_shape(format, 1);
    for (const auto& row : swa_kv) {
      std::vector<std::byte> block(static_cast<std::size_t>(single.block_bytes));
      encode_row(format, single, row.data(), block.data(), 0);
      window_values.push_back(decoded(single, block.data(), 0));
    }
  }

  // Output of the tokens [start, start + count), padded by `padding`; `neighbours` adds another sequence.
  std::vector<bf16> run(std::int32_t start, std::int32_t count, int threads, std::int32_t padding = 0,
                        cpu::IsaLevel isa = cpu::detect_isa_level(), bool neighbour = false) {
    std::vector<Part> parts = {{1, start, count}};
    if (neighbour) parts.insert(parts.begin(), Part{0, 0, 3});
    const std::int32_t first = neighbour ? 3 : 0;
    const TestStep step(parts, padding);
    const BlockShape staged_shape = block_shape(format, step.tokens());
    std::vector<std::byte> staged(static_cast<std::size_t>(staged_shape.block_bytes));
    std::vector<std::byte> ring = poisoned(static_cast<std::size_t>(2 * ring_shape.block_bytes), 105);
    for (std::int32_t p = 0; p < start; ++p) {
      encode_row(format, ring_shape, swa_kv[static_cast<std::size_t>(p)].data(), ring.data() + ring_shape.block_bytes,
                 p % ring_shape.rows);
    }
    for (std::int32_t i = 0; i < count; ++i) {
      encode_row(format, staged_shape, swa_kv[static_cast<std::size_t>(start + i)].data(), staged.data(), first + i);
    }
    const std::size_t token_values = static_cast<std::size_t>(heads) * kHeadDim;
    std::vector<bf16> queries(static_cast<std::size_t>(step.tokens()) * token_values);
    std::copy_n(q.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(start) * token_values),
                static_cast<std::size_t>(count) * token_values,
                queries.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * token_values));
    std::vector<bf16> out(queries.size(), bf16{0x7fc0});
    std::vector<std::int32_t> chosen;
    std::vector<std::int32_t> counts;
    for (std::int32_t t = 0; t < step.tokens(); ++t) {
      const auto rows = selected_rows(t >= first && t < first + count ? start + t - first : -1);
      counts.push_back(static_cast<std::int32_t>(rows.size()));
      chosen.insert(chosen.end(), rows.begin(), rows.end());
      chosen.resize(static_cast<std::size_t>(t + 1) * kSelectStride, -1);
    }
    TestOps ops(threads, isa);
    const Status status = ops->attend({.step = step.view(),
                                       .heads = heads,
                                       .window = 128,
                                       .q = queries.data(),
                                       .sink = sink.data(),
                                       .ring = {ring.data(), ring_shape.block_bytes, ring_shape, format},
                                       .staged_shape = staged_shape,
                                       .staged = staged.data(),
                                       .ratio = ratio,
                                       .row_format = format,
                                       .rows = {blocks.data(), rows_shape, table.data(), stride},
                                       .topk_indices = select ? chosen.data() : nullptr,
                                       .topk_count = select ? counts.data() : nullptr,
                                       .topk_stride = static_cast<std::int64_t>(kSelectStride),
                                       .output_rope = output_rope,
                                       .o = out.data()});
    EXPECT_TRUE(status.ok()) << status.to_string();
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * token_values));
    return out;
  }

  // Rows that the test selects at a position: every third visible one.
  [[nodiscard]] std::vector<std::int32_t> selected_rows(std::int32_t position) const {
    std::vector<std::int32_t> rows;
    if (!select || ratio == 0) return rows;
    for (std::int32_t row = 0; row < (position + 1) / ratio; row += 3) rows.push_back(row);
    return rows;
  }

  [[nodiscard]] std::vector<double> reference(std::int32_t position, std::int32_t head) const {
    std::vector<const std::vector<double>*> rows;
    for (std::int32_t p = std::max(0, position - 127); p <= position; ++p)
      rows.push_back(&window_values[static_cast<std::size_t>(p)]);
    if (select) {
      for (const std::int32_t row : selected_rows(position))
        rows.push_back(&compressed_values[static_cast<std::size_t>(row)]);
    } else if (ratio > 0) {
      for (std::int32_t row = 0; row < (position + 1) / ratio; ++row)
        rows.push_back(&compressed_values[static_cast<std::size_t>(row)]);
    }
    const bf16* query = q.data() + (std::int64_t{position} * heads + head) * kHeadDim;
    std::vector<double> scores;
    for (const auto* row : rows) {
      double dot = 0;
      for (std::size_t i = 0; i < kHeadDim; ++i) dot += static_cast<double>(to_float(query[i])) * (*row)[i];
      scores.push_back(dot / std::sqrt(512.0));
    }
    const auto window = static_cast<std::size_t>(std::min(position + 1, 128));
    const WeightsReference weights(scores, window, !select && rows.size() > 1152);
    double denominator = weights.weight(static_cast<double>(sink[static_cast<std::size_t>(head)]));
    std::vector<double> out(kHeadDim);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      denominator += weights.weight(scores[r]);
      const double p = weights.rounded(scores[r]);
      for (std::size_t i = 0; i < kHeadDim; ++i) out[i] += p * (*rows[r])[i];
    }
    for (double& value : out) value = bf16_of(value / denominator);
    return out;
  }

  // A weight that rounds to the other BF16 neighbour than in the reference moves an output by up to 0.4 %;
  // that is rare, so the mean bound still tells rounded weights from unrounded ones (0.2 %).
  void expect_matches(const std::vector<bf16>& out, std::int32_t start, std::int32_t count, double most = 4e-3) const {
    double sum = 0;
    for (std::int32_t t = 0; t < count; ++t) {
      for (std::int32_t h = 0; h < heads; ++h) {
        const auto expected = reference(start + t, h);
        double error = 0;
        double norm = 0;
        for (std::size_t i = 0; i < kHeadDim; ++i) {
          const auto actual =
              static_cast<double>(to_float(out[static_cast<std::size_t>(t * heads + h) * kHeadDim + i]));
          error += std::pow(actual - expected[i], 2);
          norm += expected[i] * expected[i];
        }
        const double relative = std::sqrt(error / norm);
        ASSERT_LT(relative, most) << "position " << start + t << " head " << h;
        sum += relative;
      }
    }
    EXPECT_LT(sum, 7e-4 * count * heads);
  }

  static constexpr std::size_t kSelectStride = 200;
  RowFormat format;
  std::int32_t heads, ratio, positions;
  bool select = false;
  RopeParams output_rope;
  BlockShape ring_shape, rows_shape;
  std::int64_t stride;
  std::vector<std::vector<float>> swa_kv;
  std::vector<std::vector<double>> window_values, compressed_values;
  std::vector<bf16> q;
  std::vector<float> sink;
  std::vector<std::int32_t> table;
  std::vector<std::byte> blocks;

 private:
  static std::vector<std::vector<float>> random_rows(std::uint64_t seed, std::int32_t count) {
    std::vector<std::vector<float>> rows;
    for (std::int32_t i = 0; i < count; ++i) {
      rows.push_back(random_floats(seed * 100000 + static_cast<std::uint64_t>(i), kHeadDim));
      for (float& value : rows.back()) value = round_to_bf16(value);
    }
    return rows;
  }
  // What attention reads: BF16 values (for fp8_row the product rounded to BF16).
  [[nodiscard]] std::vector<double> decoded(const BlockShape& shape, const std::byte* block, std::int64_t row) const {
    std::array<float, kHeadDim> values;
    decode_row(format, shape, block, row, values.data());
    std::vector<double> result;
    for (const float value : values) result.push_back(bf16_of(static_cast<double>(value)));
    return result;
  }
};

// Beyond 1152 rows that are not selected, weights are relative to a power of two.
TEST(Attend, ManyRowsAreWeighedRelativeToAPower) {
  constexpr std::int32_t kFirstWithMore = 4 * (1152 - 128 + 1) - 1;
  AttendSetup setup(RowFormat::kFp8DsMla, kFirstWithMore + 60, 24, 4);
  for (const std::int32_t start : {kFirstWithMore - 2, kFirstWithMore + 55}) {
    const auto out = setup.run(start, 4, 2);
    setup.expect_matches(out, start, 4);
  }
}

TEST(Attend, MatchesDoubleReferenceForEveryFormatAndLevel) {
  for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16}) {
    AttendSetup setup(format, 260, 5, 4);
    for (const cpu::IsaLevel level : available_levels()) {
      setup.select = false;
      setup.expect_matches(setup.run(250, 6, 2, 1, level), 250, 6);
      setup.select = true;
      setup.expect_matches(setup.run(126, 4, 2, 0, level), 126, 4);
    }
  }
}

// Compressed rows whose scores lie far above those of the window, so that weights of some heads have a shift, or far
// below. One row's weight may then be nearly all of a head's: its other BF16 neighbour is up to 0.8 % away.
TEST(Attend, ScoresFarFromTheWindows) {
  for (const float scale : {16.0f, 64.0f, 256.0f, 1.0f / 64}) {
    SCOPED_TRACE(testing::Message() << "scale " << scale);
    AttendSetup setup(RowFormat::kFp8DsMla, 260, 24, 4, 131, scale);
    for (const bool select : {false, true}) {
      setup.select = select;
      for (const cpu::IsaLevel level : available_levels()) {
        setup.expect_matches(setup.run(250, 6, 2, 1, level), 250, 6, 8e-3);
        setup.expect_matches(setup.run(7, 4, 2, 0, level), 7, 4, 8e-3);  // short windows
      }
    }
  }
}

TEST(Attend, HeadCountsOnBothSidesOfEveryLaneGroup) {
  for (const std::int32_t heads : {1, 15, 16, 17, 33, 64, 65, 80}) {
    AttendSetup setup(RowFormat::kFp8DsMla, 140, heads, 4);
    setup.expect_matches(setup.run(138, 1, 2), 138, 1);
  }
}

TEST(Attend, WindowOnlyAndFirstToken) {
  AttendSetup setup(RowFormat::kFp8DsMla, 300, 4, 0);
  setup.expect_matches(setup.run(0, 3, 2), 0, 3);
  setup.expect_matches(setup.run(297, 3, 2), 297, 3);
}

// More rows than stay decoded between the two passes.
TEST(Attend, LongRowListsAreDecodedTwice) {
  AttendSetup setup(RowFormat::kFp8DsMla, 3000, 3, 4);
  setup.expect_matches(setup.run(2999, 1, 2), 2999, 1);
}

TEST(Attend, ChunkingThreadsPaddingAndNeighboursGiveTheSameBytes) {
  for (const std::int32_t ratio : {0, 4, 128}) {
    AttendSetup setup(RowFormat::kFp8DsMla, 280, 64, ratio);
    const auto whole = setup.run(0, 280, 1);
    const std::size_t token_values = 64 * kHeadDim;
    const auto check = [&](std::int32_t start, std::int32_t count, const std::vector<bf16>& out, const char* what) {
      EXPECT_EQ(std::memcmp(out.data(), whole.data() + static_cast<std::size_t>(start) * token_values,
                            static_cast<std::size_t>(count) * token_values * sizeof(bf16)),
                0)
          << what << " at " << start << ", ratio " << ratio;
    };
    for (const std::int32_t start : {0, 1, 3, 4, 126, 127, 128, 129, 255, 256, 257, 279}) {
      check(start, 1, setup.run(start, 1, 3), "decode, 3 threads");
      check(start, 1, setup.run(start, 1, 2, 2), "decode, padded");
    }
    check(100, 180, setup.run(100, 180, 2), "chunk");
    check(200, 4, setup.run(200, 4, 2, 0, cpu::detect_isa_level(), true), "with a neighbour");
    check(200, 4, setup.run(200, 4, 9), "9 threads");
  }
}

TEST(Attend, RingOf128AndOf131GiveTheSameBytes) {
  AttendSetup narrow(RowFormat::kFp8DsMla, 280, 4, 0, 128);
  AttendSetup wide(RowFormat::kFp8DsMla, 280, 4, 0, 131);
  for (const std::int32_t start : {127, 128, 130, 131, 132, 270}) {
    EXPECT_TRUE(same_bytes(narrow.run(start, 1, 2), wide.run(start, 1, 2))) << start;
  }
}

TEST(Attend, PaddingTokensGetZeros) {
  AttendSetup setup(RowFormat::kFp8DsMla, 10, 3, 4);
  const auto out = setup.run(5, 2, 2, 3);
  for (std::size_t i = std::size_t{2} * 3 * kHeadDim; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0);
}

// The rotation reads o as it would be written without it.
TEST(Attend, OutputRotationFollowsTheRoundingOfO) {
  const auto frequencies = test_frequencies(160000.0);
  AttendSetup setup(RowFormat::kFp8DsMla, 210, 5, 4);
  std::vector<bf16> expected = setup.run(205, 4, 2, 1);
  for (const bool inverse : {true, false}) {
    setup.output_rope = {frequencies.data(), inverse};
    const auto out = setup.run(205, 4, 2, 1);
    for (std::size_t head = 0; head < out.size() / kHeadDim; ++head) {
      const bool padding = head >= std::size_t{4} * 5;
      const auto position = static_cast<float>(205 + head / 5);
      for (std::size_t i = 0; i < kHeadDim; i += 2) {
        const std::size_t at = head * kHeadDim + i;
        float even = to_float(expected[at]);
        float odd = to_float(expected[at + 1]);
        if (i >= kNopeDim && !padding) {
          const float angle = position * frequencies[(i - kNopeDim) / 2];
          const float cosine = std::cos(angle);
          const float sine = inverse ? -std::sin(angle) : std::sin(angle);
          const float x = even;
          even = x * cosine - odd * sine;
          odd = x * sine + odd * cosine;
        }
        ASSERT_EQ(out[at].bits, to_bf16(even).bits) << "head " << head << " value " << i;
        ASSERT_EQ(out[at + 1].bits, to_bf16(odd).bits) << "head " << head << " value " << i + 1;
      }
    }
  }
}

TEST(Attend, AVeryLargeSinkTakesAllWeight) {
  AttendSetup setup(RowFormat::kBf16, 20, 2, 0);
  setup.sink = {500.0f, -500.0f};
  const auto out = setup.run(19, 1, 1);
  for (std::size_t i = 0; i < kHeadDim; ++i) EXPECT_EQ(to_float(out[i]), 0.0f);
  const auto expected = setup.reference(19, 1);
  for (std::size_t i = 0; i < kHeadDim; ++i)
    EXPECT_NEAR(static_cast<double>(to_float(out[kHeadDim + i])), expected[i], 0.02);
}

}  // namespace
}  // namespace dsv4rt
