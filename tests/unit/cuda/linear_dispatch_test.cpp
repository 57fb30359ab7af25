// Checks which kernel serves a linear layer, on the host alone.
#include "backend/cuda/kernels/linear/linear_dispatch.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/kernels/linear/gemv/gemv_shape.h"
#include "backend/cuda/kernels/linear/linear_costs.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

using cuda::LinearDevice;
using cuda::LinearFamily;
using cuda::LinearPlan;
using cuda::LinearShape;
using cuda::TileKind;

LinearDevice h200() {
  LinearDevice device{.facts = {.ordinal = 0,
                                .compute_major = 9,
                                .compute_minor = 0,
                                .multiprocessors = 132,
                                .block_shared_bytes = 232448,
                                .sm_shared_bytes = 233472,
                                .reserved_shared_bytes = 1024,
                                .has_sm90a = true},
                      .prefill_clusters = {66, 66}};
  std::ranges::transform(cuda::kTileVariants, device.tile_clusters.begin(),
                         [&](const cuda::TileVariant& variant) { return 132 / variant.cluster_blocks; });
  std::ranges::transform(cuda::kFp8Variants, device.fp8_clusters.begin(),
                         [&](const cuda::Fp8Variant& variant) { return 132 / variant.cluster_blocks; });
  return device;
}

// A Blackwell without code of its own, or a Hopper in a build without it.
LinearDevice without_sm90a() {
  LinearDevice device{.facts = h200().facts};
  device.facts.has_sm90a = false;
  return device;
}

constexpr LinearShape fp8(std::int64_t outputs, std::int64_t inputs) {
  return {.outputs = outputs, .inputs = inputs, .tiles = TileKind::kFp8, .rounds = true};
}
constexpr LinearShape bf16_shape(std::int64_t outputs, std::int64_t inputs) {
  return {.outputs = outputs, .inputs = inputs, .tiles = TileKind::kBf16};
}

// The same weights under LinearPrecision::kFp8: FP8 ones multiply codes. Inputs that are not rounded otherwise come as
// such.
std::vector<LinearShape> with_products(std::vector<LinearShape> shapes) {
  for (LinearShape& shape : shapes) {
    if (shape.tiles != TileKind::kFp8) continue;
    shape.tiles = TileKind::kFp8Products;
    shape.encoded = !shape.rounds;
    shape.rounds = true;
  }
  return shapes;
}

std::string served(const LinearDevice& device, std::int32_t tokens, const std::vector<LinearShape>& shapes) {
  const auto plan = plan_linear(device, tokens, shapes);
  return plan.ok() ? name_of(plan->variant) : plan.status().to_string();
}

// The linears of a layer as bench_linear_gpu names them.
std::map<std::string, std::vector<LinearShape>> layer(std::int64_t hidden, std::int64_t rank, std::int64_t heads,
                                                      std::int64_t groups, const std::string& prefix) {
  const std::vector<LinearShape> low{fp8(rank, hidden), fp8(512, hidden)};
  const auto with = [&](std::vector<LinearShape> all, std::initializer_list<std::int64_t> outputs) {
    for (const std::int64_t out : outputs) all.push_back(bf16_shape(out, hidden));
    return all;
  };
  LinearShape wo_a = fp8(1024, heads * 512 / groups);
  wo_a.rounds = false;
  std::map<std::string, std::vector<LinearShape>> all{
      {prefix + "x CSA", with(low, {1024, 1024, 256, 256, 64})},
      {prefix + "x HCA", with(low, {512, 512})},
      {prefix + "bf16 of x CSA", with({}, {1024, 1024, 256, 256, 64})},
      {prefix + "bf16 of x HCA", with({}, {512, 512})},
      {prefix + "x SWA", low},
      {prefix + "wq_b", {fp8(heads * 512, rank)}},
      {prefix + "wq_b + index", {fp8(heads * 512, rank), fp8(8192, rank)}},
      {prefix + "wo_a", std::vector<LinearShape>(static_cast<std::size_t>(groups), wo_a)},
      {prefix + "wo_b", {fp8(hidden, groups * 1024)}},
      {prefix + "bf16 square", {bf16_shape(hidden, hidden)}}};
  // The same with BF16 weights.
  for (const char* name : {"x CSA", "x HCA", "x SWA", "wq_b", "wq_b + index", "wo_a", "wo_b"}) {
    std::vector<LinearShape> shapes = all.at(prefix + name);
    for (LinearShape& shape : shapes) shape = bf16_shape(shape.outputs, shape.inputs);
    all.emplace(prefix + "bf16 " + name, std::move(shapes));
  }
  return all;
}

