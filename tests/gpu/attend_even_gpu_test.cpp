// Attention in steps whose tokens blocks hand on to one another, on the GPU: the bytes of steps in which none does.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/attend/block_launch.h"
#include "gpu/support/attend_gpu.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

class HandedOn : public AttendGpuTest {
 protected:
  struct Step {
    AttendShape shape;
    std::vector<AttendPart> parts;
    std::int32_t padding = 0;
    void (*change)(AttendPool&) = nullptr;
    float query_scale = 1.0F;  // scales the queries of head 21
  };

  // The step twice, with loose bounds, and its parts in steps of few tokens, which clusters take.
  static void expect_same_bytes(const Step& step) {
    Setup setup = setup_for(step.shape, step.parts);
    if (step.change != nullptr) step.change(setup.pool);
    setup.query_scale = step.query_scale;
    setup.scaled_head = 21;
    const cuda::AttendPlan plan = plan_of(setup, step.parts, step.padding);
    ASSERT_TRUE(plan.warpgroup && plan.warpgroup->even) << "no token is handed on";
    const auto whole = run(gpu(), setup, step.parts, step.padding);
    expect_same(run(gpu(), setup, step.parts, step.padding), whole, 0, "again");
    const std::int32_t end = end_of(step.parts) + 900;
    expect_same(run(gpu(), setup, step.parts, step.padding, end), whole, 0, "loose bounds");
    const std::size_t width = static_cast<std::size_t>(step.shape.heads) * kHeadDim;
    std::size_t token = 0;
    for (const AttendPart& part : step.parts) {
      constexpr std::int32_t kFew = 30;
      for (std::int32_t at = 0; at < part.count; at += kFew) {
        const std::int32_t count = std::min(kFew, part.count - at);
        if (count > 1 || token % 3 == 0) {  // a third of the tokens of a decode step
          expect_same(run(gpu(), setup, {{part.slot, part.start + at, count}}), whole, token * width,
                      "token " + std::to_string(token));
        }
        token += static_cast<std::size_t>(count);
      }
    }
  }
};

TEST_F(HandedOn, OfSelectedRows) {
  for (const std::int32_t tokens : {133, 136, 150, 155}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens");
    expect_same_bytes({.shape = {.ratio = 4, .top_k = 512}, .parts = decode(tokens, 2600), .padding = 3});
  }
}

TEST_F(HandedOn, OfManyHeads) {
  for (const std::int32_t tokens : {67, 80}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens");
    expect_same_bytes({.shape = {.heads = 128, .ratio = 4, .top_k = 1024}, .parts = decode(tokens, 4300)});
  }
  expect_same_bytes({.shape = {.heads = 80, .ratio = 4, .top_k = 512}, .parts = decode(70, 2600), .padding = 1});
}

TEST_F(HandedOn, OfRowsThatAreNotSelected) {
  expect_same_bytes({.shape = {.ratio = 4}, .parts = decode(140, 3600)});
}

// Whole rounds in front.
TEST_F(HandedOn, OfSeveralRounds) {
  expect_same_bytes({.shape = {.ratio = 4, .top_k = 512}, .parts = decode(272, 2600), .padding = 2});
}

TEST_F(HandedOn, OfOneSequence) {
  expect_same_bytes({.shape = {.ratio = 4, .top_k = 512}, .parts = {{0, 1500, 140}}, .padding = 2});
  expect_same_bytes({.shape = {.ratio = 4, .top_k = 512}, .parts = {{0, 2000, 135}}, .padding = 2});
}

// Heads with a shift: the tail's block takes the token again, all of it.
TEST_F(HandedOn, FarFromTheWindow) {
  for (const std::int32_t exponent : kFarExponents) {
    SCOPED_TRACE("exponent " + std::to_string(exponent));
    expect_same_bytes({.shape = {.ratio = 4, .top_k = 512, .compressed_exponent = exponent},
                       .parts = decode(150, 2600),
                       .padding = 3});
  }
}

// The same of one head alone: lanes of a warp differ.
TEST_F(HandedOn, OneHeadFarFromTheWindow) {
  expect_same_bytes({.shape = {.ratio = 4, .top_k = 512}, .parts = decode(140, 2600), .query_scale = 256});
}

// Whatever lay there before, and flags are zero again.
TEST_F(HandedOn, NothingOfTheStepBefore) {
  for (const std::int32_t exponent : {0, 4}) {
    const Setup setup({.ratio = 4, .top_k = 512, .compressed_exponent = exponent}, 140, 2700);
    const auto parts = decode(140, 2600);
    const cuda::AttendPlan plan = plan_of(setup, parts);
    ASSERT_TRUE(plan.warpgroup && plan.warpgroup->even);
    const cuda::EvenShares& shares = *plan.warpgroup->even;
    const auto expected = run(gpu(), setup, parts);
    const AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
    const std::vector<std::byte> poison(static_cast<std::size_t>(shares.bytes()), std::byte{0xff});
    std::vector<std::byte> zeros(static_cast<std::size_t>(shares.zero_bytes()));
    const DeviceArray<std::byte> memory(gpu(), poison);
    const DeviceArray<std::byte> flags(gpu(), zeros);
    const auto device = cuda::CudaDevice::create(0);
    ASSERT_OK(device);
    for (int time = 0; time < 2; ++time) {
      ASSERT_OK(gpu().upload(memory.data(), poison.data(), poison.size()));
      ASSERT_OK(
          cuda::launch_even_blocks(**device, arrays.params, *plan.warpgroup, memory.data(), flags.data(), nullptr));
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      std::vector<bf16> out;
      ASSERT_OK(arrays.output(out));
      expect_same(out, expected, 0, "exponent " + std::to_string(exponent));
      ASSERT_OK(gpu().download(zeros.data(), flags.data(), zeros.size()));
      for (const std::byte flag : zeros) ASSERT_EQ(flag, std::byte{0});
    }
  }
}

TEST_F(HandedOn, OfNoNumbers) {
  expect_same_bytes({.shape = {.ratio = 4}, .parts = decode(140, 3600), .change = [](AttendPool& pool) {
                       const BlockShape& shape = pool.rows_shape;
                       for (std::size_t entry = 0; entry < pool.table.size(); entry += 7) {
                         std::byte* block = pool.bytes.data() + pool.table[entry] * shape.block_bytes;
                         block[shape.data_offset(5) + 100] = std::byte{0x7f};
                         block[shape.scale_offset(7) + 3] = std::byte{0xff};
                       }
                     }});
}

// So little work that tools can follow every access.
TEST_F(HandedOn, OneStep) {
  const Setup setup({.heads = 16, .ratio = 4, .top_k = 512}, 136, 2200);
  const auto parts = decode(136, 2100);
  ASSERT_TRUE(plan_of(setup, parts).warpgroup->even);
  run(gpu(), setup, parts);
}

}  // namespace
}  // namespace dsv4rt::test
