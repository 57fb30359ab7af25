// write_kv and the single operations it is made of: the GPU leaves the bytes that the CPU leaves, however the
// step is cut, launched or batched.
#include <array>
#include <cmath>
#include <cuda_runtime_api.h>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "backend/cuda/cuda_ops.h"
#include "backend/row_ops.h"
#include "gpu/support/device_step.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "unit/backend/rows_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;
using test::DeviceStep;

using Layer = RowsLayer;
using Memory = RowsMemory;
using Kind = LayerKind;

class WriteKvGpuTest : public test::GpuTest {
 protected:
  // Memory after `run(ops, params)` on the GPU; `memory` is what was there before.
  template <class Run>
  static Memory on_gpu(Memory memory, const TestStep& step, const Run& run) {
    auto device = gpu().allocate(memory.bytes().size(), "memory").value();
    EXPECT_OK(gpu().upload(device.data(), memory.bytes().data(), memory.bytes().size()));
    const DeviceStep device_step(gpu(), step.view());
    EXPECT_OK(run(gpu().row_ops(), memory.params(device_step.view(), device.data())));
    EXPECT_OK(gpu().download(memory.bytes().data(), device.data(), memory.bytes().size()));
    memory.clear_padding(step.view().counts.valid_tokens);
    return memory;
  }
  static Memory on_cpu(Memory memory, const TestStep& step) {
    TestOps ops;
    EXPECT_OK(ops->write_kv(memory.params(step.view(), memory.bytes().data())));
    memory.clear_padding(step.view().counts.valid_tokens);
    return memory;
  }

  // The CPU, the GPU in one call and the GPU in single calls leave the same bytes.
  static void expect_same(const Layer& layer, const std::vector<Part>& parts, std::int32_t padding, std::uint64_t seed,
                          const std::string& what) {
    const TestStep step(parts, padding, layer.ratios());
    std::int32_t slots = 0;
    for (const Part& part : parts) slots = std::max(slots, part.slot + 1);
    const Memory before(layer, step.tokens(), slots, step.view().counts.context_end, seed);
    const Memory expected = on_cpu(before, step);
    const Memory together = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
    EXPECT_EQ(together.difference(expected), "") << what << ", write_kv against the CPU";
    const Memory single = on_gpu(before, step, write_kv_one_by_one);
    EXPECT_EQ(single.difference(together), "") << what << ", single operations against write_kv";
  }
};

constexpr std::array kKinds{Kind::kSwa, Kind::kCsa, Kind::kHca};
const char* name_of(Kind kind) {
  return kind == Kind::kSwa ? "SWA" : kind == Kind::kCsa ? "CSA" : "HCA";
}

// One token each of sequences at every residue of both ratios that matters, and far out.
std::vector<Part> single_tokens() {
  std::vector<Part> parts;
  std::int32_t slot = 0;
  for (const std::int32_t position :
       {0,   1,   2,   3,   4,   5,   6,   7,   8,   11,  15,   16,    31,    126,    127,    128,    129,
        130, 131, 254, 255, 256, 257, 383, 511, 512, 513, 4095, 65535, 65536, 131071, 999999, 1048575}) {
    parts.push_back({slot++, position, 1});
  }
  return parts;
}

// As ranks share a step.
TEST_F(WriteKvGpuTest, PiecesOfTheTokensLeaveTheBytesOfTheWhole) {
  for (const Kind kind : kKinds) {
    for (const std::int32_t longest : {260, 1500}) {
      const Layer layer{.kind = kind};
      const TestStep step({{2, 127, 1}, {0, 0, 130}, {1, 3, 5}, {3, 120, longest}}, 3, layer.ratios());
      const Memory before(layer, step.tokens(), 4, step.view().counts.context_end, 4);
      const Memory whole = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
      const Memory pieces = on_gpu(before, step, [&](RowOps& ops, const auto& p) {
        return write_kv_in_pieces(ops, p, {0, 1, 48, 133, 134, 390, step.tokens()});
      });
      EXPECT_EQ(pieces.difference(whole), "") << name_of(kind) << ", " << longest << " tokens";
    }
  }
}

TEST_F(WriteKvGpuTest, EveryFormatAndPosition) {
  for (const Kind kind : kKinds) {
    for (int format = 0; format < 4; ++format) {
      const Layer layer{.kind = kind,
                        .row_format = static_cast<RowFormat>(format),
                        .key_format = static_cast<IndexKeyFormat>(format)};
      expect_same(layer, single_tokens(), 3, 100 + static_cast<std::uint64_t>(format),
                  std::string(name_of(kind)) + " format " + std::to_string(format));
    }
  }
}