std::map<std::string, std::vector<LinearShape>> all_layers() {
  auto all = layer(4096, 1024, 64, 8, "");
  all.merge(layer(7168, 1536, 128, 16, "pro "));
  return all;
}

TEST(LinearDispatch, FamiliesChangeWhereTheTokensSay) {
  const std::vector<LinearShape> wo_b{fp8(4096, 8192)};
  const LinearDevice device = h200();
  EXPECT_EQ(served(device, 1, wo_b), "gemv");
  EXPECT_EQ(served(device, 2, wo_b), "gemv");
  EXPECT_EQ(served(device, 3, wo_b), "splitk 16x4");
  EXPECT_EQ(served(device, 5, wo_b), "splitk 16x4");
  EXPECT_EQ(served(device, 16, wo_b), "splitk 16x4");
  EXPECT_EQ(served(device, 17, wo_b), "splitk 32x4");
  EXPECT_EQ(served(device, 32, wo_b), "splitk 32x4");
  EXPECT_EQ(served(device, 33, wo_b), "splitk 64x4");
  EXPECT_EQ(served(device, 64, wo_b), "splitk 64x4");
  EXPECT_EQ(served(device, 65, wo_b), "splitk 80x4");
  EXPECT_EQ(served(device, 80, wo_b), "splitk 80x4");
  EXPECT_EQ(served(device, 81, wo_b), "splitk 96x4");
  EXPECT_EQ(served(device, 96, wo_b), "splitk 96x4");
  EXPECT_EQ(served(device, 128, wo_b), "tile 1c2k2");
  EXPECT_EQ(served(device, 129, wo_b), "tile 1c2k2t160");
  EXPECT_EQ(served(device, 160, wo_b), "tile 1c2k2t160");
  EXPECT_EQ(served(device, 161, wo_b), "tile 1c2k2t192");
  EXPECT_EQ(served(device, 192, wo_b), "tile 1c2k2t192");
  EXPECT_EQ(served(device, 193, wo_b), "tile 2c2");
  EXPECT_EQ(served(device, 320, wo_b), "tile 2c2t160");  // two items
  const std::vector<LinearShape> wq_b_and_index{fp8(32768, 1024), fp8(8192, 1024)};
  EXPECT_EQ(served(device, 65, wq_b_and_index), "splitk 80x1");
  EXPECT_EQ(served(device, 80, wq_b_and_index), "splitk 80x1");
  EXPECT_EQ(served(device, 81, wq_b_and_index), "splitk 96x1");
  EXPECT_EQ(served(device, 96, wq_b_and_index), "splitk 96x1");
  EXPECT_EQ(served(device, 97, wq_b_and_index), "tile 2c1");
  EXPECT_EQ(served(device, 128, {fp8(32768, 1024)}), "splitk 128r2");
  EXPECT_EQ(served(device, 256, wo_b), "tile 2c2");
  EXPECT_EQ(served(device, 512, wo_b), "prefill 128");
  EXPECT_EQ(served(device, 256, wq_b_and_index), "tile 2c1t256");
  EXPECT_EQ(served(device, 512, wq_b_and_index), "tile 2c1t256");
  EXPECT_EQ(served(device, 160, wq_b_and_index), "tile 2c1t160");
  EXPECT_EQ(served(device, 192, wq_b_and_index), "tile 2c1t192");
  EXPECT_EQ(served(device, 384, wq_b_and_index), "tile 2c1t192");  // its items have no tokens in vain there
  EXPECT_EQ(served(device, 768, wq_b_and_index), "tile 2c1t256");
  EXPECT_EQ(served(device, 1024, wq_b_and_index), "tile 2c1t256");
  EXPECT_EQ(served(device, 8192, {fp8(32768, 1024)}), "tile 2c1t256");
  EXPECT_EQ(served(device, 8192, wo_b), "prefill 192");
}

