// Fills the cache of a sequence with valid random rows, the same for every engine with the same layout.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/synthetic_values.h"
#include "support/expect_ok.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt::test {

// work(i) for i in [0, count), on all processors.
template <class Work>
void parallel_for(std::int64_t count, const Work& work) {
  const auto threads = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> running;
  for (std::int64_t t = 0; t < std::min(threads, count); ++t) {
    running.emplace_back([&work, count, threads, t] {
      for (std::int64_t i = t; i < count; i += threads) work(i);
    });
  }
}

// Rows [0, shape.rows) of block `index`, normally distributed, in the cache's format.
template <class Format>
std::vector<std::byte> synthetic_block(const SyntheticStream& stream, Format format, const BlockShape& shape,
                                       std::int64_t dim, std::int64_t index) {
  std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes));
  std::vector<float> values(static_cast<std::size_t>(dim));
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    auto counter = static_cast<std::uint64_t>((index * shape.rows + row) * dim);
    for (float& value : values) value = to_float(to_bf16(stream.normal(counter++)));
    encode_row(format, shape, values.data(), block.data(), row);
  }
  return block;
}

// Appends `tokens` tokens to `sequence` without computing them; the rows keep what the memory holds.
inline void append_uncomputed(Engine& engine, SequenceId sequence, std::int64_t tokens, std::int64_t step_tokens) {
  for (std::int64_t done = 0; done < tokens;) {
    const StepEntry entry{sequence, static_cast<std::int32_t>(std::min(step_tokens, tokens - done))};
    const auto step = engine.prepare({&entry, 1});
    ASSERT_OK(step);
    ASSERT_OK(EngineEditor(engine).skip_layers(*step));
    ASSERT_OK(engine.commit(*step));
    done += entry.tokens;
  }
}

// Every row that the sequence's cache holds at its present length becomes a random one, in each engine:
// targets[i] is the sequence in engines[i], all of the same length.
class SyntheticCache {
 public:
  struct Target {
    Engine* engine;
    SequenceId sequence;
  };

  SyntheticCache(std::uint64_t seed, std::vector<Target> targets) : seed_(seed), targets_(std::move(targets)) {}

  void fill() {
    for (const LayerId layer : targets_[0].engine->layers()) {
      for (int number = 0; number < kCacheRoleCount; ++number) {
        const auto role = static_cast<CacheRole>(number);
        EngineEditor editor(*targets_[0].engine);
        if (const PoolSpec* pool = editor.pool(layer, role)) fill_pool(layer, role, *pool);
        if (const SlotSpec* ring = editor.ring(layer, role)) fill_ring(layer, role, *ring);
      }
    }
  }

 private:
  [[nodiscard]] SyntheticStream stream(LayerId layer, CacheRole role) const {
    return {seed_, std::string(cache_role_name(role)) + std::to_string(layer.value)};
  }

  void fill_pool(LayerId layer, CacheRole role, const PoolSpec& spec) {
    const EngineEditor editor(*targets_[0].engine);
    const std::int64_t length = targets_[0].engine->length(targets_[0].sequence).value();
    const std::int64_t blocks = (length / spec.ratio + spec.shape.rows - 1) / spec.shape.rows;
    const SyntheticStream values = stream(layer, role);
    std::vector<std::vector<std::byte>> bytes(static_cast<std::size_t>(blocks));
    parallel_for(blocks, [&](std::int64_t i) {
      auto& block = bytes[static_cast<std::size_t>(i)];
      block = role == CacheRole::kIndexK ? synthetic_block(values, editor.index_format(), spec.shape, kIndexHeadDim, i)
                                         : synthetic_block(values, editor.row_format(), spec.shape, kHeadDim, i);
    });
    for (const Target& target : targets_) {
      for (std::int64_t i = 0; i < blocks; ++i) {
        ASSERT_OK(EngineEditor(*target.engine)
                      .write_block(layer, role, target.sequence, i, bytes[static_cast<std::size_t>(i)]));
      }
    }
  }

  void fill_ring(LayerId layer, CacheRole role, const SlotSpec& spec) {
    const EngineEditor editor(*targets_[0].engine);
    const SyntheticStream values = stream(layer, role);
    std::vector<std::byte> bytes;
    if (role == CacheRole::kSwaKv) {
      bytes = synthetic_block(values, editor.row_format(), spec.shape, kHeadDim, 0);
      bytes.resize(static_cast<std::size_t>(spec.slot_bytes));
    } else {
      std::vector<float> state(static_cast<std::size_t>(spec.slot_bytes) / sizeof(float));
      for (std::size_t i = 0; i < state.size(); ++i) state[i] = values.normal(i);
      bytes.resize(static_cast<std::size_t>(spec.slot_bytes));
      std::memcpy(bytes.data(), state.data(), state.size() * sizeof(float));
    }
    for (const Target& target : targets_) {
      ASSERT_OK(EngineEditor(*target.engine).write_ring(layer, role, target.sequence, bytes));
    }
  }

  std::uint64_t seed_;
  std::vector<Target> targets_;
};

}  // namespace dsv4rt::test
