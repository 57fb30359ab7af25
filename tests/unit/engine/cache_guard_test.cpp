// Lesson 6: freed blocks are poisoned and guard bytes are watched. Nobody may notice but those who err.
#include "engine/cache_guard.h"

#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

bool all_nan(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

TEST(CacheGuard, Lesson6PoisonIsNanInEveryFormat) {
  for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16}) {
    const BlockShape shape = block_shape(format, 3);
    const std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes), CacheGuard::kPoison);
    for (int row = 0; row < 3; ++row) {
      std::vector<float> values(kHeadDim);
      decode_row(format, shape, block.data(), row, values.data());
      EXPECT_TRUE(all_nan(values)) << row_format_name(format);
    }
  }
  for (const IndexKeyFormat format :
       {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8, IndexKeyFormat::kBf16}) {
    const BlockShape shape = block_shape(format, 3);
    const std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes), CacheGuard::kPoison);
    std::vector<float> values(kIndexHeadDim);
    decode_row(format, shape, block.data(), 2, values.data());
    EXPECT_TRUE(all_nan(values)) << index_key_format_name(format);
  }
}

// The engine's regions are host memory with the CPU backend, so a test can err on purpose.
class EngineGuardTest : public testing::Test {
 protected:
  EngineGuardTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  [[nodiscard]] EngineOptions options(bool poison) const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = 5;
    options.csa_rows_per_block = 16;  // 64 tokens
    options.hca_rows_per_block = 2;   // 256 tokens
    options.limits = {.max_sequences = 3, .max_context_tokens = 393, .max_step_tokens = 393, .pool_tokens = 0};
    options.poison_freed_blocks = poison;
    return options;
  }

  // Forks, copies on write, rejected drafts, truncation, cancelled steps and reused slots and blocks.
  struct Life {
    std::vector<LayerRows> outputs;
    std::vector<std::vector<std::string>> digests;
  };
  [[nodiscard]] Life live(bool poison) const {
    const auto engine = make_engine(options(poison));
    SequenceFeeder feeder(*engine);
    Life life;
    const auto note = [&](const FedSequence& sequence) {
      life.outputs.push_back(sequence.outputs);
      life.digests.push_back(feeder.digests(sequence));
    };
    for (std::uint64_t round = 0; round < 3; ++round) {
      FedSequence parent = feeder.create(random_rows(round, golden_.layers(), 393, golden_.hidden()));
      feeder.feed_to(parent, 130 + static_cast<std::int64_t>(round), 61);
      FedSequence child = feeder.fork(parent);
      FedSequence other = feeder.create(random_rows(round + 9, golden_.layers(), 393, golden_.hidden()));
      const FeedPart parts[] = {{&child, 7, 3}, {&other, 258, 0}, {&parent, 6, 5}};
      feeder.step(parts);
      note(other);
      feeder.release(other);
      feeder.feed_to(child, 200, 19);
      feeder.truncate(child, 197);
      FedSequence late = feeder.create(random_rows(round + 20, golden_.layers(), 393, golden_.hidden()));
      feeder.feed_to(late, 3);
      note(late);
      feeder.release(parent);
      feeder.feed_to(child, 320, 50);
      feeder.feed_to(late, 140, 100);
      const StepEntry cancelled{late.id, 200};
      const auto step = engine->prepare({&cancelled, 1});
      EXPECT_OK(step);
      std::vector<Bf16Bits> out(static_cast<std::size_t>(200 * golden_.hidden()));
      EXPECT_OK(engine->forward_layer(*step, engine->layers()[1], late.inputs[1].data(), out.data()));
      EXPECT_OK(engine->cancel(*step));
      FedSequence again{.id = late.id, .inputs = late.inputs, .outputs = LayerRows(3), .length = 0};
      feeder.feed_to(again, 260);
      note(child);
      note(again);
      feeder.truncate(child, 0);
      feeder.feed_to(child, 66);
      note(child);
      feeder.release(child);
      feeder.release(again);
    }
    return life;
  }

  // The pool whose blocks hold `role`, and that pool's blocks of a sequence.
  static int pool_of(Engine& engine, CacheRole role) {
    const CacheMemory& memory = EngineInspector(engine).cache_memory();
    const std::string name = std::string(cache_role_name(role)) + " blocks";
    for (int pool = 0; pool < static_cast<int>(memory.tables().size()); ++pool) {
      if (memory.pool_region(pool).name.starts_with(name)) return pool;
    }
    ADD_FAILURE() << "no " << name;
    return 0;
  }
  static BlockId first_block(Engine& engine, SequenceId sequence, int pool) {
    return EngineInspector(engine).blocks(sequence, pool).value().at(0);
  }

  // Steps one more token and says in which layers the output has a NaN.
  [[nodiscard]] std::vector<bool> nan_layers(SequenceFeeder& feeder, FedSequence& sequence) const {
    const auto old = static_cast<std::size_t>(sequence.length * golden_.hidden());
    feeder.feed(sequence, 1);
    std::vector<bool> nan;
    for (const auto& rows : sequence.outputs) {
      nan.push_back(std::any_of(rows.begin() + static_cast<std::ptrdiff_t>(old), rows.end(),
                                [](Bf16Bits bits) { return std::isnan(to_float(bf16{bits})); }));
    }
    return nan;
  }

  GoldenCase golden_;
};