// Four segments a block where that leaves blocks for most multiprocessors, else two, else one.
TEST(LinearDispatch, SmallGridsHaveFewerSegmentsABlock) {
  EXPECT_EQ(served(h200(), 16, {fp8(32768, 1024)}), "splitk 16x1");  // one segment
  EXPECT_EQ(served(h200(), 16, {fp8(16384, 1536)}), "splitk 16x2");  // two
  EXPECT_EQ(served(h200(), 16, {fp8(5056, 4096)}), "splitk 16x2");   // four: 79 blocks of four are too few
  EXPECT_EQ(served(h200(), 16, {fp8(5120, 4096)}), "splitk 16x4");   // 80
  EXPECT_EQ(served(h200(), 16, {fp8(1536, 4096)}), "splitk 16x1");   // 48 of two
}

TEST(LinearDispatch, WithoutSm90aEveryCallIsPortable) {
  for (const WeightEncoding encoding : {WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4}) {
    for (const ActivationRounding rounding : {ActivationRounding::kNone, ActivationRounding::kFp8Block128}) {
      EXPECT_EQ(cuda::tiles_of_shape(false, encoding, rounding, 4096, 4096), std::nullopt);
    }
  }
  for (const std::int32_t tokens : {1, 4, 5, 64, 65, 192, 8192}) {
    EXPECT_EQ(served(without_sm90a(), tokens, {{.outputs = 4096, .inputs = 4096}}), "portable");
    // No kernel of tile-packed weights is launched there, were there any.
    const LinearShape tiles = fp8(4096, 4096);
    EXPECT_EQ(plan_linear(without_sm90a(), tokens, std::span(&tiles, 1)).status().code(), StatusCode::kUnsupported);
  }
}

TEST(LinearDispatch, TilesHoldWhatTheMatrixInstructionTakes) {
  constexpr auto kNone = ActivationRounding::kNone;
  constexpr auto kRounded = ActivationRounding::kFp8Block128;
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kFp8Block128, kRounded, 64, 128), TileKind::kFp8);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kFp8Block128, kNone, 64, 128), TileKind::kFp8);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kBf16, kNone, 64, 128), TileKind::kBf16);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kBf16, kRounded, 64, 128), std::nullopt);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kNvfp4, kNone, 64, 128), std::nullopt);
  constexpr auto kCodes = LinearPrecision::kFp8;
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kFp8Block128, kRounded, 64, 128, kCodes),
            TileKind::kFp8Products);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kFp8Block128, kNone, 64, 128, kCodes), TileKind::kFp8Products);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kBf16, kNone, 64, 128, kCodes), TileKind::kBf16);
  EXPECT_EQ(cuda::tiles_of_shape(false, WeightEncoding::kFp8Block128, kRounded, 64, 128, kCodes), std::nullopt);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kFp8Block128, kRounded, 96, 128), std::nullopt);
  EXPECT_EQ(cuda::tiles_of_shape(true, WeightEncoding::kFp8Block128, kRounded, 64, 192), std::nullopt);
}

// What is told is what weights are packed for.
TEST(LinearDispatch, PrecisionThatIsServedIsThatOfTheTiles) {
  for (const bool has_sm90a : {false, true}) {
    for (const LinearPrecision asked : {LinearPrecision::kExact, LinearPrecision::kFp8}) {
      const auto tiles = cuda::tiles_of_shape(has_sm90a, WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128,
                                              64, 128, asked);
      EXPECT_EQ(cuda::served_precision(has_sm90a, false, asked) == LinearPrecision::kFp8,
                tiles == TileKind::kFp8Products);
    }
  }
  EXPECT_EQ(cuda::served_precision(true, false, LinearPrecision::kFp8), LinearPrecision::kFp8);
  EXPECT_EQ(cuda::served_precision(true, false, LinearPrecision::kNvfp4), LinearPrecision::kExact);
  EXPECT_EQ(cuda::served_precision(false, true, LinearPrecision::kNvfp4), LinearPrecision::kNvfp4);
  EXPECT_EQ(cuda::served_precision(false, true, LinearPrecision::kFp8), LinearPrecision::kExact);
  EXPECT_EQ(cuda::served_precision(false, true, LinearPrecision::kExact), LinearPrecision::kExact);
}

// NVFP4 and whatever else lies in lanes.
TEST(LinearDispatch, LanesTakeMoreTokensABlockWhereThereAreMore) {
  const LinearShape shape{.outputs = 100, .inputs = 272};
  const std::pair<std::int32_t, int> expected[] = {{1, 8}, {8, 8}, {9, 32}, {32, 32}, {33, 64}, {1000, 64}};
  for (const auto& [tokens, item_tokens] : expected) {
    const auto plan = plan_linear(h200(), tokens, std::span(&shape, 1));
    ASSERT_OK(plan);
    EXPECT_EQ(plan->variant.family, LinearFamily::kPortable);
    EXPECT_EQ(plan->item_tokens, item_tokens) << tokens;
    EXPECT_EQ(plan->clusters, 7 * ((tokens + item_tokens - 1) / item_tokens)) << tokens;
  }
}

