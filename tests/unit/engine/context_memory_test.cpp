// Allocations that fail in a layer whose rows are dealt out over ranks: nothing has been exchanged by then, and the
// layer can be repeated.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "support/fail_allocations.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

// The first of two ranks, whose other one has the same options and gives whatever lies in memory.
class LoneRank final : public Communicator {
 public:
  std::int64_t shares = 0;

  [[nodiscard]] std::string_view transport() const noexcept override { return "none"; }
  [[nodiscard]] std::int32_t rank() const noexcept override { return 0; }
  [[nodiscard]] std::int32_t size() const noexcept override { return 2; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return true; }
  [[nodiscard]] std::int64_t scratch_bytes(std::int64_t) const override { return 0; }
  Status reserve(std::int64_t) override { return {}; }
  Status all_reduce_sum(const void*, ElementType, void*, ElementType, std::int64_t, void*) override { return {}; }
  Status all_gather(const void*, void*, std::int64_t, void*) override { return {}; }
  Status broadcast(void*, std::int64_t, std::int32_t, void*) override { return {}; }
  Status begin_share(std::span<const SharedPart>, const SharePlace&, void*) override {
    ++shares;
    return {};
  }
  Status all_gather_host(const void* part, void* all, std::int64_t bytes, double) override {
    for (std::int64_t r = 0; r < size(); ++r) {
      std::memcpy(static_cast<std::byte*>(all) + r * bytes, part, static_cast<std::size_t>(bytes));
    }
    return {};
  }
  [[nodiscard]] Status state() const override { return {}; }
};

TEST(ContextMemory, ALayerThatRanOutOfMemoryHasExchangedNothing) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  const auto ranks = std::make_shared<LoneRank>();
  EngineOptions options = golden.options();
  options.parallel.context = ranks;
  options.parallel.context_min_tokens = 32;
  const auto engine = make_engine(options);
  const auto sequence = engine->create_sequence();
  ASSERT_OK(sequence);
  const StepEntry entry{.sequence = *sequence, .tokens = 200};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  const std::vector<Bf16Bits> x(static_cast<std::size_t>(200 * golden.hidden()));
  std::vector<Bf16Bits> out(x.size());
  for (const LayerId layer : engine->layers()) {
    std::int64_t failures = 0;
    for (std::int64_t nth = 1;; ++nth) {
      const std::int64_t before = ranks->shares;
      allocation_faults.mode = Failing::kNth;
      allocation_faults.until_failure = nth;
      allocation_faults.failures = 0;
      const StatusCode code = engine->forward_layer(*step, layer, x.data(), out.data()).code();
      allocation_faults.mode = Failing::kNone;
      if (allocation_faults.failures == 0) {
        EXPECT_EQ(code, StatusCode::kOk);
        EXPECT_EQ(ranks->shares, before + 2) << "rows and outputs";
        break;
      }
      ++failures;
      ASSERT_EQ(code, StatusCode::kResourceExhausted) << "layer " << layer.value << ", allocation " << nth;
      ASSERT_EQ(ranks->shares, before) << "layer " << layer.value << ", allocation " << nth;
    }
    EXPECT_GT(failures, 0);
  }
  EXPECT_OK(engine->commit(*step));
}

}  // namespace
}  // namespace dsv4rt::test