TEST_F(WriteKvGpuTest, HeadCounts) {
  for (const std::int32_t heads : {1, 2, 3, 4, 7, 8, 16, 64, 128}) {
    const Layer layer{.kind = Kind::kCsa, .heads = heads, .index_heads = heads};
    expect_same(layer, {{0, 3, 1}, {1, 70, 2}}, 1, 7, std::to_string(heads) + " heads");
  }
}

TEST_F(WriteKvGpuTest, SeedProfile) {
  for (const Kind kind : kKinds) {
    Layer layer{.kind = kind, .row_format = RowFormat::kFp8Row, .key_format = IndexKeyFormat::kNvfp4};
    layer.profile = Profile::seed();
    expect_same(layer, single_tokens(), 0, 9, name_of(kind));
  }
}

TEST_F(WriteKvGpuTest, ChunksOfEveryLengthAndStart) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 2, .index_heads = 2};
    for (const std::int32_t count : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 63, 127, 128, 129, 200, 257}) {
      for (const std::int32_t start : {0, 1, 3, 5, 126, 127, 128, 130, 511}) {
        expect_same(layer, {{1, start, count}}, count % 3, static_cast<std::uint64_t>(1000 * count + start),
                    std::string(name_of(kind)) + " " + std::to_string(count) + " from " + std::to_string(start));
      }
    }
  }
}

TEST_F(WriteKvGpuTest, MixedSteps) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 3};
    expect_same(layer, {{4, 127, 1}, {0, 0, 130}, {2, 3, 5}, {1, 255, 1}, {3, 100, 300}, {5, 7, 1}}, 5, 12,
                name_of(kind));
    expect_same(layer, {{0, 0, 1300}, {1, 1000, 1100}}, 0, 13, name_of(kind));
  }
}

// Rows of other lengths than the model's.
TEST_F(WriteKvGpuTest, OtherHcaRatios) {
  for (const std::int32_t ratio : {9, 12, 33, 127}) {
    const Layer layer{.kind = Kind::kHca, .heads = 1, .hca_ratio = ratio};
    expect_same(layer, {{0, 0, 3 * ratio}, {1, 2 * ratio - 1, 1}, {2, ratio - 2, ratio + 3}}, 1, 61,
                "HCA ratio " + std::to_string(ratio));
  }
}

// Up to index keys of many rows.
TEST_F(WriteKvGpuTest, OtherCsaRatios) {
  for (const std::int32_t ratio : {3, 5, 8, 64}) {
    const Layer layer{.kind = Kind::kCsa, .heads = 1, .index_heads = 1, .csa_ratio = ratio};
    expect_same(layer, {{0, 0, 3 * ratio}, {1, 2 * ratio - 1, 1}, {2, ratio - 1, 1}, {3, ratio - 2, ratio + 3}}, 1, 62,
                "CSA ratio " + std::to_string(ratio));
  }
}

TEST_F(WriteKvGpuTest, MoreCompletingTokensThanAClusterHasBlocks) {
  const Layer layer{.kind = Kind::kHca, .heads = 1, .hca_ratio = 12};
  std::vector<Part> parts;
  for (std::int32_t i = 0; i < 650; ++i) parts.push_back({i, 12 * (i % 3) + (i % 5 == 0 ? 4 : 11), 1});
  expect_same(layer, parts, 0, 63, "650 completing rows");
}

// Clusters look at as many tokens as a word has bits, and some have none that completes a row.
TEST_F(WriteKvGpuTest, ClustersOfManyTokens) {
  for (const std::int32_t ratio : {12, 128}) {
    const Layer layer{.kind = Kind::kHca, .heads = 1, .hca_ratio = ratio};
    expect_same(layer, {{0, 5, 6000}, {1, 300, 40}}, 2, 17, "ratio " + std::to_string(ratio));
  }
}

// Verified drafts: with a ring that holds them all stores run beside their readers, one token more and they follow.
TEST_F(WriteKvGpuTest, VerifyWidthsUpToTheRingAndOneBeyond) {
  for (const Kind kind : kKinds) {
    for (const std::int32_t draft : {0, 1, 3, 7}) {
      const Layer layer{.kind = kind, .heads = 2, .draft_budget = draft};
      for (const std::int32_t width : {draft + 1, draft + 2}) {
        std::vector<Part> parts;
        for (std::int32_t i = 0; i < 12; ++i) parts.push_back({i, i, width});
        for (std::int32_t i = 0; i < 12; ++i) parts.push_back({12 + i, 120 + i, width});
        const TestStep step(parts);
        EXPECT_EQ(ring_keeps_needed_rows(8 + draft, 8, step.view().counts), width == draft + 1);
        expect_same(layer, parts, 0, static_cast<std::uint64_t>(draft),
                    std::string(name_of(kind)) + " draft " + std::to_string(draft) + " width " + std::to_string(width));
      }
    }
  }
}

