// Calls of indexer_topk on the GPU and on the CPU: the same rows, but for rows whose scores differ by less than FP32
// summation in another order can change.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "gpu/support/gpu.h"
#include "layout/rounding.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt::test {

inline constexpr std::array kKeyFormats = {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8,
                                           IndexKeyFormat::kBf16};
inline constexpr std::int32_t kRatio = 4;
inline constexpr float kHeadScale = 0.03f;

// A step whose metadata also lies on the device.
class GpuStep {
 public:
  GpuStep(Backend& gpu, const TestStep& step)
      : view_(step.view()),
        position_(gpu, {view_.token_position, tokens()}),
        sequence_(gpu, {view_.token_sequence, tokens()}),
        slot_(gpu, {view_.sequence_slot, sequences()}),
        start_(gpu, {view_.sequence_start, sequences()}),
        first_token_(gpu, {view_.sequence_first_token, sequences() + 1}) {
    view_.token_position = position_.data();
    view_.token_sequence = sequence_.data();
    view_.sequence_slot = slot_.data();
    view_.sequence_start = start_.data();
    view_.sequence_first_token = first_token_.data();
  }
  [[nodiscard]] const StepView& view() const { return view_; }

 private:
  [[nodiscard]] std::size_t tokens() const { return static_cast<std::size_t>(view_.counts.tokens); }
  [[nodiscard]] std::size_t sequences() const { return static_cast<std::size_t>(view_.counts.sequences); }

  StepView view_;
  DeviceArray<std::int32_t> position_, sequence_, slot_, start_, first_token_;
};

struct Selection {
  std::vector<std::int32_t> rows;   // [T, top_k]
  std::vector<std::int32_t> count;  // [T]
  bool operator==(const Selection&) const = default;
};

// Queries, weights and what else a call takes beside the keys.
struct Call {
  std::int32_t heads = 0;
  std::int32_t top_k = 0;
  std::vector<bf16> q;
  std::vector<bf16> weight;  // [T, heads + 3]
};

