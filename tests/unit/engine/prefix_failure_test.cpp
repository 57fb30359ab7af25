// Whichever allocation of a session with cached prefixes fails, the call says so and has changed nothing; repeated it
// succeeds, and every output and cache byte is that of a session without failures. Steps with token ids take none.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "support/fail_allocations.h"
#include "support/golden_case.h"
#include "support/layer_rows.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {
namespace {

class Bookkeeping : public EngineInspector {
 public:
  using EngineInspector::EngineInspector;
  // Blocks in each state, and what the prefix cache keeps; a broken invariant fails the test.
  [[nodiscard]] std::vector<std::int64_t> numbers() const {
    const KVCacheManager& manager = *impl_.manager;
    EXPECT_OK(manager.check_invariants());
    std::vector<std::int64_t> numbers = {manager.live_sequences()};
    for (int pool = 0; pool < static_cast<int>(impl_.layout.pools().size()); ++pool) {
      const PoolUsage usage = manager.usage(pool);
      numbers.insert(numbers.end(), {usage.free, usage.live, usage.cached, usage.pinned, usage.reserved});
    }
    const PrefixStats stats = manager.prefix_stats();
    numbers.insert(numbers.end(), {stats.kept_units, stats.kept_states, stats.pinned_units});
    return numbers;
  }
};

class PrefixSessionTest : public testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options = GoldenCase::open("tiny-fp8").options();
    options.draft_budget_tokens = 3;
    options.csa_rows_per_block = 16;
    options.hca_rows_per_block = 2;
    options.poison_freed_blocks = true;
    options.limits = {.max_sequences = 4,
                      .max_context_tokens = 600,
                      .max_step_tokens = 300,
                      .pool_tokens = 600,
                      .boundary_states = 4};
    options.prefix_cache.policy.interval_tokens = 128;
    return options;
  }

  // Only the engine's own work may run out of memory.
  template <class Call>
  static auto faulty(const Call& call) {
    allocation_faults.paused = false;
    auto result = call();
    allocation_faults.paused = true;
    return result;
  }
  template <class Call>
  auto attempt(const Call& call, StatusCode own_reason) {
    if (session_ < 0) return faulty(call);
    const std::size_t operation = operations_++;
    if (session_ == 0) {
      allocation_faults.until_failure = 0;  // goes downwards from there and never fails
      allocation_faults.mode = Failing::kNth;
      auto result = faulty(call);
      allocation_faults.mode = Failing::kNone;
      allocations_.push_back(-allocation_faults.until_failure);
      return result;
    }
    const std::vector<std::int64_t> before = Bookkeeping(*engine_).numbers();
    for (std::int64_t n = session_; n <= allocations_.at(operation); n += kSessions) {
      ++points_;
      allocation_faults.failures = 0;
      allocation_faults.until_failure = n;
      allocation_faults.mode = mode_;
      auto result = faulty(call);
      allocation_faults.mode = Failing::kNone;
      EXPECT_GT(allocation_faults.failures, 0) << "allocation " << n << " of operation " << operation;
      const StatusCode code = status_of(result).code();
      if (code == StatusCode::kOk) return result;
      EXPECT_TRUE(code == StatusCode::kResourceExhausted || code == own_reason) << status_of(result).to_string();
      EXPECT_EQ(Bookkeeping(*engine_).numbers(), before) << status_of(result).to_string();
    }
    return call();
  }
  template <class Call>
  auto value(const Call& call) {
    auto result = attempt(call, StatusCode::kResourceExhausted);
    EXPECT_OK(result);
    return result.value();
  }
  template <class Call>
  void must(const Call& call) {
    EXPECT_OK(attempt(call, StatusCode::kResourceExhausted));
  }
  template <class Call>
  void refused(StatusCode code, const Call& call) {
    const auto result = attempt(call, code);
    const Status status = status_of(result);
    EXPECT_EQ(status.code(), code) << status.to_string() << "; wanted " << status_code_name(code);
  }

  void step(SequenceId sequence, std::int64_t from, std::int32_t tokens) {
    const std::int64_t hidden = engine_->config().hidden_size;
    const StepEntry entry{.sequence = sequence, .tokens = tokens, .token_ids = all_ids_.data() + from};
    const auto step = value([&] { return engine_->prepare({&entry, 1}); });
    for (std::size_t i = 0; i < engine_->layers().size(); ++i) {
      const Bf16Bits* x = rows_[i].data() + from * hidden;
      must([&] { return engine_->forward_layer(step, engine_->layers()[i], x, out_.data()); });
    }
    must([&] { return engine_->commit(step); });
  }
  [[nodiscard]] std::span<const std::int32_t> ids(std::size_t tokens) const {
    return std::span(all_ids_).first(tokens);
  }

  // Runs session number `number`: every operation is repeated while its allocation `number`, number + kSessions, and so
  // on fails. 0: none does, and those of every operation are counted.
  void run(Failing mode, std::int64_t number, std::vector<std::vector<std::byte>>& snapshots) {
    engine_ = make_engine(options());
    mode_ = mode;
    session_ = number;
    operations_ = 0;
    if (number == 0) allocations_.clear();
    session(snapshots);
    session_ = -1;
  }

  void session(std::vector<std::vector<std::byte>>& snapshots) {
    const SequenceStart writer = value([&] { return engine_->create_sequence(ids(400), {}); });
    step(writer.sequence, 0, 290);  // passes a boundary that its layers keep
    step(writer.sequence, 290, 4);
    const SequenceStart warm =
        value([&] { return engine_->create_sequence(ids(300), {.salt = {}, .reserve_tokens = 310, .policy = {}}); });
    EXPECT_EQ(warm.hit_tokens, 256);
    step(warm.sequence, 256, 20);
    EXPECT_EQ(value([&] { return engine_->pin_prefix(ids(256)); }), 256);
    const SequenceId branch = value([&] { return engine_->branch(warm.sequence, 128); });
    step(branch, 128, 150);
    refused(StatusCode::kFailedPrecondition, [&] { return engine_->truncate(branch, 130); });
    must([&] { return engine_->truncate(branch, 128); });
    refused(StatusCode::kFailedPrecondition, [&] { return engine_->branch(warm.sequence, 100); });
    const std::int32_t negative[] = {-1};
    refused(StatusCode::kInvalidArgument, [&] { return engine_->create_sequence(negative, {}); });
    const std::byte other_salt[] = {std::byte{1}};
    refused(StatusCode::kResourceExhausted, [&] {
      const SequenceOptions too_much{.salt = other_salt, .reserve_tokens = 600, .policy = {}};
      return engine_->create_sequence(ids(300), too_much);
    });
    EXPECT_EQ(value([&] { return engine_->prefix_lookup(ids(300)); }).hit_tokens, 256);
    EXPECT_EQ(value([&] { return engine_->evict_prefix(ids(256)); }), 0) << "it is pinned";
    EXPECT_EQ(value([&] { return engine_->unpin_prefix(ids(256)); }), 256);
    for (const SequenceId sequence : {writer.sequence, warm.sequence, branch}) {
      snapshots.push_back(engine_->save_sequence(sequence).value());
      must([&] { return engine_->release(sequence); });
    }
    must([&] { return engine_->clear_prefixes(); });
    EXPECT_EQ(engine_->prefix_stats().kept_units, 0);
  }

  PrefixSessionTest() {
    std::iota(all_ids_.begin(), all_ids_.end(), 1000);
    const auto engine = make_engine(options());
    rows_ = random_rows(4, static_cast<std::int64_t>(engine->layers().size()), 600, engine->config().hidden_size);
    out_.resize(rows_[0].size());
    allocation_faults.paused = true;
  }

  std::vector<std::int32_t> all_ids_ = std::vector<std::int32_t>(600);
  LayerRows rows_;
  std::vector<Bf16Bits> out_;
  std::unique_ptr<Engine> engine_;
  static constexpr std::int64_t kSessions = 4;
  Failing mode_ = Failing::kNth;
  std::int64_t session_ = -1;  // -1: nothing is counted and nothing fails
  std::size_t operations_ = 0;
  std::vector<std::int64_t> allocations_;  // allocations_[i]: those of operation i
  std::int64_t points_ = 0;                // failures that were made
};

