// Attention to rows that are decoded before, on the GPU: the bytes of packed ones.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/context_split.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/attend/plan.h"
#include "gpu/support/attend_gpu.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

// Steps whose rows are decoded before: the bytes of the same step without room for that, and of each token alone.
class DecodedRows : public AttendGpuTest {
 protected:
  struct Prompt {
    AttendShape shape;
    std::vector<AttendPart> parts;
    std::vector<std::int32_t> probes;  // tokens of the first part that are attended to alone, too
    std::int32_t padding = 0;
    void (*change)(AttendPool&) = nullptr;  // compressed rows
  };

  static void expect_same_bytes(const Prompt& prompt) {
    Setup setup = setup_for(prompt.shape, prompt.parts);
    if (prompt.change != nullptr) prompt.change(setup.pool);
    const cuda::AttendPlan plan = plan_of(setup, prompt.parts, prompt.padding);
    ASSERT_TRUE(plan.decoded) << "another kernel serves this step";
    const auto little = static_cast<std::size_t>(plan.decoded->bytes() * (plan.dense ? 2 : 1) - 1);
    ASSERT_FALSE(plan_of(setup, prompt.parts, prompt.padding, little).decoded);
    const auto decoded = run(gpu(), setup, prompt.parts, prompt.padding);
    for (const std::int32_t token : prompt.probes) {
      const AttendPart& part = prompt.parts.front();
      expect_same(run(gpu(), setup, {{part.slot, part.start + token, 1}}), decoded,
                  static_cast<std::size_t>(token) * static_cast<std::size_t>(prompt.shape.heads) * kHeadDim,
                  "token " + std::to_string(token));
    }
    const std::int32_t end = end_of(prompt.parts) + 900;
    expect_same(run(gpu(), setup, prompt.parts, prompt.padding, end), decoded, 0, "loose bounds");
    ASSERT_OK(gpu().reserve_scratch(little));
    expect_same(run(gpu(), setup, prompt.parts, prompt.padding), decoded, 0, "packed rows");
    ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
  }
};

TEST_F(DecodedRows, OfOneSequence) {
  for (const std::int32_t heads : {64, 128, 40}) {
    for (const std::int32_t start : {0, 1, 100, 131, 1000, 2003}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + " start " + std::to_string(start));
      expect_same_bytes({.shape = {.heads = heads, .ratio = 4, .top_k = 512},
                         .parts = {{0, start, 900}},
                         .probes = {0, 1, 2, 3, 127, 128, 129, 511, 899},
                         .padding = 5});
    }
  }
}

// Not many more than rows are decoded for, and one launch: for tools that follow every access to shared memory.
TEST_F(DecodedRows, OfFewTokens) {
  const std::vector<AttendPart> parts = {{0, 4300, 85}, {1, 0, 5}};
  const Setup setup = setup_for({.heads = 128, .ratio = 4, .top_k = 1024}, parts);
  const cuda::AttendPlan plan = plan_of(setup, parts, 2);
  ASSERT_TRUE(plan.decoded) << "another kernel serves this step";
  const auto decoded = run(gpu(), setup, parts, 2);
  ASSERT_OK(gpu().reserve_scratch(static_cast<std::size_t>(plan.decoded->bytes()) - 1));
  expect_same(run(gpu(), setup, parts, 2), decoded, 0, "packed rows");
}

// Of sequences that begin, go on and end anywhere, with slots in another order.
TEST_F(DecodedRows, OfSeveralSequences) {
  for (const std::int32_t ratio : {4, 128}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio));
    expect_same_bytes({.shape = {.heads = 64, .ratio = ratio, .top_k = ratio == 4 ? 512 : 0},
                       .parts = {{3, 1201, 700}, {0, 0, 333}, {5, 64, 1}, {1, 2047, 500}, {4, 130, 2}},
                       .probes = {0, 5, 126, 127, 699},
                       .padding = 3});
  }
}

// Other windows than runs of tokens take, and rows that are not selected.
TEST_F(DecodedRows, OfOtherShapes) {
  expect_same_bytes(
      {.shape = {.heads = 64, .ratio = 0, .window = 100}, .parts = {{0, 500, 2500}}, .probes = {0, 99, 100, 2499}});
  expect_same_bytes({.shape = {.heads = 64, .ratio = 4, .window = 60, .ring_rows = 60, .block_rows = 16},
                     .parts = {{1, 1000, 1200}},
                     .probes = {0, 59, 60, 1199}});
  expect_same_bytes({.shape = {.heads = 128, .ratio = 4, .top_k = 1024, .rotates = false, .spare_rows = 77},
                     .parts = {{0, 4000, 900}},
                     .probes = {0, 450, 899}});
}

