// What CPU operations take of the scratch memory: no more than planned, and a status where there is less.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "unit/backend/linear_matrix.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr std::size_t kCanaryBytes = 4096;

// Two groups of heads that read parts of one x, as an output projection does, and a third matrix on the first part.
struct GroupedLinear {
  static constexpr std::int64_t kInputs = 256;
  static constexpr std::int64_t kOutputs = 48;
  static constexpr std::int64_t kMatrices = 3;

  explicit GroupedLinear(Backend& backend, std::int32_t most_tokens)
      : x(random_bf16(5, static_cast<std::size_t>(most_tokens * 2 * kInputs))) {
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      test::fill_matrix(matrices[i], WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, kOutputs, kInputs,
                        static_cast<std::uint32_t>(i));
      weights.push_back(backend.pack_linear(matrices[i].host).value());
    }
  }

  static StepShapes shapes(std::int32_t tokens) {
    StepShapes shapes{.max_tokens = tokens};
    shapes.linears.push_back({.matrices = kMatrices, .inputs = 2, .in_features = kInputs, .out_features = kOutputs});
    return shapes;
  }

  Status run(Ops& ops, std::int32_t tokens, std::vector<float>& y) const {
    y.assign(static_cast<std::size_t>(tokens * kMatrices * kOutputs), -1.0F);
    std::vector<LinearCall> calls;
    for (std::int64_t i = 0; i < kMatrices; ++i) {
      calls.push_back({.x = x.data() + i % 2 * kInputs,
                       .x_stride = 2 * kInputs,
                       .weight = weights[static_cast<std::size_t>(i)].get(),
                       .y = y.data() + i * kOutputs,
                       .y_stride = kMatrices * kOutputs,
                       .output = OutputType::kF32});
    }
    return ops.linear(tokens, calls);
  }

  std::array<test::TestMatrix, kMatrices> matrices;
  std::vector<std::unique_ptr<PackedLinear>> weights;
  std::vector<bf16> x;
};

TEST(CpuScratch, LinearsKeepToWhatIsPlannedForTheLargestStep) {
  constexpr std::int32_t kMostTokens = 300;
  const auto backend = create_cpu_backend({.threads = 1, .max_isa = {}, .on_warning = {}}).value();
  const GroupedLinear linear(*backend, kMostTokens);
  for (const int threads : {1, 3, 16}) {
    const auto planned =
        static_cast<std::size_t>(cpu::CpuOps::scratch_bytes(GroupedLinear::shapes(kMostTokens), threads));
    cpu::AlignedBytes memory;
    ASSERT_TRUE(memory.reserve(planned + kCanaryBytes));
    std::fill_n(memory.data(), planned + kCanaryBytes, std::byte{0x5a});
    const Scratch scratch(memory.data(), planned);
    const cpu::ThreadTeam team(threads);
    cpu::CpuOps ops(team, scratch, cpu::detect_isa_level());
    TestOps reference(1);
    for (const std::int32_t tokens : {1, 2, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 100, 129, 255, 256, 257, 300}) {
      std::vector<float> y;
      std::vector<float> expected;
      const Status status = linear.run(ops, tokens, y);
      ASSERT_TRUE(status.ok()) << tokens << " tokens, " << threads << " threads: " << status.to_string();
      ASSERT_TRUE(linear.run(*reference.operator->(), tokens, expected).ok());
      ASSERT_EQ(y, expected) << tokens << " tokens, " << threads << " threads";
    }
    for (std::size_t i = planned; i < planned + kCanaryBytes; ++i) ASSERT_EQ(memory.data()[i], std::byte{0x5a});
  }
}

TEST(CpuScratch, AnOperationWithoutItsScratchIsRefusedByName) {
  const auto backend = create_cpu_backend({.threads = 2, .max_isa = {}, .on_warning = {}}).value();
  const GroupedLinear linear(*backend, 8);
  std::vector<float> y;
  const Status refused = linear.run(backend->ops(), 8, y);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("linear needs"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("0 B were planned"), std::string::npos) << refused.message();
  const auto bytes = static_cast<std::size_t>(backend->scratch_bytes(GroupedLinear::shapes(8)));
  ASSERT_TRUE(backend->reserve_scratch(bytes).ok());
  EXPECT_TRUE(linear.run(backend->ops(), 8, y).ok());
}

// What grows with the context is bounded: index scores by their budget, never context times tokens; a worker's
// attention scores by the rows that a token reads.
TEST(CpuScratch, LongContextsTakeBoundedMemory) {
  StepShapes shapes{.max_tokens = 2048, .max_context_tokens = 1 << 20, .heads = 64, .window = 128};
  shapes.compressed = {{.ratio = 4, .index_heads = 64, .top_k = 512}, {.ratio = 128}};
  const std::int64_t one = cpu::CpuOps::scratch_bytes(shapes, 1);
  EXPECT_LE(one, std::int64_t{24} << 20);
  EXPECT_LE(cpu::CpuOps::scratch_bytes(shapes, 64), std::int64_t{300} << 20);
  shapes.max_tokens = 4096;
  EXPECT_EQ(cpu::CpuOps::scratch_bytes(shapes, 1), one);
}

}  // namespace
}  // namespace dsv4rt
