// What selection reads, or does, before the kernels in front have ended: nothing that those write, and nothing that
// shows. As early_reads_gpu_test.cpp has it of attention.
#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <vector>

#include "gpu/support/indexer_topk_calls.h"
#include "gpu/support/late_bytes.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

struct EarlySelection {
  const char* name;
  IndexKeyFormat format;
  std::int32_t tokens;
  std::int32_t rows;   // the first token sees so many
  std::int32_t fewer;  // each next token sees so many fewer
};
std::ostream& operator<<(std::ostream& out, const EarlySelection& value) {
  return out << value.name;
}

class EarlySelectionGpuTest : public IndexerTopkGpuTest, public testing::WithParamInterface<EarlySelection> {};

// Queries, their heads' weights and the last key of all come late.
TEST_P(EarlySelectionGpuTest, TakesNothingThatTheStepWrites) {
  const EarlySelection& param = GetParam();
  ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
  Keys keys(1, param.rows, param.format);
  keys.fill_random(1, param.rows);
  std::vector<Part> parts;
  for (std::int32_t t = 0; t < param.tokens; ++t) parts.push_back({0, (param.rows - param.fewer * t) * kRatio - 1, 1});
  const TestStep step(parts, 1);
  const Call call = random_call(step, 64, 512, 1988, param.format);
  OnGpu on_gpu(step, call, keys);
  on_gpu.run();
  const Selection expected = on_gpu.take();

  const std::int32_t last = param.rows - 1;
  std::byte* const block = keys.block_of(0, last);
  std::byte* const device_block = on_gpu.params().keys.blocks + (block - keys.blocks.data());
  const BlockShape one = block_shape(param.format, 1);
  const std::vector<std::byte> other(static_cast<std::size_t>(one.block_bytes));
  const Selection unwritten{std::vector<std::int32_t>(expected.rows.size(), -7),
                            std::vector<std::int32_t>(expected.count.size(), -7)};
  for (int repeat = 0; repeat < 3; ++repeat) {
    LateBytes late(gpu());
    late.add_array(on_gpu.params().q, {call.q.rbegin(), call.q.rend()}, call.q);
    late.add_array(on_gpu.params().head_weight, {call.weight.rbegin(), call.weight.rend()}, call.weight);
    late.add_row(keys.shape, device_block, block, other.data(), last % keys.shape.rows);
    const DeviceArray<std::int32_t> rows(gpu(), expected.rows);
    const DeviceArray<std::int32_t> count(gpu(), expected.count);
    late.look(rows.data(), on_gpu.params().topk_indices, expected.rows.size() * sizeof(std::int32_t));
    late.look(count.data(), on_gpu.params().topk_count, expected.count.size() * sizeof(std::int32_t));
    late.launch();
    on_gpu.run();
    const Selection before{rows.download(), count.download()};
    EXPECT_EQ(before, unwritten) << "outputs before their turn, run " << repeat;
    EXPECT_EQ(on_gpu.take(), expected) << "run " << repeat;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Selection, EarlySelectionGpuTest,
    testing::Values(EarlySelection{"one token, few rows", IndexKeyFormat::kMxfp4, 1, 2500, 0},
                    EarlySelection{"few tokens, few rows", IndexKeyFormat::kBf16, 7, 2048, 5},
                    EarlySelection{"few tokens, few rows, FP8", IndexKeyFormat::kFp8, 7, 2048, 5},
                    EarlySelection{"clusters of four, few rows", IndexKeyFormat::kMxfp4, 30, 2048, 5},
                    EarlySelection{"blocks alone, few rows", IndexKeyFormat::kMxfp4, 130, 2048, 5},
                    EarlySelection{"all rows", IndexKeyFormat::kMxfp4, 4, 500, 5},
                    EarlySelection{"one token, many rows", IndexKeyFormat::kMxfp4, 1, 30000, 0},
                    EarlySelection{"tokens with blocks of their own", IndexKeyFormat::kMxfp4, 33, 8000, 5},
                    EarlySelection{"tokens of other lengths, some with few rows", IndexKeyFormat::kMxfp4, 33, 8000,
                                   235},
                    EarlySelection{"tokens in turn", IndexKeyFormat::kFp8, 133, 4000, 5}));

}  // namespace
}  // namespace dsv4rt
