// Operations take no memory: everything that a step computes in was planned and taken at create. Every operator new
// of this program is counted.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/boundary_state.h"
#include "dsv4rt/engine.h"
#include "support/count_allocations.h"
#include "support/expect_ok.h"
#include "support/layer_rows.h"
#include "support/synthetic_model.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kStepTokens = 300;
constexpr std::int64_t kContextTokens = 70000;

// Counts what is allocated inside of the operations of a backend.
class CountingOps final : public Ops {
 public:
  explicit CountingOps(Ops& inner) : inner_(inner) {}

  std::uint64_t calls = 0;
  std::uint64_t allocated = 0;

  Status linear(std::int32_t tokens, std::span<const LinearCall> c) override {
    return count([&] { return inner_.linear(tokens, c); });
  }
  Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> c) override {
    return count([&] { return inner_.normed_linear(norm, c); });
  }
  Status write_kv(const WriteKvParams& p) override {
    return count([&] { return inner_.write_kv(p); });
  }
  Status query(const QueryParams& p) override {
    return count([&] { return inner_.query(p); });
  }
  Status index_query(const IndexQueryParams& p) override {
    return count([&] { return inner_.index_query(p); });
  }
  Status swa_kv(const SwaKvParams& p) override {
    return count([&] { return inner_.swa_kv(p); });
  }
  Status compress(const CompressParams& p) override {
    return count([&] { return inner_.compress(p); });
  }
  Status state_store(const StateStoreParams& p) override {
    return count([&] { return inner_.state_store(p); });
  }
  Status copy_finished_rows(RowDirection direction, const FinishedRowsParams& p) override {
    return count([&] { return inner_.copy_finished_rows(direction, p); });
  }
  Status swa_cache_write(const SwaCacheWriteParams& p) override {
    return count([&] { return inner_.swa_cache_write(p); });
  }
  Status indexer_topk(const IndexerTopkParams& p) override {
    return count([&] { return inner_.indexer_topk(p); });
  }
  Status attend(const AttendParams& p) override {
    return count([&] { return inner_.attend(p); });
  }
  [[nodiscard]] bool takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const override {
    return inner_.takes_encoded_rows(tokens, weight);
  }
  Result<bool> encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) override {
    return inner_.encodes_outputs(tokens, calls);
  }
  Result<bool> norms_queries(const AttendParams& p) override { return inner_.norms_queries(p); }
  Status flag_non_finite(const FlagNonFiniteParams& p) override {
    return count([&] { return inner_.flag_non_finite(p); });
  }
  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override {
    return count([&] { return inner_.begin_step(step, tables); });
  }
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override {
    return count([&] { return inner_.copy_slot(source, target, tables, rings); });
  }
  Status copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                            std::span<const BoundaryRows> rows, const BoundaryStates& states) override {
    return count([&] { return inner_.copy_boundary_rows(direction, copies, rows, states); });
  }
  Status keep_boundary_rows(const KeepBoundaryParams& params) override {
    return count([&] { return inner_.keep_boundary_rows(params); });
  }
  Status write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                          std::span<const CacheTable> tables) override {
    return count([&] { return inner_.write_table_rows(slot, ids, columns, tables); });
  }

 private:
  template <class Call>
  Status count(const Call& call) {
    const std::uint64_t before = allocations;
    Status status = call();
    allocated += allocations - before;
    ++calls;
    return status;
  }

  Ops& inner_;
};

struct Formats {
  WeightEncoding weights;
  RowFormat rows;
  IndexKeyFormat keys;
  std::int64_t heads;
};
constexpr std::array kFormats = {
    Formats{WeightEncoding::kFp8Block128, RowFormat::kFp8DsMla, IndexKeyFormat::kMxfp4, 8},
    Formats{WeightEncoding::kBf16, RowFormat::kBf16, IndexKeyFormat::kBf16, 40},
    Formats{WeightEncoding::kNvfp4, RowFormat::kNvfp4, IndexKeyFormat::kNvfp4, 128},
};

class StepMemoryTest : public ::testing::TestWithParam<std::tuple<std::size_t, std::int32_t>> {
 protected:
  // Layers of configs/tiny.json: one with the window only, two CSA, one HCA.
  static EngineOptions options() {
    const auto& [formats, threads] = GetParam();
    const Formats& of = kFormats[formats];
    EngineOptions options = SyntheticModel{.config = "tiny",
                                           .first_layer = 0,
                                           .layer_count = 4,
                                           .encoding = of.weights,
                                           .heads = of.heads,
                                           .index_heads = 0}
                                .options();
    options.threads = threads;
    options.check_outputs = true;
    options.row_format = of.rows;
    options.index_format = of.keys;
    options.limits = {.max_sequences = 2,
                      .max_context_tokens = kContextTokens,
                      .max_step_tokens = kStepTokens,
                      .pool_tokens = kContextTokens + 8192};
    return options;
  }
};