TEST_F(EngineGuardTest, Lesson6PoisonChangesNoResult) {
  const Life plain = live(false);
  const Life poisoned = live(true);
  EXPECT_TRUE(plain.outputs == poisoned.outputs);
  EXPECT_EQ(plain.digests, poisoned.digests);
}

TEST_F(EngineGuardTest, Lesson6FreedBlocksAndRingsDecodeToNan) {
  const auto engine = make_engine(options(true));
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 300);
  EngineInspector inspector(*engine);
  const CacheMemory& memory = inspector.cache_memory();
  const int pools = static_cast<int>(memory.tables().size());
  ASSERT_EQ(pools, 3);
  std::vector<std::vector<BlockId>> blocks;
  for (int pool = 0; pool < pools; ++pool) {
    blocks.push_back(inspector.blocks(sequence.id, pool).value());
    ASSERT_FALSE(blocks.back().empty());
  }
  feeder.release(sequence);
  for (int pool = 0; pool < pools; ++pool) {
    const std::int64_t block_bytes = memory.tables()[static_cast<std::size_t>(pool)].block_bytes;
    for (const BlockId block : blocks[static_cast<std::size_t>(pool)]) {
      EXPECT_EQ(memory.pool_region(pool).data[block.value * block_bytes], CacheGuard::kPoison);
    }
  }
  for (int ring = 0; ring < static_cast<int>(memory.rings().size()); ++ring) {
    EXPECT_EQ(
        memory.ring_region(ring).data[sequence.id.index * memory.rings()[static_cast<std::size_t>(ring)].slot_bytes],
        CacheGuard::kPoison);
  }
}

// A block table that still names a block of a released sequence: the layer that reads it gives NaN.
TEST_F(EngineGuardTest, Lesson6StaleReadsGiveNan) {
  const struct {
    CacheRole role;
    std::int64_t tokens;  // few enough that every CSA row is selected
    std::size_t layer;
  } cases[] = {{CacheRole::kHcaKv, 257, 0}, {CacheRole::kCsaKv, 30, 1}};
  for (const auto& stale : cases) {
    for (const bool poison : {false, true}) {
      SCOPED_TRACE(std::string(cache_role_name(stale.role)) + (poison ? " poisoned" : " as it was"));
      const auto engine = make_engine(options(poison));
      SequenceFeeder feeder(*engine);
      FedSequence released = feeder.create(random_rows(1, golden_.layers(), 393, golden_.hidden()));
      FedSequence reader = feeder.create(golden_.inputs);
      feeder.feed_to(released, stale.tokens);
      feeder.feed_to(reader, stale.tokens);
      const int pool = pool_of(*engine, stale.role);
      const BlockId old = first_block(*engine, released.id, pool);
      feeder.release(released);
      std::vector<bool> expected(3, false);
      EXPECT_EQ(nan_layers(feeder, reader), expected);
      const CacheTable& table = EngineInspector(*engine).cache_memory().tables()[static_cast<std::size_t>(pool)];
      table.block_table[reader.id.index * table.stride] = old.value;
      expected[stale.layer] = poison;  // the mistake stays invisible unless there is poison
      EXPECT_EQ(nan_layers(feeder, reader), expected);
    }
  }
}

// Index keys decide and are not summed: NaN ranks last, so stale ones show as NaN keys and as other rows.
TEST_F(EngineGuardTest, Lesson6StaleIndexKeysDecodeToNan) {
  const auto engine = make_engine(options(true));
  SequenceFeeder feeder(*engine);
  FedSequence released = feeder.create(golden_.inputs);
  FedSequence reader = feeder.create(golden_.inputs);
  feeder.feed_to(released, 64);
  feeder.feed_to(reader, 64);
  const int pool = pool_of(*engine, CacheRole::kIndexK);
  const BlockId old = first_block(*engine, released.id, pool);
  feeder.release(released);
  const CacheMemory& memory = EngineInspector(*engine).cache_memory();
  const BlockShape shape = block_shape(IndexKeyFormat::kMxfp4, 16);
  const std::byte* block = memory.pool_region(pool).data + old.value * shape.block_bytes;
  for (int row = 0; row < shape.rows; ++row) {
    std::vector<float> values(kIndexHeadDim);
    decode_row(IndexKeyFormat::kMxfp4, shape, block, row, values.data());
    EXPECT_TRUE(all_nan(values));
  }
}

