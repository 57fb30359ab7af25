// Queries that attend norms and turns itself, on the GPU: the bytes of query() and attend() one after the other, with
// every kernel that does so.
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/attend/run_launch.h"
#include "base/try.h"
#include "gpu/support/attend_gpu.h"
#include "gpu/support/device_writes.h"
#include "support/attend_case.h"

namespace dsv4rt::test {
namespace {

constexpr float kEps = 1e-6F;

class AttendQueriesGpuTest : public GpuTest {
 protected:
  using Setup = AttendSetup;

  static constexpr std::size_t kScratchBytes = std::size_t{256} << 20;
  void SetUp() override {
    GpuTest::SetUp();
    if (gpu_backend().ok()) {
      ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
    }
  }

  static void expect_same(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding = 0,
                          void (*change)(AttendInputs&) = nullptr, bool in_runs = false, bool decoded = false) {
    AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
    if (change != nullptr) change(inputs);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays itself(gpu(), inputs, setup.pool, blocks.data(), table.data());
    AttendParams params = itself.params;
    const Result<bool> norms = gpu().ops().norms_queries(params);
    ASSERT_OK(norms);
    ASSERT_TRUE(*norms) << "another kernel serves this step";
    const auto device = cuda::CudaDevice::create(0);
    ASSERT_OK(device);
    const auto plan = cuda::plan_attend(**device, params, kScratchBytes, kZeroBytes);
    ASSERT_OK(plan);
    ASSERT_EQ(plan->runs.has_value(), in_runs) << "another kernel serves this step";
    ASSERT_EQ(plan->decoded.has_value(), decoded);
    expect_same_launches(inputs, itself, AttendArrays(gpu(), inputs, setup.pool, blocks.data(), table.data()), 1,
                         [](const AttendParams& p) { return gpu().ops().attend(p); });
  }

  // The same where attention takes tokens in runs.
  static void expect_same_in_runs(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding = 0,
                                  void (*change)(AttendInputs&) = nullptr) {
    expect_same(setup, parts, padding, change, true);
  }

  // The same for runs of `block_tokens` tokens, of which there may be fewer than a plan has; `times` launches.
  static void expect_same_runs(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t block_tokens,
                               std::int32_t padding = 0, int times = 1) {
    const AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays itself(gpu(), inputs, setup.pool, blocks.data(), table.data());
    const auto device = cuda::CudaDevice::create(0);
    ASSERT_OK(device);
    cuda::RunPlan plan{.block_tokens = block_tokens, .groups = setup.shape.heads / 64};
    plan.blocks = std::int64_t{(inputs.counts.tokens + block_tokens - 1) / block_tokens} * plan.groups;
    expect_same_launches(inputs, itself, AttendArrays(gpu(), inputs, setup.pool, blocks.data(), table.data()), times,
                         [&](const AttendParams& p) -> Status {
                           DSV4RT_RETURN_IF_ERROR(gpu().synchronize());
                           DSV4RT_RETURN_IF_ERROR(cuda::launch_runs(**device, p, plan, nullptr));
                           return DSV4RT_CUDA_STATUS(cudaDeviceSynchronize());
                         });
  }