TEST(LinearDispatch, InputsThatKernelsCannotReadAreRefused) {
  alignas(16) static constexpr std::uint16_t kValues[16]{};
  const LinearShape lanes{.outputs = 100, .inputs = 272};
  EXPECT_OK(check_input(lanes, kValues + 1, 274));
  EXPECT_EQ(check_input(lanes, kValues, 273).code(), StatusCode::kUnsupported);
  EXPECT_EQ(check_input(LinearShape{.outputs = 100, .inputs = 271}, kValues, 272).code(), StatusCode::kUnsupported);
  EXPECT_OK(check_input(fp8(64, 128), kValues + 8, 136));
  EXPECT_EQ(check_input(fp8(64, 128), kValues, 132).code(), StatusCode::kUnsupported);
  EXPECT_EQ(check_input(fp8(64, 128), kValues + 1, 136).code(), StatusCode::kInvalidArgument);
}

// A norm of whole rows needs all of them in shared memory.
TEST(LinearDispatch, NormsInFrontOfProductsAreTheGemvKernels) {
  const LinearShape x = fp8(1024, 4096);
  const auto plan = plan_linear(h200(), 4, std::span(&x, 1), true);
  ASSERT_OK(plan);
  EXPECT_EQ(plan->variant.family, LinearFamily::kGemv);
  const LinearShape wide = fp8(1024, 65536);
  EXPECT_EQ(plan_linear(h200(), 4, std::span(&wide, 1), true).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(plan_linear(h200(), 9, std::span(&x, 1), true).status().code(), StatusCode::kUnsupported);
}

// A block that let more slots fill than its ring has would wait without end.
TEST(LinearDispatch, GemvRingsFillSomeSlotsAtATime) {
  std::set<int> seen;
  auto layers = all_layers();
  for (const auto& [name, shapes] : all_layers()) layers.emplace(name + " fp8", with_products(shapes));
  for (const auto& [name, shapes] : layers) {
    for (std::int32_t tokens = 1; tokens <= 8; ++tokens) {
      for (const bool normed : {false, true}) {
        const auto plan = plan_variant({LinearFamily::kGemv, 0}, h200(), tokens, shapes, normed);
        if (!plan.ok()) continue;
        const int slots = plan->ring_bytes / cuda::kGemvSlotBytes;
        seen.insert(slots);
        for (const TileKind kind : {TileKind::kFp8, TileKind::kFp8Products, TileKind::kBf16}) {
          const int under_way = cuda::gemv_slots_under_way(kind, slots);
          EXPECT_LE(under_way, slots) << name;
          EXPECT_EQ(under_way, std::min(slots, kind == TileKind::kBf16 ? 4 : 2)) << name;
        }
      }
    }
  }
  EXPECT_EQ(*seen.begin(), cuda::kGemvLeastSlots);  // fewer than BF16 weights would like
  EXPECT_GT(*seen.rbegin(), 4);
}

// ldmatrix reads the same unit of eight tokens at a time: one from every 16 bytes of the banks' 128.
TEST(LinearDispatch, GemvRowsSpreadTokensOverTheBanks) {
  constexpr int kUnit = 16;  // bytes
  for (int blocks = 1; blocks <= 64; ++blocks) {
    const int row = cuda::gemv_row_bytes(blocks);
    const int values = blocks * cuda::kScaleBlockInputs * 2;
    ASSERT_EQ(row % kUnit, 0) << blocks;
    std::set<int> places;
    for (int token = 0; token < cuda::kGemvTokens; ++token) {
      places.insert(token * row / kUnit % 8);
      EXPECT_GE(cuda::gemv_input_bytes(blocks, token + 1), token * row + values) << blocks;
    }
    EXPECT_EQ(places.size(), 8U) << blocks;
    const int second = row / kUnit % 8;  // a norm's two units of the second row, beside those of the first
    EXPECT_TRUE(second >= 2 && second <= 6) << blocks;
  }
  EXPECT_EQ(cuda::gemv_input_bytes(0, cuda::kGemvTokens), 0) << "codes without a norm keep no values";
}

// Every plan of every variant, of all linears of both models: what a launch needs of it.
TEST(LinearDispatch, PlansFitTheDevice) {
  const LinearDevice device = h200();
  std::set<std::string> planned;
  auto layers = all_layers();
  for (const auto& [name, shapes] : all_layers()) layers.emplace(name + " fp8", with_products(shapes));
  for (const auto& [name, shapes] : layers) {
    for (const std::int32_t tokens : {1, 4, 5, 16, 17, 33, 64, 65, 96, 97, 128, 136, 160, 176, 192, 256, 512, 2048}) {
      for (const cuda::LinearVariant variant : cuda::linear_variants()) {
        const auto plan = plan_variant(variant, device, tokens, shapes);
        if (!plan.ok()) {
          EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
          continue;
        }
        SCOPED_TRACE(name + " T " + std::to_string(tokens) + " " + name_of(variant));
        planned.insert(name_of(variant));
        EXPECT_GT(plan->clusters, 0);
        EXPECT_GT(plan->item_tokens, 0);
        EXPECT_LE(plan->shared_bytes, device.facts.block_shared_bytes);
        EXPECT_LE(plan->cluster_blocks, 8);
        if (variant.family == LinearFamily::kTile || variant.family == LinearFamily::kPrefill) {
          EXPECT_GE(plan->stages, 3);
          EXPECT_EQ(plan->stage_bytes % 1024, 0);
        }
        if (variant.family == LinearFamily::kTile) {
          const cuda::TileVariant& tile = cuda::kTileVariants.at(static_cast<std::size_t>(variant.number));
          EXPECT_LE(tile.parts * plan->stages * plan->stage_bytes + tile.row_tiles * plan->sum_bytes + tile.other_bytes,
                    plan->shared_bytes);
        }
        const auto is = [](TileKind kind) { return [kind](const LinearShape& s) { return s.tiles == kind; }; };
        if (variant.family == LinearFamily::kFp8) {
          EXPECT_GE(plan->stages, 3);
          EXPECT_TRUE(std::ranges::none_of(shapes, is(TileKind::kFp8)));
          const cuda::Fp8Variant& fp8 = cuda::kFp8Variants.at(static_cast<std::size_t>(variant.number));
          const bool several = cuda::tile_segments(TileKind::kFp8Products, shapes[0].inputs) > 1;
          const int other_bytes = several ? fp8.segmented_other_bytes : fp8.other_bytes;
          EXPECT_LE(plan->stages * plan->stage_bytes + other_bytes, plan->shared_bytes);
        }
        if (variant.family == LinearFamily::kTile || variant.family == LinearFamily::kPrefill) {
          EXPECT_TRUE(std::ranges::none_of(shapes, is(TileKind::kFp8Products)));
        }
        EXPECT_EQ(plan->ring_bytes % 1024, 0);
      }
    }
  }
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    if (variant.family == LinearFamily::kPortable) continue;
    EXPECT_TRUE(planned.contains(name_of(variant))) << name_of(variant);
  }
}