TEST_F(EngineGuardTest, Lesson6WritesBeyondAnEdgeAreFound) {
  const auto region_count = [&] {
    const auto engine = make_engine(options(true));
    return EngineInspector(*engine).cache_memory().regions().size();
  }();
  ASSERT_EQ(region_count, 3U * 2 + 6);  // pools and tables; a window ring per layer, three compressor rings
  for (std::size_t i = 0; i < region_count; ++i) {
    for (const bool before : {false, true}) {
      const auto engine = make_engine(options(true));
      const SequenceId sequence = engine->create_sequence().value();
      const CacheRegion& region = EngineInspector(*engine).cache_memory().regions()[i];
      region.data[before ? -1 : region.bytes] = std::byte{1};
      EXPECT_TRUE(fails_with(engine->release(sequence), StatusCode::kInternal,
                             {region.name, before ? "byte -1 of" : "byte " + std::to_string(region.bytes) + " of"}));
      // Latched: nothing is built upon a cache that somebody wrote into.
      EXPECT_TRUE(fails_with(engine->create_sequence(), StatusCode::kFaulted, {region.name, "internal"}));
      EXPECT_TRUE(fails_with(engine->snapshot_bytes(sequence), StatusCode::kFaulted, {region.name}));
    }
  }
}

TEST_F(EngineGuardTest, Lesson6WritesBetweenBlocksAreFound) {
  const auto engine = make_engine(options(true));
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 80);
  const int pool = pool_of(*engine, CacheRole::kCsaKv);
  const CacheMemory& memory = EngineInspector(*engine).cache_memory();
  const std::int64_t block_bytes = memory.tables()[static_cast<std::size_t>(pool)].block_bytes;
  ASSERT_GT(block_bytes, 16 * 584) << "the block has no padding to watch";
  const std::int64_t last = (first_block(*engine, sequence.id, pool).value + 1) * block_bytes - 1;
  memory.pool_region(pool).data[last] = std::byte{1};
  EXPECT_TRUE(
      fails_with(engine->release(sequence.id), StatusCode::kInternal, {"CSA_KV", "byte " + std::to_string(last)}));
}

TEST_F(EngineGuardTest, Lesson6RollbackPoisonsTheBlocksItGivesBack) {
  const auto engine = make_engine(options(true));
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 64);  // fills a block of 16 CSA rows
  const StepEntry entry{sequence.id, 4};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  const int pool = pool_of(*engine, CacheRole::kCsaKv);
  const BlockId block = EngineInspector(*engine).blocks(sequence.id, pool)->at(1);
  std::vector<Bf16Bits> out(static_cast<std::size_t>(4 * golden_.hidden()));
  for (const LayerId layer : engine->layers()) {
    ASSERT_OK(engine->forward_layer(*step, layer, sequence.inputs[0].data(), out.data()));
  }
  const CacheMemory& memory = EngineInspector(*engine).cache_memory();
  const std::byte* row =
      memory.pool_region(pool).data + block.value * memory.tables()[static_cast<std::size_t>(pool)].block_bytes;
  const auto is_poison = [](std::byte byte) { return byte == CacheGuard::kPoison; };
  EXPECT_TRUE(std::none_of(row, row + 576, is_poison));
  const std::int32_t accepted = 3;
  ASSERT_OK(engine->commit(*step, {&accepted, 1}));
  EXPECT_TRUE(std::all_of(row, row + 576, is_poison));
}

using EngineGuardDeathTest = EngineGuardTest;

TEST_F(EngineGuardDeathTest, Lesson6DestructionChecksEdgesAndNullBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto engine = make_engine(options(true));
        const int pool = pool_of(*engine, CacheRole::kHcaKv);
        const CacheRegion& region = EngineInspector(*engine).cache_memory().pool_region(pool);
        region.data[region.bytes] = std::byte{1};
      },
      "HCA_KV blocks of layer 0: byte .* something wrote outside");
  EXPECT_DEATH(
      {
        const auto engine = make_engine(options(true));
        const int pool = pool_of(*engine, CacheRole::kIndexK);
        EngineInspector(*engine).cache_memory().pool_region(pool).data[100] = std::byte{1};
      },
      "INDEX_K blocks of layer 1: byte 100 of");
}

// Whoever listens to warnings is told instead, and the program goes on.
TEST_F(EngineGuardTest, Lesson6DestructionTellsWhoListens) {
  std::string told;
  EngineOptions listening = options(true);
  listening.on_warning = [&](std::string_view text) { told += text; };
  {
    const auto engine = make_engine(listening);
    const CacheRegion& region = EngineInspector(*engine).cache_memory().pool_region(0);
    region.data[region.bytes] = std::byte{1};
  }
  EXPECT_NE(told.find("something wrote outside"), std::string::npos) << told;
  told.clear();
  make_engine(listening).reset();
  EXPECT_EQ(told, "");
  listening.on_warning = [](std::string_view) { throw std::runtime_error("nobody may see this"); };
  const auto engine = make_engine(listening);
  const CacheRegion& region = EngineInspector(*engine).cache_memory().pool_region(0);
  region.data[-1] = std::byte{1};
}

}  // namespace
}  // namespace dsv4rt::test