// A token's bytes do not depend on the tokens beside it.
TEST_F(WriteKvGpuTest, BatchOrAlone) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 5};
    const std::vector<Part> parts = single_tokens();
    const TestStep batch(parts, 0, layer.ratios());
    const Memory before(layer, batch.tokens(), batch.tokens(), batch.view().counts.context_end, 21);
    Memory together = on_gpu(before, batch, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
    together.clear_staged();

    Memory alone = before;
    auto device = gpu().allocate(alone.bytes().size(), "memory").value();
    ASSERT_OK(gpu().upload(device.data(), alone.bytes().data(), alone.bytes().size()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const TestStep step({parts[i]}, 0, layer.ratios());
      const DeviceStep device_step(gpu(), step.view());
      ASSERT_OK(gpu().ops().write_kv(alone.params(device_step.view(), device.data(), static_cast<std::int64_t>(i))));
    }
    ASSERT_OK(gpu().download(alone.bytes().data(), device.data(), alone.bytes().size()));
    alone.clear_staged();
    EXPECT_EQ(alone.difference(together), "") << name_of(kind);
  }
}

// A sequence fed in any cuts leaves the rings and rows of one chunk.
TEST_F(WriteKvGpuTest, ChunksOrTokens) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 1, .index_heads = 1, .draft_budget = 3};
    constexpr std::int32_t kTokens = 300;
    const TestStep whole_step({{1, 0, kTokens}}, 0, layer.ratios());
    const Memory before(layer, kTokens, 2, kTokens, 23);
    Memory whole = on_gpu(before, whole_step, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
    whole.clear_staged();
    for (const std::vector<std::int32_t>& cuts :
         {std::vector<std::int32_t>(kTokens, 1), {127, 1, 128, 5, 39}, {3, 129, 131, 37}, {1, 2, 3, 4, 5, 6, 7, 272}}) {
      Memory memory = before;
      auto device = gpu().allocate(memory.bytes().size(), "memory").value();
      ASSERT_OK(gpu().upload(device.data(), memory.bytes().data(), memory.bytes().size()));
      std::int32_t start = 0;
      for (const std::int32_t count : cuts) {
        const TestStep step({{1, start, count}}, 0, layer.ratios());
        const DeviceStep device_step(gpu(), step.view());
        ASSERT_OK(gpu().ops().write_kv(memory.params(device_step.view(), device.data(), start)));
        start += count;
      }
      ASSERT_EQ(start, kTokens);
      ASSERT_OK(gpu().download(memory.bytes().data(), device.data(), memory.bytes().size()));
      memory.clear_staged();
      EXPECT_EQ(memory.difference(whole), "") << name_of(kind) << " in " << cuts.size() << " steps";
    }
  }
}

// Values at the ends of the BF16 range take the same roundings.
TEST_F(WriteKvGpuTest, ExtremeQueries) {
  const Layer layer{.kind = Kind::kSwa, .heads = 8};
  const TestStep step({{0, 5, 1}});
  Memory before(layer, 1, 1, 6, 31);
  auto* q = reinterpret_cast<bf16*>(before.bytes().data());
  Random random(33);
  for (int i = 0; i < 8 * kHeadDim; ++i) {
    const int head = i / kHeadDim;
    const float scales[8] = {0.0F, 0x1p-130F, 0x1p-100F, 0x1p-70F, 1e-3F, 1e3F, 0x1p60F, 0x1p63F};
    q[i] = to_bf16(random.normal() * scales[head]);
  }
  const Memory expected = on_cpu(before, step);
  const Memory actual = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
  EXPECT_EQ(actual.difference(expected), "");
}

// From 1,024 tokens on a warp takes up to sixteen heads of a token, and threads make window rows one after the other.
TEST_F(WriteKvGpuTest, ManyTokensOfEveryFormat) {
  for (const std::int32_t heads : {1, 5, 18, 64}) {
    for (int format = 0; format < 4; ++format) {
      const Layer layer{.kind = Kind::kCsa,
                        .heads = 1,
                        .index_heads = heads,
                        .row_format = static_cast<RowFormat>(format),
                        .key_format = static_cast<IndexKeyFormat>(format)};
      expect_same(layer, {{0, 5, 1021}, {1, 70, 6}}, 3, static_cast<std::uint64_t>(heads),
                  std::to_string(heads) + " heads, format " + std::to_string(format));
    }
  }
}