  // `itself` and `before` are the same inputs: attention norms and turns the queries of one, query() those of the
  // other.
  static void expect_same_launches(const AttendInputs& inputs, const AttendArrays& itself, const AttendArrays& before,
                                   int times, const std::function<Status(const AttendParams&)>& attend) {
    ASSERT_OK(gpu().ops().query({.step = before.params.step,
                                 .heads = before.params.heads,
                                 .q = const_cast<bf16*>(before.params.q),
                                 .eps = kEps,
                                 .rope = {before.params.output_rope.inverse_frequency, false}}));
    ASSERT_OK(attend(before.params));
    std::vector<bf16> expected;
    ASSERT_OK(before.output(expected));
    AttendParams params = itself.params;
    params.query_eps = kEps;
    for (int time = 0; time < times; ++time) {
      SCOPED_TRACE("launch " + std::to_string(time));
      if (time > 0) {  // what the launch before left would hide what this one does not write
        fill_on_device(params.o, 0xff, expected.size() * sizeof(bf16));
      }
      ASSERT_OK(attend(params));
      std::vector<bf16> actual;
      ASSERT_OK(itself.output(actual));
      expect_same_outputs(inputs, actual, expected);
      if (HasFailure()) return;
    }
    std::vector<bf16> queries(inputs.q.size());
    ASSERT_OK(gpu().download(queries.data(), params.q, queries.size() * sizeof(bf16)));
    ASSERT_EQ(std::memcmp(queries.data(), inputs.q.data(), queries.size() * sizeof(bf16)), 0) << "q has changed";
  }

  static void expect_same_outputs(const AttendInputs& inputs, const std::vector<bf16>& actual,
                                  const std::vector<bf16>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    if (std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(bf16)) == 0) return;
    const auto heads = static_cast<std::size_t>(inputs.shape.heads);
    std::size_t differ = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (actual[i].bits != expected[i].bits && differ++ == 0) first = i;
    }
    ASSERT_EQ(differ, 0U) << "of " << actual.size() << ", first: value " << first % kHeadDim << " of head "
                          << first / kHeadDim % heads << " of token " << first / kHeadDim / heads << ": "
                          << to_float(actual[first]) << " for " << to_float(expected[first]);
  }

  // Tokens that blocks take alone: more than pairs have places for, no more than one round of blocks.
  static constexpr std::int32_t kAlone = 100;
};

// So little work that tools can follow every access.
TEST_F(AttendQueriesGpuTest, OneStepOfBlocks) {
  expect_same(Setup({.heads = 64, .ratio = 4, .top_k = 64}, 2, 400), {{0, 250, 60}, {1, 126, 8}}, 2);
}