// Splits of many rows, beside tokens with few; beside pairs of blocks, whose rows are packed; with other powers.
TEST_F(DecodedRows, OfDenseRows) {
  expect_same_bytes(
      {.shape = {.heads = 64, .ratio = 128}, .parts = {{0, 131100, 250}}, .probes = {0, 98, 99, 100, 249}});
  expect_same_bytes({.shape = {.heads = 128, .ratio = 4}, .parts = {{0, 5000, 300}, {1, 20, 100}}, .probes = {0, 299}});
  expect_same_bytes({.shape = {.heads = 64, .ratio = 128}, .parts = {{0, 1 << 20, 60}}, .probes = {0, 59}});
  expect_same_bytes({.shape = {.heads = 64, .ratio = 128, .compressed_exponent = 6},
                     .parts = {{0, 131100, 250}},
                     .probes = {0, 98, 99, 249}});
}

// Codes and scales that are no numbers.
TEST_F(DecodedRows, OfNoNumbers) {
  expect_same_bytes({.shape = {.heads = 64, .ratio = 4},
                     .parts = {{0, 700, 700}},
                     .probes = {0, 350, 699},
                     .change = [](AttendPool& pool) {
                       const BlockShape& shape = pool.rows_shape;
                       std::byte* block = pool.bytes.data() + pool.table[0] * shape.block_bytes;
                       block[shape.data_offset(5) + 100] = std::byte{0x7f};
                       block[shape.data_offset(6) + 447] = std::byte{0xff};
                       block[shape.scale_offset(7) + 3] = std::byte{0xff};
                       block[shape.scale_offset(8)] = std::byte{0xfe};
                     }});
}

// Tokens of a step whose other rows are other ranks': staged rows and sequences are the whole step's.
TEST_F(DecodedRows, OfAPartOfAStep) {
  const Setup setup({.heads = 64, .ratio = 4, .top_k = 512}, 2, 1800);
  const AttendInputs inputs(setup.shape, setup.bank, setup.slots, {{0, 600, 700}, {1, 1000, 800}});
  const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
  const AttendArrays whole(gpu(), inputs, setup.pool, blocks.data(), table.data());
  ASSERT_OK(gpu().ops().attend(whole.params));
  std::vector<bf16> expected;
  ASSERT_OK(whole.output(expected));
  const AttendArrays parts(gpu(), inputs, setup.pool, blocks.data(), table.data());
  const auto device = cuda::CudaDevice::create(0);
  ASSERT_OK(device);
  for (const RowRange rows : {RowRange{0, 640}, RowRange{640, 860}}) {
    AttendParams params = parts.params;
    params.step = rows_of_step(params.step, rows);
    params.q += std::int64_t{rows.first} * setup.shape.heads * kHeadDim;
    params.o += std::int64_t{rows.first} * setup.shape.heads * kHeadDim;
    params.topk_indices += rows.first * params.topk_stride;
    params.topk_count += rows.first;
    const auto plan = cuda::plan_attend(**device, params, kScratchBytes, kZeroBytes);
    ASSERT_OK(plan);
    ASSERT_TRUE(plan->decoded) << "another kernel serves this part";
    ASSERT_OK(gpu().ops().attend(params));
  }
  std::vector<bf16> actual;
  ASSERT_OK(parts.output(actual));
  expect_same(actual, expected, 0, "parts");
}

// Scales that decode in two products, and rows of which weights are relative to a power of their own.
TEST_F(DecodedRows, OfScalesFarApart) {
  const std::vector<AttendPart> parts = {{0, 1000, 700}, {1, 90, 50}};
  expect_scales({.heads = 64, .ratio = 4, .top_k = 512}, 2, parts, 1700);
  expect_agrees_far_apart({.heads = 64, .ratio = 4, .top_k = 512}, 2, parts, 1700);
  for (const std::int32_t exponent : kFarExponents) {
    expect_same_bytes({.shape = {.heads = 64, .ratio = 4, .top_k = 512, .compressed_exponent = exponent},
                       .parts = parts,
                       .probes = {0, 350, 699}});
  }
}

}  // namespace
}  // namespace dsv4rt::test