class IndexerTopkGpuTest : public test::GpuTest {
 protected:
  // Keys of `slots` sequences of `rows` rows in scattered blocks. Everything else in the pool is poison.
  class Keys {
   public:
    Keys(std::int32_t slots, std::int32_t rows, IndexKeyFormat format, std::int32_t block_rows = 64)
        : format(format), shape(block_shape(format, block_rows)), stride((rows + block_rows - 1) / block_rows) {
      const std::int64_t used = slots * stride;
      std::vector<std::int32_t> order(static_cast<std::size_t>(used + 3));
      std::iota(order.begin(), order.end(), 0);
      Random random(7);
      for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.bits() % (i + 1)]);
      table.assign(order.begin(), order.begin() + used);
      blocks = poisoned(static_cast<std::size_t>((used + 3) * shape.block_bytes), 80);
    }
    Keys& fill_random(std::int32_t slots, std::int32_t rows, std::uint64_t seed = 81) {
      std::array<float, kIndexHeadDim> key;
      Random random(seed);
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        for (std::int32_t row = 0; row < rows; ++row) {
          for (float& value : key) value = uniform(random);
          set(slot, row, key.data());
        }
      }
      return *this;
    }
    void set(std::int32_t slot, std::int32_t row, const float* values) {
      std::array<float, kIndexHeadDim> rounded;
      for (std::size_t i = 0; i < kIndexHeadDim; ++i) rounded[i] = round_to_bf16(values[i]);
      encode_row(format, shape, rounded.data(), block_of(slot, row), row % shape.rows);
    }
    // Quick numbers in [-2, 2), a few of them large.
    static float uniform(Random& random) {
      const std::uint64_t bits = random.bits();
      const float value = static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-30f;
      return (bits & 31) == 0 ? value * 6.0f : value;
    }
    std::byte* block_of(std::int32_t slot, std::int32_t row) {
      return blocks.data() + table[static_cast<std::size_t>(slot * stride + row / shape.rows)] * shape.block_bytes;
    }
    double score(std::int32_t slot, std::int32_t row, std::int32_t heads, const bf16* q, const bf16* weight) {
      std::array<float, kIndexHeadDim> key;
      decode_row(format, shape, block_of(slot, row), row % shape.rows, key.data());
      return reference_index_score(key, heads, q, weight, kHeadScale);
    }

    IndexKeyFormat format;
    BlockShape shape;
    std::int64_t stride;
    std::vector<std::int32_t> table;
    std::vector<std::byte> blocks;
  };

  // rounded_through: the format that queries are rounded through, as the engine's are through that of their keys.
  static Call random_call(const TestStep& step, std::int32_t heads, std::int32_t top_k, std::uint64_t seed,
                          std::optional<IndexKeyFormat> rounded_through = std::nullopt) {
    const auto tokens = static_cast<std::size_t>(step.tokens());
    Call call{heads, top_k, random_bf16(seed, tokens * static_cast<std::size_t>(heads * kIndexHeadDim)),
              random_bf16(seed + 1, tokens * static_cast<std::size_t>(heads + 3))};
    if (!rounded_through) return call;
    std::array<float, kIndexHeadDim> values;
    for (std::size_t at = 0; at < call.q.size(); at += values.size()) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(call.q[at + i]);
      round_through(*rounded_through, values.data());
      for (std::size_t i = 0; i < values.size(); ++i) call.q[at + i] = to_bf16(values[i]);
    }
    return call;
  }

  // Single tokens, in turn of each of the sequences, at positions that see up to `rows` rows.
  static std::vector<Part> scattered_tokens(std::int32_t count, std::int32_t sequences, std::int32_t rows) {
    std::vector<Part> parts;
    for (std::int32_t i = 0; i < count; ++i) parts.push_back({i % sequences, (i * 7919 + 9000) % (rows * kRatio), 1});
    return parts;
  }

  static IndexerTopkParams params_of(const StepView& step, const Call& call, const Keys& keys) {
    return {.step = step,
            .heads = call.heads,
            .ratio = kRatio,
            .top_k = call.top_k,
            .q = nullptr,
            .head_weight = nullptr,
            .head_weight_stride = call.heads + 3,
            .head_scale = kHeadScale,
            .key_format = keys.format,
            .keys = {nullptr, keys.shape, nullptr, keys.stride},
            .topk_indices = nullptr,
            .topk_count = nullptr};
  }

  static Selection select_on_cpu(const TestStep& step, const Call& call, Keys& keys) {
    const auto tokens = static_cast<std::size_t>(step.tokens());
    Selection out{std::vector<std::int32_t>(tokens * static_cast<std::size_t>(call.top_k), -7),
                  std::vector<std::int32_t>(tokens, -7)};
    TestOps ops;
    IndexerTopkParams params = params_of(step.view(), call, keys);
    params.q = call.q.data();
    params.head_weight = call.weight.data();
    params.keys.blocks = keys.blocks.data();
    params.keys.block_table = keys.table.data();
    params.topk_indices = out.rows.data();
    params.topk_count = out.count.data();
    EXPECT_OK(ops->indexer_topk(params));
    return out;
  }

  // A call's arrays on the device.
  class OnGpu {
   public:
    OnGpu(const TestStep& step, const Call& call, const Keys& keys)
        : step_(gpu(), step),
          q_(gpu(), call.q),
          weight_(gpu(), call.weight),
          blocks_(gpu(), keys.blocks),
          table_(gpu(), keys.table),
          rows_(gpu(), std::vector<std::int32_t>(
                           static_cast<std::size_t>(step.tokens()) * static_cast<std::size_t>(call.top_k), -7)),
          count_(gpu(), std::vector<std::int32_t>(static_cast<std::size_t>(step.tokens()), -7)),
          params_(params_of(step_.view(), call, keys)) {
      params_.q = q_.data();
      params_.head_weight = weight_.data();
      params_.keys.blocks = blocks_.data();
      params_.keys.block_table = table_.data();
      params_.topk_indices = rows_.data();
      params_.topk_count = count_.data();
    }
    void run() { EXPECT_OK(gpu().ops().indexer_topk(params_)); }
    [[nodiscard]] const IndexerTopkParams& params() const { return params_; }
    [[nodiscard]] Selection take() {
      Selection out{rows_.download(), count_.download()};
      const std::vector<std::int32_t> unwritten(out.rows.size(), -7);
      EXPECT_OK(gpu().upload(rows_.data(), unwritten.data(), unwritten.size() * sizeof(std::int32_t)));
      EXPECT_OK(gpu().upload(count_.data(), unwritten.data(), out.count.size() * sizeof(std::int32_t)));
      EXPECT_OK(gpu().synchronize());
      return out;
    }

   private:
    GpuStep step_;
    DeviceArray<bf16> q_, weight_;
    DeviceArray<std::byte> blocks_;
    DeviceArray<std::int32_t> table_, rows_, count_;
    IndexerTopkParams params_;
  };

  static Selection select_on_gpu(const TestStep& step, const Call& call, const Keys& keys,
                                 std::size_t scratch_bytes = std::size_t{64} << 20) {
    EXPECT_OK(gpu().reserve_scratch(scratch_bytes));
    OnGpu on_gpu(step, call, keys);
    on_gpu.run();
    return on_gpu.take();
  }

  // Tokens agree but for rows near the last selected score.
  static void expect_agreement(const TestStep& step, const Call& call, Keys& keys, const Selection& actual) {
    const Selection expected = select_on_cpu(step, call, keys);
    ASSERT_EQ(actual.count, expected.count);
    const StepView view = step.view();
    for (std::int32_t t = 0; t < step.tokens(); ++t) {
      const std::size_t at = static_cast<std::size_t>(t) * static_cast<std::size_t>(call.top_k);
      const std::span own(actual.rows.data() + at, static_cast<std::size_t>(call.top_k));
      const std::span reference(expected.rows.data() + at, static_cast<std::size_t>(call.top_k));
      if (std::equal(own.begin(), own.end(), reference.begin())) continue;
      const std::int32_t count = actual.count[static_cast<std::size_t>(t)];
      const std::int32_t slot = view.sequence_slot[view.token_sequence[t]];
      for (std::int32_t i = 1; i < count; ++i) {
        ASSERT_LT(own[static_cast<std::size_t>(i - 1)], own[static_cast<std::size_t>(i)]) << "token " << t;
      }
      std::vector<std::int32_t> changed;
      std::set_symmetric_difference(own.begin(), own.begin() + count, reference.begin(), reference.begin() + count,
                                    std::back_inserter(changed));
      ASSERT_LE(changed.size(), 6U) << "token " << t;
      double least = std::numeric_limits<double>::infinity();
      double most = -least;
      for (const std::int32_t row : changed) {
        ASSERT_GE(row, 0);
        ASSERT_LT(row, (view.token_position[t] + 1) / kRatio);
        const double score =
            keys.score(slot, row, call.heads, call.q.data() + std::int64_t{t} * call.heads * kIndexHeadDim,
                       call.weight.data() + std::int64_t{t} * (call.heads + 3));
        ASSERT_FALSE(std::isnan(score)) << "token " << t << ", row " << row;
        least = std::min(least, score);
        most = std::max(most, score);
      }
      EXPECT_LE(most - least, 2e-5 * std::max(1.0, std::abs(most))) << "token " << t << ": near ties only";
    }
  }

  static void check(const TestStep& step, const Call& call, Keys& keys) {
    expect_agreement(step, call, keys, select_on_gpu(step, call, keys));
  }
};

}  // namespace dsv4rt::test
