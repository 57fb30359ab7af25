#include "replay/model_executor.h"

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

struct Machine {
  explicit Machine(const ModelReplayOptions& options)
      : executor(*ModelExecutor::create(options.config, options.cache, *StepTimeModel::create(options.table), clock)) {}

  Status run(const std::vector<StepPart>& parts) {
    Status status = executor->prepare(parts);
    if (!status.ok()) return status;
    status = executor->run(parts);
    std::vector<std::int32_t> accepted;
    for (const StepPart& part : parts) accepted.push_back(part.entry.tokens);
    return status.ok() ? executor->commit(accepted) : status;
  }

  VirtualClock clock;
  std::unique_ptr<ModelExecutor> executor;
};

TEST(ModelExecutor, StepsTakeTheTimeOfTheTable) {
  Machine machine(small_options());
  const std::vector<std::int32_t> ids(64, 3);
  const auto start = machine.executor->create(ids, 65);
  ASSERT_OK(start);
  ASSERT_OK(machine.run({{.entry = {start->sequence, 64, ids.data()}, .prefill = true}}));
  EXPECT_EQ(machine.clock.now_ns(), 640'000);
  ASSERT_OK(machine.run({{.entry = {start->sequence, 1, ids.data()}, .context_tokens = 64}}));
  EXPECT_EQ(machine.clock.now_ns(), 1'640'000);
  EXPECT_EQ(machine.executor->step_occupancy().live_sequences, 1);
  EXPECT_OK(machine.executor->release(start->sequence));
  EXPECT_OK(machine.executor->check());
}

TEST(ModelExecutor, SavedSequencesTakeTimeAndBoundedHostMemory) {
  ModelReplayOptions options = small_options();
  options.cache.snapshot_ms_per_gib = 1024;  // 1 us for a KiB
  Machine machine(options);
  const std::vector<std::int32_t> ids(200, 3);
  const auto start = machine.executor->create(ids, 300);
  ASSERT_OK(start);
  ASSERT_OK(machine.run({{.entry = {start->sequence, 200, ids.data()}, .prefill = true}}));
  const std::int64_t before_ns = machine.clock.now_ns();
  const auto saved = machine.executor->save(start->sequence);
  ASSERT_OK(saved);
  const std::int64_t bytes = machine.executor->counts().saved_bytes;
  EXPECT_GT(bytes, machine.executor->memory_plan().bytes_per_sequence);
  EXPECT_NEAR(static_cast<double>(machine.clock.now_ns() - before_ns), static_cast<double>(bytes) / 1.024 / 1.024,
              0.01 * static_cast<double>(bytes));
  CacheOccupancy occupancy;
  machine.executor->occupancy(occupancy);
  EXPECT_EQ(occupancy.live_sequences, 0);
  const auto restored = machine.executor->restore(*saved, 300);
  ASSERT_OK(restored);
  ASSERT_OK(machine.run({{.entry = {*restored, 1, ids.data()}, .context_tokens = 200}}));
  EXPECT_OK(machine.executor->check());

  options.cache.snapshot_bytes = bytes - 1;
  Machine smaller(options);
  const auto other = smaller.executor->create(ids, 300);
  ASSERT_OK(smaller.run({{.entry = {other->sequence, 200, ids.data()}, .prefill = true}}));
  EXPECT_TRUE(fails_with(smaller.executor->save(other->sequence), StatusCode::kResourceExhausted, {"host memory"}));
  EXPECT_OK(smaller.executor->release(other->sequence));  // it is still there

  options.cache.snapshot_bytes = bytes * 3 / 2;  // one fits, and another once that one is gone
  Machine one(options);
  const std::vector<std::int32_t> others(200, 4);
  const auto a = one.executor->create(ids, 300);
  const auto b = one.executor->create(others, 300);
  ASSERT_OK(one.run({{.entry = {a->sequence, 200, ids.data()}, .prefill = true},
                     {.entry = {b->sequence, 200, others.data()}, .prefill = true}}));
  const auto first = one.executor->save(a->sequence);
  ASSERT_OK(first);
  EXPECT_TRUE(fails_with(one.executor->save(b->sequence), StatusCode::kResourceExhausted, {"host memory"}));
  ASSERT_OK(one.executor->drop(*first));
  EXPECT_OK(one.executor->save(b->sequence));
  EXPECT_EQ(one.executor->counts().peak_saved_bytes, bytes);
}

TEST(ModelExecutor, OccupancyIsThatOfTheRoles) {
  Machine machine(small_options(8, 8192));
  const std::vector<std::int32_t> ids(256, 3);
  const auto start = machine.executor->create(ids, 512);
  ASSERT_OK(machine.run({{.entry = {start->sequence, 256, ids.data()}, .prefill = true}}));
  CacheOccupancy occupancy;
  machine.executor->occupancy(occupancy);
  ASSERT_EQ(occupancy.roles.size(), 3U);
  EXPECT_EQ(occupancy.roles[0].role, CacheRole::kCsaKv);
  EXPECT_EQ(occupancy.roles[0].live_blocks, 4);
  EXPECT_GE(occupancy.roles[0].reserved_blocks, 4);
  EXPECT_EQ(occupancy.roles[2].role, CacheRole::kHcaKv);
  EXPECT_EQ(occupancy.roles[2].live_blocks, 1);
  EXPECT_EQ(occupancy.max_states, 64);
  EXPECT_GT(occupancy.kept_states, 0);
  ASSERT_OK(machine.executor->release(start->sequence));
  machine.executor->occupancy(occupancy);
  EXPECT_EQ(occupancy.roles[0].live_blocks, 0);
  EXPECT_GT(occupancy.roles[0].cached_blocks, 0);
}

TEST(ModelExecutor, SnapshotFiguresOutOfRangeAreRefused) {
  ModelReplayOptions options = small_options();
  options.cache.snapshot_ms_per_gib = -1;
  VirtualClock clock;
  const auto times = StepTimeModel::create(options.table);
  EXPECT_TRUE(fails_with(ModelExecutor::create(options.config, options.cache, *times, clock),
                         StatusCode::kInvalidArgument, {"snapshot_ms_per_gib"}));
}

}  // namespace
}  // namespace dsv4rt::replay::test
