// update_rows and the single operations it is made of: the GPU leaves the bytes that the CPU leaves, however the
// step is cut, launched or batched.
#include <array>
#include <string>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "backend/cuda/cuda_ops.h"
#include "base/try.h"
#include "gpu/support/device_step.h"
#include "gpu/support/gpu.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::testing;
using test::DeviceStep;

constexpr int kWindow = 16;
constexpr std::int32_t kBlockRows = 3;
constexpr float kEps = 1e-6F;

enum class Kind { kSwa, kCsa, kHca };

// What a layer is; the same for CPU and GPU.
struct Layer {
  Kind kind = Kind::kCsa;
  std::int32_t heads = 6;
  std::int32_t index_heads = 5;
  RowFormat row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat key_format = IndexKeyFormat::kMxfp4;
  Profile profile = Profile::deepseek_v4();
  std::int32_t draft_budget = 0;

  [[nodiscard]] std::vector<std::int32_t> ratios() const {
    if (kind == Kind::kSwa) return {};
    return {kind == Kind::kCsa ? 4 : 128};
  }
};

struct CompressorShape {
  std::int32_t ratio;
  std::int32_t dim;
  bool overlap;
  [[nodiscard]] std::int32_t width() const { return overlap ? 2 * dim : dim; }
  [[nodiscard]] std::int32_t pooled() const { return overlap ? 2 * ratio : ratio; }
};

// All memory of a layer in one range: offsets serve host and device. Inputs are random numbers, outputs random
// bytes, so that bytes that should stay show when they do not.
class Memory {
 public:
  Memory(const Layer& layer, std::int32_t tokens, std::int32_t slots, std::int32_t context_end, std::uint64_t seed)
      : layer_(layer), tokens_(tokens), slots_(slots) {
    random_.emplace(seed);
    const std::int64_t t = tokens;
    q_ = take_bf16(t * layer.heads * kHeadDim);
    index_q_ = take_bf16(t * layer.index_heads * kIndexHeadDim);
    kv_ = take_bf16(t * kHeadDim);
    norm_ = take_bf16(kHeadDim);
    frequencies_ = bytes_.size();
    for (const float value : test_frequencies(160000.0)) append(value);
    staged_ = take_poison(staged_shape().block_bytes);
    ring_ = take_poison(slots * ring_slot_bytes());
    if (layer.kind == Kind::kCsa) {
      add({4, kHeadDim, true}, context_end);
      add({4, kIndexHeadDim, true}, context_end);
    } else if (layer.kind == Kind::kHca) {
      add({128, kHeadDim, false}, context_end);
    }
  }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  [[nodiscard]] BlockShape staged_shape() const { return block_shape(layer_.row_format, tokens_); }
  [[nodiscard]] BlockShape ring_shape() const { return block_shape(layer_.row_format, kWindow + layer_.draft_budget); }
  [[nodiscard]] std::int64_t ring_slot_bytes() const { return ring_shape().block_bytes + 64; }

  // The call over this memory at `base`. Inputs of the step's first token are those of token `first_input`.
  [[nodiscard]] UpdateRowsParams params(const StepView& step, std::byte* base, std::int64_t first_input = 0) const {
    const RopeParams rope{.inverse_frequency = at<float>(base, frequencies_), .inverse = false};
    const BlockShape staged = block_shape(layer_.row_format, std::max(1, step.counts.tokens));
    UpdateRowsParams p{
        .query = {step, layer_.heads, at<bf16>(base, q_) + first_input * layer_.heads * kHeadDim, kEps, rope},
        .index_query = {},
        .window = {step, at<bf16>(base, kv_) + first_input * kHeadDim, at<bf16>(base, norm_), kEps, rope,
                   layer_.row_format, staged, base + staged_},
        .window_ring = WindowRing{base + ring_, ring_slot_bytes(), ring_shape(), layer_.row_format},
        .compress = {},
        .index_compress = {}};
    for (const Compressor& c : compressors_) {
      const bool key = c.shape.dim == kIndexHeadDim;
      CompressParams one{.step = step,
                         .input = {.kv = at<float>(base, c.kv) + first_input * c.shape.width(),
                                   .score = at<float>(base, c.score) + first_input * c.shape.width(),
                                   .stride = c.shape.width(),
                                   .ape = at<float>(base, c.ape),
                                   .ratio = c.shape.ratio,
                                   .ratio_class = 0,
                                   .dim = c.shape.dim,
                                   .overlap = c.shape.overlap},
                         .state = {base + c.state, state_slot_bytes(c.shape), c.shape.pooled() + layer_.draft_budget},
                         .norm_weight = layer_.profile.compressor_norm ? at<bf16>(base, norm_) : nullptr,
                         .eps = kEps,
                         .rope = key && !layer_.profile.index_rope ? RopeParams{} : rope,
                         .anchor = layer_.profile.rope_anchor,
                         .hadamard = key && layer_.profile.index_hadamard,
                         .is_index_key = key,
                         .row_format = layer_.row_format,
                         .key_format = layer_.key_format,
                         .rows = {base + c.pool, rows_shape(c.shape), at<std::int32_t>(base, c.table), c.table_stride}};
      (key ? p.index_compress : p.compress) = one;
    }
    if (layer_.kind == Kind::kCsa) {
      p.index_query = IndexQueryParams{step,
                                       layer_.index_heads,
                                       at<bf16>(base, index_q_) + first_input * layer_.index_heads * kIndexHeadDim,
                                       layer_.profile.index_rope ? rope : RopeParams{},
                                       layer_.profile.index_hadamard,
                                       layer_.key_format};
    }
    return p;
  }