// Every item has tokens, no item more than it has room for, and only the last one fewer than the others.
TEST(LinearDispatch, ItemsShareTheTokensEvenly) {
  std::map<std::string, int> seen;
  const auto expect_even = [&seen](cuda::LinearVariant variant, const std::vector<LinearShape>& shapes) {
    for (std::int32_t tokens = 1; tokens <= 1100; ++tokens) {
      const auto plan = plan_variant(variant, h200(), tokens, shapes);
      if (!plan.ok()) return;  // the shape, or the tokens from here on
      SCOPED_TRACE(name_of(variant) + " T " + std::to_string(tokens));
      const std::int32_t items = (tokens + plan->item_tokens - 1) / plan->item_tokens;
      const std::int32_t even = even_item_tokens(*plan, tokens);
      ASSERT_LE(even, plan->item_tokens);
      ASSERT_GE(even * items, tokens);
      ASSERT_LT(even * (items - 1), tokens);
      if (items == 1) {
        ASSERT_EQ(even, tokens);  // no rows to be filled with zeros
      } else {
        ASSERT_EQ(even % 8, 0);
        ASSERT_LT(even * items - tokens, 8 * items);
      }
      ++seen[name_of(variant)];
    }
  };
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    if (variant.family != LinearFamily::kSplitK && variant.family != LinearFamily::kTile) continue;
    expect_even(variant, {fp8(4096, 8192)});
    expect_even(variant, {fp8(4096, 1024)});
    EXPECT_GT(seen[name_of(variant)], 1000) << name_of(variant);
  }
}

