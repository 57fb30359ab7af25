// Queries that attend norms and turns itself, on the GPU: the bytes of query() and attend() one after the other, with
// every kernel that does so.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gpu/support/gpu.h"
#include "support/attend_case.h"

namespace dsv4rt::test {
namespace {

constexpr float kEps = 1e-6F;

class AttendQueriesGpuTest : public GpuTest {
 protected:
  using Setup = AttendSetup;

  void SetUp() override {
    GpuTest::SetUp();
    if (gpu_backend().ok()) {
      ASSERT_OK(gpu().reserve_scratch(std::size_t{256} << 20));
    }
  }

  static void expect_same(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding = 0,
                          void (*change)(AttendInputs&) = nullptr) {
    AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
    if (change != nullptr) change(inputs);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays itself(gpu(), inputs, setup.pool, blocks.data(), table.data());
    AttendParams params = itself.params;
    const Result<bool> norms = gpu().ops().norms_queries(params);
    ASSERT_OK(norms);
    ASSERT_TRUE(*norms) << "another kernel serves this step";
    params.query_eps = kEps;
    ASSERT_OK(gpu().ops().attend(params));
    std::vector<bf16> actual;
    ASSERT_OK(itself.output(actual));
    std::vector<bf16> queries(inputs.q.size());
    ASSERT_OK(gpu().download(queries.data(), params.q, queries.size() * sizeof(bf16)));
    ASSERT_EQ(std::memcmp(queries.data(), inputs.q.data(), queries.size() * sizeof(bf16)), 0) << "q has changed";

    const AttendArrays before(gpu(), inputs, setup.pool, blocks.data(), table.data());
    ASSERT_OK(gpu().ops().query({.step = before.params.step,
                                 .heads = before.params.heads,
                                 .q = const_cast<bf16*>(before.params.q),
                                 .eps = kEps,
                                 .rope = {before.params.output_rope.inverse_frequency, false}}));
    ASSERT_OK(gpu().ops().attend(before.params));
    std::vector<bf16> expected;
    ASSERT_OK(before.output(expected));
    ASSERT_EQ(actual.size(), expected.size());
    const auto heads = static_cast<std::size_t>(setup.shape.heads);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i].bits, expected[i].bits)
          << "value " << i % kHeadDim << " of head " << i / kHeadDim % heads << " of token " << i / kHeadDim / heads;
    }
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

TEST_F(AttendQueriesGpuTest, Splits) {
  const Setup setup({.heads = 64, .ratio = 128}, 2, 300000);
  expect_same(setup, {{0, 131030, kAlone - 10}, {1, 262143, 10}}, 3);
  expect_same(Setup({.heads = 128, .ratio = 128, .compressed_exponent = 6}, 2, 300000),
              {{0, 131030, kAlone - 50}, {1, 262143, 10}}, 3);
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
}

// Clusters and pairs of blocks, and runs of tokens, have no such norm: query() is told so, and attend refuses.
TEST_F(AttendQueriesGpuTest, RefusedWhereOtherKernelsServe) {
  for (const auto& [ratio, tokens] : {std::pair{4, 4}, {4, 64}, {128, 140}}) {
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