TEST_F(AttendQueriesGpuTest, HeadCounts) {
  for (const std::int32_t heads : {1, 7, 15, 17, 40, 63, 64, 65, 72, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const std::int32_t tokens = heads <= 64 ? kAlone : kAlone / 2;
    expect_same(Setup({.heads = heads, .ratio = 4, .top_k = 512}, 2, 3000), {{0, 2800, tokens - 5}, {1, 3, 5}}, 1);
  }
}

// Of selected rows and of all, one round of blocks and several.
TEST_F(AttendQueriesGpuTest, BlocksAlone) {
  for (const auto& [ratio, top_k] : {std::pair{4, 512}, {4, 0}, {128, 0}, {0, 0}}) {
    for (const std::int32_t tokens : {kAlone, 136, 260, 700}) {
      SCOPED_TRACE("ratio " + std::to_string(ratio) + " top_k " + std::to_string(top_k) + " tokens " +
                   std::to_string(tokens));
      std::vector<AttendPart> parts;
      for (std::int32_t i = 0; i < tokens; ++i) parts.push_back({i % 50, 1500 + 29 * (i / 50) + i % 50, 1});
      expect_same(Setup({.heads = 64, .ratio = ratio, .top_k = top_k}, 50, 3000), parts);
    }
  }
}

// The block goes over its items again: their queries are copied, and normed, once more.
TEST_F(AttendQueriesGpuTest, FarFromTheWindow) {
  for (const std::int32_t exponent : {4, 6, -6}) {
    SCOPED_TRACE(exponent);
    expect_same(Setup({.heads = 64, .ratio = 4, .top_k = 512, .compressed_exponent = exponent}, 2, 3000),
                {{0, 2400, 240}, {1, 5, 20}}, 1);
  }
}

// Blocks, and splits, whose rows are decoded before.
TEST_F(AttendQueriesGpuTest, OfDecodedRows) {
  for (const std::int32_t exponent : {0, 4}) {
    SCOPED_TRACE(exponent);
    expect_same(Setup({.heads = 64, .ratio = 4, .top_k = 512, .compressed_exponent = exponent}, 2, 3000),
                {{0, 1500, 700}, {1, 5, 20}}, 1, nullptr, false, true);
    expect_same(Setup({.heads = 128, .ratio = 128, .compressed_exponent = exponent}, 2, 300000),
                {{0, 131030, 300}, {1, 130, 10}}, 3, nullptr, false, true);
  }
}

TEST_F(AttendQueriesGpuTest, Splits) {
  const Setup setup({.heads = 64, .ratio = 128}, 2, 300000);
  expect_same(setup, {{0, 131030, kAlone - 10}, {1, 262143, 10}}, 3);
  expect_same(Setup({.heads = 128, .ratio = 128, .compressed_exponent = 6}, 2, 300000),
              {{0, 131030, kAlone - 70}, {1, 262143, 10}}, 3);
}

// Blocks that take several splits in a row norm a token's queries once: of packed rows, and of decoded ones.
TEST_F(AttendQueriesGpuTest, RunsOfSplits) {
  for (const std::int32_t exponent : {0, 6}) {
    const Setup setup({.heads = 64, .ratio = 4, .compressed_exponent = exponent}, kAlone, 33200);
    std::vector<AttendPart> sequences;
    for (std::int32_t i = 0; i < kAlone; ++i) sequences.push_back({i, i % 4 == 3 ? 30 + i : 33000 - 300 * i, 1});
    for (const bool decoded : {false, true}) {
      SCOPED_TRACE(std::to_string(exponent) + (decoded ? ", decoded rows" : ""));
      const auto parts = decoded ? std::vector<AttendPart>{{0, 33000, kAlone - 30}, {1, 30, 30}} : sequences;
      const cuda::AttendPlan plan = attend_plan(gpu(), setup, parts, 3, kScratchBytes);
      ASSERT_TRUE(plan.dense && plan.dense->run > 1);
      expect_same(setup, parts, 3, nullptr, false, decoded);
    }
  }
}

TEST_F(AttendQueriesGpuTest, WithoutFrequenciesNothingRotates) {
  expect_same(Setup({.heads = 64, .ratio = 4, .top_k = 512, .rotates = false}, 1, 3000), {{0, 2000, kAlone}});
}

// Heads of zeros, of values whose squares vanish or have no bound, and of no numbers.
TEST_F(AttendQueriesGpuTest, QueriesOfEveryKind) {
  const auto change = [](AttendInputs& inputs) {
    const float kinds[] = {0.0F,
                           1e-30F,
                           1e-3F,
                           1e15F,
                           1e25F,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
    constexpr std::size_t kKinds = std::size(kinds);
    for (std::size_t head = 0; head < inputs.q.size() / kHeadDim; ++head) {
      bf16* values = inputs.q.data() + head * kHeadDim;
      const float kind = kinds[head % kKinds];
      if (kind == 0.0F || (kind > 0.0F && kind <= 1e25F)) {
        for (std::size_t i = 0; i < kHeadDim; ++i) values[i] = to_bf16(to_float(values[i]) * kind);
      } else {
        values[head * 37 % kHeadDim] = to_bf16(kind);
      }
    }
  };
  expect_same(Setup({.heads = 64, .ratio = 4, .top_k = 512}, 1, 3000), {{0, 2000, kAlone}}, 2, change);
  expect_same_in_runs(Setup({.heads = 64, .ratio = 128}, 1, 3000), {{0, 2000, 200}}, 2, change);
  expect_same_in_runs(Setup({.heads = 64, .ratio = 0}, 1, 3000), {{0, 2000, 200}}, 2, change);
}

// Few enough accesses for tools, several tokens for each warpgroup of a block, and blocks with one token.
TEST_F(AttendQueriesGpuTest, OneRunOfTokens) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    const Setup setup({.heads = 64, .ratio = ratio}, 2, 400);
    expect_same_runs(setup, {{0, 250, 7}, {1, 126, 3}}, 6, 2);
    expect_same_runs(setup, {{0, 250, 3}}, 1);
  }
}