// A last round that has pairs of row tiles for no more than half of the multiprocessors has single ones.
TEST(LinearDispatch, LastRoundsTakeSingleRowTiles) {
  const auto singles_of = [](cuda::LinearVariant variant, std::int32_t tokens, const std::vector<LinearShape>& shapes) {
    const auto plan = plan_variant(variant, h200(), tokens, shapes);
    return plan.ok() ? plan->single_tiles : -1;
  };
  const auto singles = [&](std::int32_t tokens, const std::vector<LinearShape>& shapes, bool pairs = true) {
    return singles_of(pairs ? cuda::tile_of(2, 1) : cuda::tile_of(1, 2, 2), tokens, shapes);
  };
  EXPECT_EQ(singles(128, {fp8(32768, 1024), fp8(8192, 1024)}), 112);          // 320 pairs: 2 x 132 and 56
  EXPECT_EQ(singles(256, {fp8(32768, 1024), fp8(8192, 1024)}), 0);            // 640: 4 x 132 and 112
  EXPECT_EQ(singles(128, {fp8(32768, 1024)}), 0);                             // 256: 132 and 124
  EXPECT_EQ(singles(128, {fp8(33792, 1024)}), 0);                             // 264: whole rounds
  EXPECT_EQ(singles(128, {fp8(33856, 1024)}), 1);                             // and one of one row tile
  EXPECT_EQ(singles(256, {fp8(17024, 1024)}), 2);                             // 133 of two token tiles: 2 x 132 and 2
  EXPECT_EQ(singles(128, {fp8(33920, 1024), fp8(64, 1024)}), 0);              // the last call has too few
  EXPECT_EQ(singles(128, {fp8(33792, 4096), bf16_shape(128, 4096)}), 0);      // rounds that are not alike
  EXPECT_EQ(singles(128, {fp8(8512, 4096)}, false), 0);                       // items of one row tile
  EXPECT_EQ(singles(128, std::vector<LinearShape>(16, fp8(2240, 1024))), 0);  // no place for another problem
  // Products of codes, where registers hold totals.
  const std::vector<LinearShape> queries = with_products({fp8(32768, 1024), fp8(8192, 1024)});
  EXPECT_EQ(singles_of(cuda::fp8_of(128), 128, queries), 112);
  EXPECT_EQ(singles_of(cuda::fp8_of(128, 1), 128, queries), 0);
  EXPECT_EQ(singles_of(cuda::fp8_of(192), 128, queries), 0);
  EXPECT_EQ(singles_of(cuda::fp8_of(128), 128, with_products(std::vector<LinearShape>(8, fp8(4480, 1024)))), 0);
  EXPECT_EQ(singles_of(cuda::fp8_of(128), 128, {bf16_shape(32768, 1024), bf16_shape(8192, 1024)}),
            0);  // only codes have them
}

// A warpgroup has registers for the sums of two segments of 192 tokens, of 256 for those of one.
TEST(LinearDispatch, SegmentsFitTheRegisters) {
  const auto runs = [](cuda::LinearVariant variant, std::int64_t inputs) {
    const LinearShape shape = fp8(8192, inputs);
    return plan_variant(variant, h200(), 128, std::span(&shape, 1)).ok();
  };
  EXPECT_FALSE(runs(cuda::tile_of(1, 2, 2), 1024));
  EXPECT_FALSE(runs(cuda::tile_of(1, 2, 2), 2048));
  EXPECT_TRUE(runs(cuda::tile_of(1, 2, 2), 4096));
  EXPECT_TRUE(runs(cuda::tile_of(1, 2, 2), 8192));
  // Where totals have no registers there is one.
  EXPECT_TRUE(runs(cuda::tile_of(2, 1, 1, 256), 1024));
  EXPECT_FALSE(runs(cuda::tile_of(2, 1, 1, 256), 2048));
}