// Holds from the first step on: short and long steps alternate while the context grows to its limit. The largest step
// ends at the last token that the limits allow: a plan that is too small refuses it.
TEST_P(StepMemoryTest, OperationsAllocateNothingWhateverTheContext) {
  auto created = Engine::create(options());
  ASSERT_OK(created);
  Engine& engine = **created;
  EngineEditor editor(engine);
  const auto sequence = engine.create_sequence();
  const auto other = engine.create_sequence();
  ASSERT_OK(sequence);
  ASSERT_OK(other);
  const std::int64_t hidden = engine.config().hidden_size;
  const LayerRows x = random_rows(3, 1, kStepTokens, hidden);
  std::vector<Bf16Bits> out(x[0].size());
  CountingOps ops(editor.backend_ops());
  std::int64_t length = 0;
  const auto run = [&](std::int32_t tokens, std::int32_t padding) {
    // The last step belongs to the long sequence alone; the other one has its first 100 tokens until then.
    std::vector<StepEntry> entries{{*sequence, tokens}};
    const auto of_other = engine.length(*other);
    ASSERT_OK(of_other);
    if (tokens < kStepTokens && *of_other < 100) entries.push_back({*other, 1});
    const auto rows = static_cast<std::int32_t>(tokens + static_cast<std::int32_t>(entries.size()) - 1);
    const auto step = engine.prepare(entries, {.pad_to_tokens = padding > 0 ? rows + padding : 0});
    ASSERT_OK(step);
    for (const LayerId layer : engine.layers()) {
      ASSERT_OK(editor.forward_layer_with(ops, *step, layer, x[0].data(), out.data()));
    }
    ASSERT_OK(engine.commit(*step));
    length += tokens;
    EXPECT_EQ(ops.allocated, 0U) << "a step of " << rows << " tokens to " << length;
  };
  for (const std::int64_t target : std::array<std::int64_t, 5>{0, 500, 2600, 20000, kContextTokens - 2 * kStepTokens}) {
    if (target > length) {
      const SequenceId skipping = *sequence;
      ASSERT_OK(editor.skip_tokens({&skipping, 1}, target - length));
      length = target;
    }
    for (const std::int32_t tokens : {1, 40, 7}) {
      ASSERT_NO_FATAL_FAILURE(run(tokens, tokens == 7 ? 3 : 0));
    }
    if (target == 0) {
      ASSERT_NO_FATAL_FAILURE(run(kStepTokens, 0));
    }
  }
  while (length < kContextTokens) {
    const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(kStepTokens, kContextTokens - length));
    ASSERT_NO_FATAL_FAILURE(run(tokens, 0));
  }
  EXPECT_GT(ops.calls, 400U);
}

// The engine around them, from the first step on.
TEST_P(StepMemoryTest, WholeStepsAllocateNothing) {
  auto created = Engine::create(options());
  ASSERT_OK(created);
  Engine& engine = **created;
  const auto sequence = engine.create_sequence();
  ASSERT_OK(sequence);
  const LayerRows x = random_rows(3, 1, kStepTokens, engine.config().hidden_size);
  std::vector<Bf16Bits> out(x[0].size());
  std::array<std::uint64_t, 12> allocated{};
  bool ok = true;
  for (std::size_t i = 0; i < allocated.size(); ++i) {
    const std::array<std::int32_t, 4> tokens = {5, 1, kStepTokens, 130};
    const StepEntry entry{*sequence, tokens[i % tokens.size()]};
    const std::uint64_t before = allocations;
    const auto step = engine.prepare({&entry, 1});
    ok = ok && step.ok();
    for (const LayerId layer : engine.layers()) {
      ok = ok && engine.forward_layer(*step, layer, x[0].data(), out.data()).ok();
    }
    ok = ok && engine.commit(*step).ok();
    allocated[i] = allocations - before;
  }
  ASSERT_TRUE(ok);
  EXPECT_EQ(allocated, (std::array<std::uint64_t, 12>{}));
}

INSTANTIATE_TEST_SUITE_P(FormatsAndThreads, StepMemoryTest,
                         ::testing::Combine(::testing::Range(std::size_t{0}, kFormats.size()),
                                            ::testing::Values(1, 3)));

// The counter itself, with and without alignment.
TEST(StepMemory, CountsAllocations) {
  const std::uint64_t before = allocations;
  ::operator delete(::operator new(1));  // unlike a new expression, never optimised away
  ::operator delete (::operator new (1, std::align_val_t{64}), std::align_val_t{64});
  EXPECT_EQ(allocations, before + 2);
}

}  // namespace
}  // namespace dsv4rt::test