TEST_F(AttendQueriesGpuTest, RunsOfEveryCut) {
  for (const std::int32_t ratio : {0, 128}) {
    const Setup setup({.heads = 64, .ratio = ratio}, 1, 8300);
    for (const std::int32_t start : {0, 1, 2, 3, 127, 128, 130, 7890}) {
      for (const std::int32_t count : {133, 266}) {
        SCOPED_TRACE(testing::Message() << "ratio " << ratio << " start " << start << " count " << count);
        expect_same_in_runs(setup, {{0, start, count}});
        if (HasFailure()) return;
      }
      for (const std::int32_t block_tokens : {1, 2, 3, 7}) {
        SCOPED_TRACE(testing::Message() << "ratio " << ratio << " start " << start << " blocks of " << block_tokens);
        expect_same_runs(setup, {{0, start, 64}}, block_tokens);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttendQueriesGpuTest, RunsOfSeveralSequencesAndHeads) {
  for (const std::int32_t ratio : {0, 128}) {
    for (const std::int32_t heads : {64, 128}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << " heads " << heads);
      const Setup setup({.heads = heads, .ratio = ratio}, 5, 3000);
      const std::vector<AttendPart> parts = {{1, 5, 40}, {0, 2400, 60}, {2, 900, 41}, {3, 0, 30}, {4, 2950, 49}};
      expect_same_in_runs(setup, parts, 11);
      expect_same_runs(setup, parts, 70, 11);
    }
  }
}

TEST_F(AttendQueriesGpuTest, RunsWithoutFrequencies) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    expect_same_in_runs(Setup({.heads = 64, .ratio = ratio, .rotates = false}, 1, 3000), {{0, 2000, 150}});
  }
}

// Tokens are taken alone, and their rows once more, where a run has rows that are no numbers.
TEST_F(AttendQueriesGpuTest, RunsWithRowsThatAreNoNumbers) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    expect_same_in_runs(Setup({.heads = 64, .ratio = ratio}, 1, 3000), {{0, 1000, 300}}, 0, [](AttendInputs& in) {
      in.staged[static_cast<std::size_t>(in.staged_shape.data_offset(70) + 13)] = std::byte{0x7f};
    });
  }
}

// What one launch gets right by luck: copies, norms and products of a slot of the ring follow one another at any pace.
TEST_F(AttendQueriesGpuTest, RunsOnceAndAgain) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    const Setup setup({.heads = 64, .ratio = ratio}, 1, 8192);
    expect_same_runs(setup, {{0, 7000, 264}}, 4, 0, 25);
  }
}

TEST_F(AttendQueriesGpuTest, RunsOfALongPrefill) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    expect_same_in_runs(Setup({.heads = 64, .ratio = ratio}, 1, 8192), {{0, 0, 8192}});
  }
}

// Clusters and pairs of blocks have no such norm: query() is told so, and attend refuses.
TEST_F(AttendQueriesGpuTest, RefusedWhereOtherKernelsServe) {
  for (const auto& [ratio, tokens] : {std::pair{4, 4}, {4, 64}}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio) + " tokens " + std::to_string(tokens));
    const Setup setup({.heads = 64, .ratio = ratio, .top_k = ratio == 4 ? 512 : 0}, 1, 3000);
    const AttendInputs inputs(setup.shape, setup.bank, 1, {{0, 2000, tokens}});
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
    AttendParams params = arrays.params;
    const Result<bool> norms = gpu().ops().norms_queries(params);
    ASSERT_OK(norms);
    EXPECT_FALSE(*norms);
    params.query_eps = kEps;
    EXPECT_TRUE(fails_with(gpu().ops().attend(params), StatusCode::kInvalidArgument, {"attend", "norms_queries"}));
  }
}

}  // namespace
}  // namespace dsv4rt::test