// Two rings of BF16 weights and 192 tokens would have two stages each.
TEST(LinearDispatch, RingsHaveThreeStages) {
  const LinearShape codes = fp8(4096, 8192);
  const LinearShape bf16 = bf16_shape(4096, 8192);
  EXPECT_TRUE(plan_variant(cuda::tile_of(1, 2, 2, 192), h200(), 192, std::span(&codes, 1)).ok());
  EXPECT_EQ(plan_variant(cuda::tile_of(1, 2, 2, 192), h200(), 192, std::span(&bf16, 1)).status().code(),
            StatusCode::kUnsupported);
}

// The constants belong to the measurements that they were fitted to.
void expect_fast_choices(const std::string& path, std::size_t least_points, std::span<const cuda::LinearCost> costs,
                         const std::map<std::string, std::vector<LinearShape>>& layers) {
  std::ifstream file(DSV4RT_SOURCE_DIR "/scripts/gpu/" + path);
  ASSERT_TRUE(file.is_open());
  std::map<std::pair<std::string, std::int32_t>, std::map<std::string, double>> times;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string problem;
    std::string tokens;
    std::string family;
    std::string microseconds;
    std::getline(fields, problem, ',');
    std::getline(fields, tokens, ',');
    std::getline(fields, family, ',');
    std::getline(fields, microseconds, ',');
    times[{problem, std::stoi(tokens)}][family] = std::stod(microseconds);
  }
  ASSERT_GE(times.size(), least_points);
  double sum = 0;
  for (const auto& [at, measured] : times) {
    const auto& [problem, tokens] = at;
    std::vector<LinearShape> shapes = layers.at(problem);
    const bool products = shapes[0].tiles == TileKind::kFp8Products;
    shapes.resize(std::min(shapes.size(), static_cast<std::size_t>(cuda::most_problems(tokens, products))));
    const std::string chosen = served(h200(), tokens, shapes);
    ASSERT_TRUE(measured.contains(chosen)) << problem << " T " << tokens << ": " << chosen;
    double least = measured.at(chosen);
    for (const cuda::LinearCost& cost : costs) {
      if (const auto found = measured.find(name_of(cost.variant)); found != measured.end()) {
        least = std::min(least, found->second);
      }
    }
    const double loss = measured.at(chosen) / least;
    EXPECT_LT(loss, 1.1) << problem << " T " << tokens << ": " << chosen;
    sum += std::log(loss);
  }
  EXPECT_LT(std::exp(sum / static_cast<double>(times.size())), 1.01);
}

TEST(LinearDispatch, ChoicesAreThoseThatMeasuredFast) {
  expect_fast_choices("linear_plan_h200.csv", 355, cuda::kLinearCosts, all_layers());
}

TEST(LinearDispatch, ChoicesForProductsOfCodesAreThoseThatMeasuredFast) {
  auto layers = all_layers();
  for (auto& [name, shapes] : layers) shapes = with_products(std::move(shapes));
  expect_fast_choices("linear_plan_fp8_h200.csv", 210, cuda::kFp8Costs, layers);
  expect_fast_choices("linear_plan_mixed_h200.csv", 68, cuda::kMixedCosts, layers);
}