  // Rows of padding tokens are unspecified.
  void clear_padding(std::int32_t valid_tokens) {
    for (std::int64_t t = valid_tokens; t < tokens_; ++t) {
      clear(q_ + t * layer_.heads * kHeadDim * 2, layer_.heads * kHeadDim * 2);
      clear(index_q_ + t * layer_.index_heads * kIndexHeadDim * 2, layer_.index_heads * kIndexHeadDim * 2);
      clear(staged_ + staged_shape().data_offset(t), staged_shape().data_bytes);
      clear(staged_ + staged_shape().scale_offset(t), staged_shape().scale_bytes);
    }
  }
  void clear_staged() { clear(staged_, staged_shape().block_bytes); }

  // Where the first byte lies that differs from `other`, "" without one.
  [[nodiscard]] std::string difference(const Memory& other) const {
    if (bytes_ == other.bytes_) return "";
    const auto [mine, theirs] = std::mismatch(bytes_.begin(), bytes_.end(), other.bytes_.begin());
    const auto offset = static_cast<std::int64_t>(mine - bytes_.begin());
    std::size_t count = 0;
    for (std::size_t i = 0; i < bytes_.size(); ++i) count += bytes_[i] != other.bytes_[i] ? 1 : 0;
    std::vector<std::pair<std::int64_t, std::string>> parts{{q_, "q"},           {index_q_, "index_q"}, {kv_, "kv"},
                                                            {staged_, "staged"}, {ring_, "ring"}};
    for (const Compressor& c : compressors_) {
      parts.push_back({c.kv, "compressor input"});
      parts.push_back({c.state, "state"});
      parts.push_back({c.pool, "rows"});
    }
    std::pair<std::int64_t, std::string> part;
    for (const auto& candidate : parts) {
      if (candidate.first <= offset) part = candidate;
    }
    return std::to_string(count) + " bytes, first " + part.second + " + " + std::to_string(offset - part.first);
  }

 private:
  struct Compressor {
    CompressorShape shape;
    std::int64_t kv, score, ape, state, table, table_stride, pool;
  };