class PrefixFailureTest : public PrefixSessionTest, public testing::WithParamInterface<Failing> {};

TEST_P(PrefixFailureTest, NthAllocationOfASession) {
  std::vector<std::vector<std::byte>> expected;
  run(GetParam(), 0, expected);
  for (std::int64_t number = 1; number <= kSessions; ++number) {
    std::vector<std::vector<std::byte>> snapshots;
    SCOPED_TRACE("session " + std::to_string(number));
    run(GetParam(), number, snapshots);
    EXPECT_TRUE(snapshots == expected);
  }
  std::printf("%lld failing allocations\n", static_cast<long long>(points_));
  EXPECT_EQ(points_, std::accumulate(allocations_.begin(), allocations_.end(), std::int64_t{0}));
  EXPECT_GT(points_, 10);
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefixFailureTest, testing::Values(Failing::kNth, Failing::kFromNthOn),
                         [](const auto& info) { return info.param == Failing::kNth ? "One" : "All"; });

// Steps with ids, boundaries and evictions included.
TEST_F(PrefixSessionTest, StepsTakeNoHostMemory) {
  engine_ = make_engine(options());
  const auto append_all = [&] {
    const SequenceStart start = engine_->create_sequence(ids(300), {}).value();
    for (std::int64_t at = start.hit_tokens; at < 590; at += 10) step(start.sequence, at, 10);
    EXPECT_OK(engine_->release(start.sequence));
  };
  append_all();
  EXPECT_OK(engine_->clear_prefixes());
  allocation_faults.until_failure = 0;
  allocation_faults.mode = Failing::kNth;  // counts downwards from 0 and never fails
  allocation_faults.paused = true;
  append_all();
  const std::int64_t allocations = -allocation_faults.until_failure;
  allocation_faults.mode = Failing::kNone;
  EXPECT_EQ(allocations, 0);
  EXPECT_GT(engine_->prefix_stats().states_taken, 4);
}

}  // namespace
}  // namespace dsv4rt::test