// Codes have kernels of their own from 65 tokens on, share launches with BF16 up to 768, and have half as many segments
// where inputs are many.
TEST(LinearDispatch, ProductsOfCodes) {
  const std::vector<LinearShape> wo_b = with_products({fp8(4096, 8192)});
  EXPECT_EQ(served(h200(), 1, wo_b), "gemv");
  EXPECT_EQ(served(h200(), 5, wo_b), "splitk 16x2");
  EXPECT_EQ(served(h200(), 64, wo_b), "splitk 64x2");
  EXPECT_EQ(served(h200(), 65, wo_b), "fp8 128r1c2");
  EXPECT_EQ(served(h200(), 128, wo_b), "fp8 128r1c2");
  EXPECT_EQ(served(h200(), 192, wo_b), "fp8 192r1c2");
  EXPECT_EQ(served(h200(), 256, wo_b), "fp8 128c2");
  EXPECT_EQ(served(h200(), 512, wo_b), "fp8 128");
  EXPECT_EQ(served(h200(), 8192, wo_b), "fp8 192");
  // Blocks of gemv would round segments of 4,096 inputs each for itself.
  EXPECT_EQ(served(h200(), 1, with_products({fp8(7168, 16384)})), "splitk 16x4");
  EXPECT_EQ(served(h200(), 1, {fp8(7168, 16384)}), "gemv");
  // Up to eight groups of outputs are a launch; two blocks share an even number of segments.
  const std::vector<LinearShape> wo_a = with_products(std::vector<LinearShape>(8, fp8(1024, 4096)));
  EXPECT_EQ(served(h200(), 128, wo_a), "fp8 128r1");
  EXPECT_EQ(served(h200(), 192, wo_a), "fp8 192r1");
  EXPECT_EQ(served(h200(), 256, wo_a), "fp8 128");
  EXPECT_EQ(cuda::most_problems(64, true), cuda::kMaxProblems);
  EXPECT_EQ(cuda::most_problems(65, true), cuda::kMaxPrefillProblems);
  EXPECT_EQ(cuda::most_problems(65, false), cuda::kMaxProblems);
  EXPECT_EQ(cuda::most_problems(192, false), cuda::kMaxPrefillProblems);
  EXPECT_EQ(plan_variant(cuda::fp8_of(128, 1, 2), h200(), 128, with_products({fp8(4096, 1024)})).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(cuda::tile_segments(TileKind::kFp8Products, 8192), 4);
  EXPECT_EQ(cuda::tile_segments(TileKind::kFp8, 8192), 8);
  EXPECT_EQ(cuda::tile_segments(TileKind::kFp8Products, 7168), 8);
  // 80 tokens would need accumulators twice.
  EXPECT_EQ(plan_variant(cuda::splitk_of(80, 4, 1), h200(), 65, wo_b).status().code(), StatusCode::kUnsupported);
  const std::vector<LinearShape> mixed = with_products({fp8(1024, 4096), bf16_shape(1024, 4096)});
  EXPECT_EQ(served(h200(), 64, mixed).substr(0, 6), "splitk");
  const std::vector<LinearShape> x_of_csa = with_products(all_layers().at("x CSA"));
  EXPECT_EQ(served(h200(), 64, x_of_csa).substr(0, 6), "splitk");
  EXPECT_EQ(served(h200(), 128, x_of_csa), "fp8 128r1c2");
  EXPECT_EQ(served(h200(), 192, x_of_csa), "fp8 192r1c2");
  EXPECT_EQ(served(h200(), 256, x_of_csa), "fp8 128r1");
  EXPECT_EQ(served(h200(), 512, x_of_csa), "fp8 128");
  // A block of 192 tokens by two row tiles has no registers for a second set of accumulators.
  EXPECT_EQ(plan_variant(cuda::fp8_of(192), h200(), 256, mixed).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(plan_variant(cuda::fp8_of(192), h200(), 256, wo_b).ok());
  EXPECT_TRUE(plan_variant(cuda::fp8_of(192, 1), h200(), 256, mixed).ok());
  const std::vector<LinearShape> widened{mixed[0], fp8(1024, 4096)};
  EXPECT_EQ(plan_variant(cuda::fp8_of(128), h200(), 256, widened).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(plan_variant({LinearFamily::kPrefill, 1}, h200(), 8192, wo_b).status().code(), StatusCode::kUnsupported);
}

// What LinearLauncher never asks for has no plan, not the plan of another launch.
TEST(LinearDispatch, CallsThatShareNoLaunchHaveNoPlan) {
  const auto code_of = [](std::int32_t tokens, const std::vector<LinearShape>& shapes) {
    return plan_linear(h200(), tokens, shapes).status().code();
  };
  const std::vector<LinearShape> mixed = with_products({fp8(1024, 4096), bf16_shape(1024, 4096)});
  EXPECT_EQ(code_of(768, mixed), StatusCode::kOk);
  EXPECT_EQ(code_of(769, mixed), StatusCode::kInternal);
  EXPECT_EQ(code_of(8192, mixed), StatusCode::kInternal);
  EXPECT_EQ(code_of(8192, {mixed[0], mixed[0]}), StatusCode::kOk);
  const std::vector<LinearShape> segments = with_products({fp8(1024, 8192), bf16_shape(1024, 8192)});
  EXPECT_EQ(code_of(4, segments), StatusCode::kInternal);
  EXPECT_EQ(code_of(8, {fp8(1024, 1024), fp8(1024, 4096)}), StatusCode::kInternal);
  EXPECT_EQ(code_of(8, {fp8(1024, 1024), {.outputs = 100, .inputs = 272}}), StatusCode::kInternal);
  EXPECT_EQ(code_of(8, {{.outputs = 100, .inputs = 272}, {.outputs = 100, .inputs = 272}}), StatusCode::kInternal);
}

}  // namespace
}  // namespace dsv4rt::test