  void add(const CompressorShape& shape, std::int32_t context_end) {
    Compressor c{.shape = shape, .kv = 0, .score = 0, .ape = 0, .state = 0, .table = 0, .table_stride = 0, .pool = 0};
    c.kv = take_floats(tokens_ * std::int64_t{shape.width()}, 1.0F);
    c.score = take_floats(tokens_ * std::int64_t{shape.width()}, 2.0F);
    c.ape = take_floats(std::int64_t{shape.ratio} * shape.width(), 1.0F);
    c.state = take_floats(slots_ * state_slot_bytes(shape) / 4, 1.5F);
    // A sequence's rows lie in a few blocks, out of order; far rows share them.
    const std::int64_t rows = context_end / shape.ratio + 1;
    constexpr std::int64_t kOwnBlocks = 24;
    c.table_stride = rows / kBlockRows + 1;
    c.table = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      for (std::int64_t b = 0; b < c.table_stride; ++b) {
        append(static_cast<std::int32_t>(slot * kOwnBlocks + b * 7 % kOwnBlocks));
      }
    }
    align();
    c.pool = take_poison(slots_ * kOwnBlocks * rows_shape(shape).block_bytes);
    compressors_.push_back(c);
  }
  [[nodiscard]] std::int64_t state_slot_bytes(const CompressorShape& shape) const {
    return std::int64_t{shape.pooled() + layer_.draft_budget} * 2 * shape.width() * 4 + 64;
  }
  [[nodiscard]] BlockShape rows_shape(const CompressorShape& shape) const {
    return shape.dim == kHeadDim ? block_shape(layer_.row_format, kBlockRows)
                                 : block_shape(layer_.key_format, kBlockRows);
  }

  template <class T>
  static T* at(std::byte* base, std::int64_t offset) {
    return reinterpret_cast<T*>(base + offset);
  }
  template <class T>
  void append(const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  void align() { bytes_.resize((bytes_.size() + 255) / 256 * 256); }
  std::int64_t take_bf16(std::int64_t count) {
    const auto offset = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t i = 0; i < count; ++i) append(to_bf16(normal()));
    align();
    return offset;
  }
  std::int64_t take_floats(std::int64_t count, float scale) {
    const auto offset = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t i = 0; i < count; ++i) append(normal() * scale);
    align();
    return offset;
  }
  std::int64_t take_poison(std::int64_t count) {
    const auto offset = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t i = 0; i < count; i += 8) append(random_->bits());
    align();
    return offset;
  }
  // About normal, cheaply: the tests need many.
  float normal() {
    const std::uint64_t bits = random_->bits();
    float sum = -6.0F;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) * (3.0F / 65535);
    return sum;
  }
  void clear(std::int64_t offset, std::int64_t count) {
    std::fill_n(bytes_.begin() + offset, count, std::byte{0});
  }

  Layer layer_;
  std::int32_t tokens_, slots_;
  std::optional<Random> random_;
  std::vector<std::byte> bytes_;
  std::int64_t q_ = 0, index_q_ = 0, kv_ = 0, norm_ = 0, frequencies_ = 0, staged_ = 0, ring_ = 0;
  std::vector<Compressor> compressors_;
};

Status update_rows_one_by_one(Ops& ops, const UpdateRowsParams& p) {
  DSV4RT_RETURN_IF_ERROR(ops.query(p.query));
  if (p.index_query) DSV4RT_RETURN_IF_ERROR(ops.index_query(*p.index_query));
  DSV4RT_RETURN_IF_ERROR(ops.window_rows(p.window));
  if (p.window_ring) {
    DSV4RT_RETURN_IF_ERROR(
        ops.window_store({p.window.step, p.window.staged_shape, p.window.staged, *p.window_ring}));
  }
  for (const auto& one : {p.compress, p.index_compress}) {
    if (!one) continue;
    DSV4RT_RETURN_IF_ERROR(ops.compress(*one));
    DSV4RT_RETURN_IF_ERROR(ops.state_store({one->step, one->input, one->state}));
  }
  return {};
}

class RowsGpuTest : public test::GpuTest {
 protected:
  // Memory after `run(ops, params)` on the GPU; `memory` is what was there before.
  template <class Run>
  static Memory on_gpu(Memory memory, const TestStep& step, const Run& run) {
    auto device = gpu().allocate(memory.bytes().size(), "memory").value();
    EXPECT_OK(gpu().upload(device.data(), memory.bytes().data(), memory.bytes().size()));
    const DeviceStep device_step(gpu(), step.view());
    EXPECT_OK(run(gpu().ops(), memory.params(device_step.view(), device.data())));
    EXPECT_OK(gpu().download(memory.bytes().data(), device.data(), memory.bytes().size()));
    memory.clear_padding(step.view().counts.valid_tokens);
    return memory;
  }
  static Memory on_cpu(Memory memory, const TestStep& step) {
    TestOps ops;
    EXPECT_OK(ops->update_rows(memory.params(step.view(), memory.bytes().data())));
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
    const Memory together = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.update_rows(p); });
    EXPECT_EQ(together.difference(expected), "") << what << ", update_rows against the CPU";
    const Memory single = on_gpu(before, step, update_rows_one_by_one);
    EXPECT_EQ(single.difference(together), "") << what << ", single operations against update_rows";
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
  for (const std::int32_t position : {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 16, 31, 126, 127, 128, 129, 130, 131, 254, 255,
                                      256, 257, 383, 511, 512, 513, 4095, 65535, 65536, 131071, 999999, 1048575}) {
    parts.push_back({slot++, position, 1});
  }
  return parts;
}