// Values of all magnitudes and none, halfway between codes, and such as are not finite.
TEST_F(WriteKvGpuTest, ExtremeIndexQueries) {
  constexpr std::int32_t kHeads = 8;
  const float scales[kHeads] = {0.0F, 0x1p-133F, 0x1p-127F, 0x1p-60F, 0.25F, 0x1p20F, 0x1p100F, 0x1p124F};
  const float odd_ones[] = {NAN, -NAN, INFINITY, -INFINITY, -0.0F, 0x1p-133F};
  for (const bool hadamard : {false, true}) {
    for (int format = 0; format < 4; ++format) {
      Layer layer{
          .kind = Kind::kCsa, .heads = 1, .index_heads = kHeads, .key_format = static_cast<IndexKeyFormat>(format)};
      layer.profile.index_hadamard = hadamard;
      layer.profile.index_rope = hadamard;
      const TestStep step({{0, 5, 8}}, 0, layer.ratios());
      Memory before(layer, step.tokens(), 1, step.view().counts.context_end, 34);
      bf16* const q = before.params(step.view(), before.bytes().data()).index_query->q;
      Random random(35);
      for (int i = 0; i < step.tokens() * kHeads * kIndexHeadDim; ++i) {
        const float scale = scales[i / kIndexHeadDim % kHeads];
        const bool halfway = i / kIndexHeadDim / kHeads % 2 == 0;
        const float value = halfway ? static_cast<float>(random.bits() % 49) - 24 : static_cast<float>(random.normal());
        q[i] = to_bf16(value * scale);
        const bool any = i / kIndexHeadDim / kHeads >= 4;  // in the last tokens alone
        if (any && random.bits() % 200 == 0) q[i] = to_bf16(odd_ones[random.bits() % std::size(odd_ones)]);
      }
      Memory expected = on_cpu(before, step);
      Memory actual = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
      int not_numbers = 0;
      for (Memory* memory : {&expected, &actual}) {  // one NaN is as good as another
        bf16* const values = memory->params(step.view(), memory->bytes().data()).index_query->q;
        for (int i = 0; i < step.tokens() * kHeads * kIndexHeadDim; ++i) {
          if (!std::isnan(to_float(values[i]))) continue;
          values[i] = to_bf16(NAN);
          ++not_numbers;
        }
      }
      EXPECT_EQ(actual.difference(expected), "") << "format " << format << (hadamard ? ", Hadamard" : "");
      EXPECT_EQ(not_numbers > 0, format >= 2) << "E2M1 has no NaN, other formats do";
    }
  }
}

TEST_F(WriteKvGpuTest, CapturedEqualsEager) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 4};
    const TestStep step(single_tokens(), 2, layer.ratios());
    const Memory before(layer, step.tokens(), step.tokens(), step.view().counts.context_end, 41);
    const Memory eager = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.write_kv(p); });
    const Memory replayed = on_gpu(before, step, [](Ops&, const WriteKvParams& p) -> Status {
      cudaStream_t stream = nullptr;
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda::Scratch scratch;
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      const auto device = test::describe_gpu();
      if (device == nullptr) return {StatusCode::kInternal, "no device"};
      cuda::CudaOps ops(*device, stream, scratch);
      EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      EXPECT_OK(ops.write_kv(p));
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      std::size_t nodes = 0;
      EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
      EXPECT_EQ(nodes, 1U);  // decode is one launch
      EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      return {};
    });
    EXPECT_EQ(replayed.difference(eager), "") << name_of(kind);
  }
}

TEST_F(WriteKvGpuTest, RefusalsNameFieldAndValue) {
  const Layer layer{.kind = Kind::kCsa};
  const TestStep step({{0, 3, 1}}, 0, layer.ratios());
  Memory memory(layer, 1, 1, 4, 51);
  const WriteKvParams good = memory.params(step.view(), memory.bytes().data());
  const auto refused = [](WriteKvParams p, const char* field) {
    const Status status = gpu().ops().write_kv(p);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("write_kv"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  };
  WriteKvParams bad = good;
  bad.query->heads = 0;
  refused(bad, "heads = 0");
  bad = good;
  bad.query->q = nullptr;
  refused(bad, "q is null");
  bad = good;
  bad.window.staged_shape.rows = 0;
  refused(bad, "staged_shape");
  bad = good;
  bad.swa_ring->shape.data_bytes += 16;
  refused(bad, "ring.shape");
  bad = good;
  bad.compress->input.dim = 256;
  refused(bad, "input.dim = 256");
  bad = good;
  bad.compress->state.ring_rows = 7;
  refused(bad, "state.ring_rows = 7");
  bad = good;
  bad.index_compress->input.ratio = 129;
  refused(bad, "input.ratio = 129");
}

}  // namespace
}  // namespace dsv4rt