TEST_F(RowsGpuTest, EveryFormatAndPosition) {
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

TEST_F(RowsGpuTest, HeadCounts) {
  for (const std::int32_t heads : {1, 2, 3, 4, 7, 8, 16, 64, 128}) {
    const Layer layer{.kind = Kind::kCsa, .heads = heads, .index_heads = heads};
    expect_same(layer, {{0, 3, 1}, {1, 70, 2}}, 1, 7, std::to_string(heads) + " heads");
  }
}

TEST_F(RowsGpuTest, SeedProfile) {
  for (const Kind kind : kKinds) {
    Layer layer{.kind = kind, .row_format = RowFormat::kFp8Row, .key_format = IndexKeyFormat::kNvfp4};
    layer.profile = Profile::seed();
    expect_same(layer, single_tokens(), 0, 9, name_of(kind));
  }
}

TEST_F(RowsGpuTest, ChunksOfEveryLengthAndStart) {
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

TEST_F(RowsGpuTest, MixedSteps) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 3};
    expect_same(layer, {{4, 127, 1}, {0, 0, 130}, {2, 3, 5}, {1, 255, 1}, {3, 100, 300}, {5, 7, 1}}, 5, 12,
                name_of(kind));
    expect_same(layer, {{0, 0, 1300}, {1, 1000, 1100}}, 0, 13, name_of(kind));
  }
}

// Verified drafts: with a ring that holds them all stores run beside their readers, one token more and they follow.
TEST_F(RowsGpuTest, VerifyWidthsUpToTheRingAndOneBeyond) {
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
TEST_F(RowsGpuTest, BatchOrAlone) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 5};
    const std::vector<Part> parts = single_tokens();
    const TestStep batch(parts, 0, layer.ratios());
    const Memory before(layer, batch.tokens(), batch.tokens(), batch.view().counts.context_end, 21);
    Memory together = on_gpu(before, batch, [](Ops& ops, const auto& p) { return ops.update_rows(p); });
    together.clear_staged();

    Memory alone = before;
    auto device = gpu().allocate(alone.bytes().size(), "memory").value();
    ASSERT_OK(gpu().upload(device.data(), alone.bytes().data(), alone.bytes().size()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const TestStep step({parts[i]}, 0, layer.ratios());
      const DeviceStep device_step(gpu(), step.view());
      ASSERT_OK(gpu().ops().update_rows(
          alone.params(device_step.view(), device.data(), static_cast<std::int64_t>(i))));
    }
    ASSERT_OK(gpu().download(alone.bytes().data(), device.data(), alone.bytes().size()));
    alone.clear_staged();
    EXPECT_EQ(alone.difference(together), "") << name_of(kind);
  }
}

// A sequence fed in any cuts leaves the rings and rows of one chunk.
TEST_F(RowsGpuTest, ChunksOrTokens) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 1, .index_heads = 1, .draft_budget = 3};
    constexpr std::int32_t kTokens = 300;
    const TestStep whole_step({{1, 0, kTokens}}, 0, layer.ratios());
    const Memory before(layer, kTokens, 2, kTokens, 23);
    Memory whole = on_gpu(before, whole_step, [](Ops& ops, const auto& p) { return ops.update_rows(p); });
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
        ASSERT_OK(gpu().ops().update_rows(memory.params(device_step.view(), device.data(), start)));
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
TEST_F(RowsGpuTest, ExtremeQueries) {
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
  const Memory actual = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.update_rows(p); });
  EXPECT_EQ(actual.difference(expected), "");
}

TEST_F(RowsGpuTest, CapturedEqualsEager) {
  for (const Kind kind : kKinds) {
    const Layer layer{.kind = kind, .heads = 4};
    const TestStep step(single_tokens(), 2, layer.ratios());
    const Memory before(layer, step.tokens(), step.tokens(), step.view().counts.context_end, 41);
    const Memory eager = on_gpu(before, step, [](Ops& ops, const auto& p) { return ops.update_rows(p); });
    const Memory replayed = on_gpu(before, step, [](Ops&, const UpdateRowsParams& p) -> Status {
      cudaStream_t stream = nullptr;
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda::Scratch scratch;
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      cuda::CudaOps ops(stream, scratch);
      EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      EXPECT_OK(ops.update_rows(p));
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

TEST_F(RowsGpuTest, RefusalsNameFieldAndValue) {
  const Layer layer{.kind = Kind::kCsa};
  const TestStep step({{0, 3, 1}}, 0, layer.ratios());
  Memory memory(layer, 1, 1, 4, 51);
  const UpdateRowsParams good = memory.params(step.view(), memory.bytes().data());
  const auto refused = [](UpdateRowsParams p, const char* field) {
    const Status status = gpu().ops().update_rows(p);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("update_rows"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  };
  UpdateRowsParams bad = good;
  bad.query.heads = 0;
  refused(bad, "heads = 0");
  bad = good;
  bad.query.q = nullptr;
  refused(bad, "q is null");
  bad = good;
  bad.window.staged_shape.rows = 0;
  refused(bad, "staged_shape");
  bad = good;
  bad.window_ring->shape.data_bytes += 16;
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
