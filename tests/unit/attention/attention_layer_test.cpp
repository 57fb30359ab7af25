// What a layer asks of Ops: which operations, in which order, with which settings. No numbers.
#include "attention/attention_layer.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "support/layer_rig.h"
#include "support/recording_ops.h"

namespace dsv4rt::test {
namespace {

using Calls = std::vector<std::string>;

constexpr CacheLimits kLimits{.max_sequences = 1, .max_context_tokens = 64, .max_step_tokens = 16, .pool_tokens = 0};

// Layers of tiny-fp8.
constexpr int kWindowLayer = 0;
constexpr int kSparseLayer = 1;
constexpr int kHeavyLayer = 2;

class AttentionLayerTest : public testing::Test {
 protected:
  AttentionLayerTest() : golden_(GoldenCase::open("tiny-fp8")) {}

  // Runs a step of 5 tokens of `layer` through `ops`.
  Status forward(LayerRig& layer, RecordingOps& ops) {
    sequence_ = layer.rig().create_sequence();
    const StepEntry entry{sequence_, 5};
    const StepView step = layer.rig().begin({&entry, 1}, {.pad_to_tokens = 7});
    out_.resize(static_cast<std::size_t>(7 * golden_.hidden()));
    return layer.forward(ops, step, x(), out_.data());
  }
  const Bf16Bits* x() const { return golden_.inputs[0].data(); }

  GoldenCase golden_;
  SequenceId sequence_;  // sequence of the last forward()
  std::vector<Bf16Bits> out_;
};

TEST_F(AttentionLayerTest, WindowLayersOnlyAttend) {
  LayerRig layer(golden_, kWindowLayer, kLimits);
  RecordingOps ops;
  ASSERT_OK(forward(layer, ops));
  EXPECT_EQ(ops.calls,
            (Calls{"linear*2", "normed_linear*1", "write_kv", "attend", "swa_cache_write", "linear*2", "linear*1"}));
  EXPECT_EQ(ops.attend_params.ratio, 0);
  EXPECT_EQ(ops.attend_params.topk_indices, nullptr);
}

TEST_F(AttentionLayerTest, HeavyLayersCompressAndReadEveryRow) {
  LayerRig layer(golden_, kHeavyLayer, kLimits);
  RecordingOps ops;
  ASSERT_OK(forward(layer, ops));
  EXPECT_EQ(ops.calls,
            (Calls{"linear*4", "normed_linear*1", "write_kv", "attend", "swa_cache_write", "linear*2", "linear*1"}));
  EXPECT_EQ(ops.attend_params.ratio, 128);
  EXPECT_EQ(ops.attend_params.topk_indices, nullptr);
  EXPECT_FALSE(ops.compressions.at(0).input.overlap);
  EXPECT_EQ(ops.compressions[0].input.dim, kHeadDim);
}

TEST_F(AttentionLayerTest, SparseLayersCompressTwiceAndSelect) {
  LayerRig layer(golden_, kSparseLayer, kLimits);
  RecordingOps ops;
  ASSERT_OK(forward(layer, ops));
  EXPECT_EQ(ops.calls, (Calls{"linear*7", "normed_linear*2", "write_kv", "indexer_topk", "attend", "swa_cache_write",
                              "linear*2", "linear*1"}));
  // Each compressor has a state of its own.
  ASSERT_EQ(ops.compressions.size(), 2U);
  EXPECT_NE(ops.compressions[0].state.base, ops.compressions[1].state.base);
  EXPECT_TRUE(ops.compressions[0].input.overlap);
  EXPECT_FALSE(ops.compressions[0].is_index_key);
  EXPECT_TRUE(ops.compressions[1].is_index_key);
  EXPECT_EQ(ops.compressions[1].input.dim, kIndexHeadDim);
  // The rows that were selected are the rows that are read, through the keys' own pool.
  EXPECT_EQ(ops.select_params.topk_indices, ops.attend_params.topk_indices);
  EXPECT_EQ(ops.select_params.keys.blocks, ops.compressions[1].rows.blocks);
  EXPECT_EQ(ops.attend_params.rows.blocks, ops.compressions[0].rows.blocks);
  EXPECT_FLOAT_EQ(ops.select_params.head_scale, 1.0F / 32);  // (128 * 8)^-0.5
}

// x is projected in one call, so that it is read and rounded once.
TEST_F(AttentionLayerTest, EveryProjectionOfTheInputIsInOneCall) {
  LayerRig layer(golden_, kSparseLayer, kLimits);
  RecordingOps ops;
  ASSERT_OK(forward(layer, ops));
  int readers = 0;
  for (const auto& call : ops.linears) {
    const auto of_x = std::count_if(call.begin(), call.end(),
                                    [&](const LinearCall& c) { return reinterpret_cast<const Bf16Bits*>(c.x) == x(); });
    if (of_x > 0) {
      ++readers;
      EXPECT_EQ(static_cast<std::size_t>(of_x), call.size());
    }
  }
  EXPECT_EQ(readers, 1);
  // Compressor projections stay FP32; everything else is rounded to BF16.
  const auto& calls = ops.linears.front();
  const auto unrounded =
      std::count_if(calls.begin(), calls.end(), [](const LinearCall& c) { return c.output == OutputType::kF32; });
  EXPECT_EQ(unrounded, 4);
}

TEST_F(AttentionLayerTest, OneRotationForTheWholeLayer) {
  for (const int number : {kWindowLayer, kSparseLayer, kHeavyLayer}) {
    LayerRig layer(golden_, number, kLimits);
    RecordingOps ops;
    ASSERT_OK(forward(layer, ops));
    EXPECT_EQ(ops.query_params.rope.inverse_frequency, layer.frequencies());
    EXPECT_FALSE(ops.query_params.rope.inverse);
    EXPECT_EQ(ops.attend_params.output_rope.inverse_frequency, layer.frequencies());
    EXPECT_TRUE(ops.attend_params.output_rope.inverse);
    for (const CompressParams& compress : ops.compressions) {
      EXPECT_EQ(compress.rope.inverse_frequency, layer.frequencies());
      EXPECT_FALSE(compress.rope.inverse);
    }
  }
}

TEST_F(AttentionLayerTest, QueriesAreNormedOnce) {
  for (const int number : {kWindowLayer, kSparseLayer, kHeavyLayer}) {
    for (const bool norms : {false, true}) {
      LayerRig layer(golden_, number, kLimits);
      RecordingOps ops;
      ops.norms = norms;
      ASSERT_OK(forward(layer, ops));
      EXPECT_NE(ops.update_params.query.has_value(), norms);
      ASSERT_EQ(ops.attend_params.query_eps.has_value(), norms);
      if (norms) {
        EXPECT_EQ(*ops.attend_params.query_eps, ops.update_params.window.eps);
      }
    }
  }
}

// Outputs of attention go to the output projection as codes where the operations take them so, and the workspace has
// room.
TEST_F(AttentionLayerTest, OutputsAreEncodedForProjectionsThatTakeCodes) {
  for (const int number : {kWindowLayer, kSparseLayer, kHeavyLayer}) {
    for (const bool room : {false, true}) {
      for (const auto& [least, least_encoding] : {std::pair{7, 8}, {7, 7}, {8, 7}}) {
        LayerRig layer(golden_, number, kLimits, Profile{}, room);
        RecordingOps ops;
        ops.least_encoded_tokens = least;
        ops.least_encoding_tokens = least_encoding;
        ASSERT_OK(forward(layer, ops));  // 7 tokens
        const bool encodes = room && least == 7;
        const bool encodes_latent = encodes && least_encoding == 7;
        SCOPED_TRACE("layer " + std::to_string(number) + (room ? ", room" : "") + ", from " + std::to_string(least));
        const Workspace& ws = layer.workspace();
        ASSERT_EQ(ops.attend_params.encoded.has_value(), encodes);
        EXPECT_EQ(ops.attend_params.o, ws.o);
        const auto& groups = ops.linears.at(ops.linears.size() - 2);
        ASSERT_EQ(groups.size(), 2U);
        const auto expect_rows = [](const EncodedRows& rows, const EncodedRows& expected) {
          EXPECT_EQ(rows.codes, expected.codes);
          EXPECT_EQ(rows.scales, expected.scales);
          EXPECT_EQ(rows.width, expected.width);
          EXPECT_EQ(rows.scale_stride, expected.scale_stride);
        };
        for (std::size_t g = 0; g < groups.size(); ++g) {
          const LinearCall& call = groups[g];
          ASSERT_EQ(call.encoded_y.has_value(), encodes_latent);
          if (encodes_latent) {
            expect_rows(*call.encoded_y, ws.encoded_latent);
            EXPECT_EQ(call.encoded_y_column, static_cast<std::int64_t>(g) * call.weight->out_features());
          }
          const auto column = static_cast<std::int64_t>(g) * call.weight->in_features();
          ASSERT_EQ(call.encoded.has_value(), encodes);
          if (!encodes) {
            EXPECT_EQ(call.x, ws.o + column);
            EXPECT_EQ(call.encoded_column, 0);
            continue;
          }
          EXPECT_EQ(call.x, nullptr);
          EXPECT_EQ(call.encoded_column, column);
          expect_rows(*call.encoded, ws.encoded_o);
          expect_rows(*ops.attend_params.encoded, ws.encoded_o);
        }
        const LinearCall& down = ops.linears.back().front();
        ASSERT_EQ(down.encoded.has_value(), encodes_latent);
        EXPECT_EQ(down.encoded_column, 0);
        if (encodes_latent) {
          expect_rows(*down.encoded, ws.encoded_latent);
        } else {
          EXPECT_EQ(down.x, ws.o_latent);
        }
      }
    }
  }
}

TEST_F(AttentionLayerTest, ProfilesAreSettingsOfTheSameCalls) {
  LayerRig released(golden_, kSparseLayer, kLimits, Profile::deepseek_v4());
  RecordingOps released_ops;
  ASSERT_OK(forward(released, released_ops));
  LayerRig seed(golden_, kSparseLayer, kLimits, Profile::seed());
  RecordingOps seed_ops;
  ASSERT_OK(forward(seed, seed_ops));
  EXPECT_EQ(released_ops.calls, seed_ops.calls);

  const CompressParams& main = released_ops.compressions[0];
  const CompressParams& key = released_ops.compressions[1];
  EXPECT_NE(main.norm_weight, nullptr);
  EXPECT_EQ(main.anchor, Profile::RopeAnchor::kFirstToken);
  EXPECT_FALSE(main.hadamard);
  EXPECT_TRUE(key.hadamard);
  EXPECT_TRUE(released_ops.index_query_params.hadamard);
  EXPECT_NE(released_ops.index_query_params.rope.inverse_frequency, nullptr);

  const CompressParams& seed_main = seed_ops.compressions[0];
  const CompressParams& seed_key = seed_ops.compressions[1];
  EXPECT_EQ(seed_main.norm_weight, nullptr);
  EXPECT_EQ(seed_main.anchor, Profile::RopeAnchor::kLastToken);
  EXPECT_NE(seed_main.rope.inverse_frequency, nullptr);
  EXPECT_EQ(seed_key.norm_weight, nullptr);
  EXPECT_FALSE(seed_key.hadamard);
  EXPECT_EQ(seed_key.rope.inverse_frequency, nullptr);
  EXPECT_FALSE(seed_ops.index_query_params.hadamard);
  EXPECT_EQ(seed_ops.index_query_params.rope.inverse_frequency, nullptr);
}

// Groups of the output projection read neighbouring heads and write neighbouring parts of the latent.
TEST_F(AttentionLayerTest, OutputGroupsLieSideBySide) {
  LayerRig layer(golden_, kWindowLayer, kLimits);
  RecordingOps ops;
  ASSERT_OK(forward(layer, ops));
  const auto& groups = ops.linears.at(2);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[1].x - groups[0].x, 8 / 2 * kHeadDim);
  EXPECT_EQ(static_cast<bf16*>(groups[1].y) - static_cast<bf16*>(groups[0].y), 64);
  const auto& down = ops.linears.at(3);
  EXPECT_EQ(static_cast<const void*>(down[0].x), groups[0].y);
  EXPECT_EQ(down[0].y, static_cast<void*>(out_.data()));
}

// A ring of window rows holds what a single token still reads besides the token's own row; not so for five.
TEST_F(AttentionLayerTest, WindowRowsEnterTheRingAtOnceWhereTheTokensReadNothingTheyOverwrite) {
  LayerRig layer(golden_, kWindowLayer, kLimits);
  RecordingOps chunk;
  ASSERT_OK(forward(layer, chunk));
  EXPECT_FALSE(chunk.update_params.swa_ring.has_value());
  EXPECT_EQ(std::count(chunk.calls.begin(), chunk.calls.end(), "swa_cache_write"), 1);
  layer.rig().commit();

  ASSERT_OK(layer.rig().manager().release(sequence_));
  const StepEntry entry{layer.rig().create_sequence(), 1};
  const StepView step = layer.rig().begin({&entry, 1});
  RecordingOps single;
  ASSERT_OK(layer.forward(single, step, x(), out_.data()));
  ASSERT_TRUE(single.update_params.swa_ring.has_value());
  EXPECT_EQ(single.update_params.swa_ring->base, layer.layer().cache().window.base);
  EXPECT_EQ(std::count(single.calls.begin(), single.calls.end(), "swa_cache_write"), 0);
}

// Rows of boundaries are taken from what the layer staged and projected, directly after it; states of compressors
// without an overlap are dead at a boundary.
TEST_F(AttentionLayerTest, BoundariesAreKeptDirectlyAfterWriteKv) {
  const BoundaryCapture capture{.first_token = 0, .start = 0, .boundary = 4, .state = 3};
  std::array<std::byte, 4> places{};
  const auto rows_at = [](std::byte* place) {
    BoundaryRows rows;
    rows.rings = place;
    return rows;
  };
  const BoundaryKeep keep{.captures = {&capture, 1},
                          .states = {.states = &places[0], .state_bytes = 256},
                          .window = rows_at(&places[1]),
                          .state = rows_at(&places[2]),
                          .index_state = rows_at(&places[3])};
  for (const int number : {kWindowLayer, kSparseLayer, kHeavyLayer}) {
    LayerRig layer(golden_, number, kLimits);
    sequence_ = layer.rig().create_sequence();
    const StepEntry entry{sequence_, 5};
    const StepView step = layer.rig().begin({&entry, 1});
    out_.resize(static_cast<std::size_t>(5 * golden_.hidden()));
    RecordingOps plain;
    ASSERT_OK(layer.forward(plain, step, x(), out_.data()));
    RecordingOps none;
    const BoundaryKeep nothing;
    ASSERT_OK(layer.forward(none, step, x(), out_.data(), &nothing));
    EXPECT_EQ(none.calls, plain.calls);

    RecordingOps ops;
    ASSERT_OK(layer.forward(ops, step, x(), out_.data(), &keep));
    Calls expected = plain.calls;
    expected.insert(std::find(expected.begin(), expected.end(), "write_kv") + 1, "keep_boundary_rows");
    EXPECT_EQ(ops.calls, expected);
    const KeepBoundaryParams& kept = ops.keep_params;
    EXPECT_EQ(kept.captures.data(), &capture);
    EXPECT_EQ(kept.states.states, &places[0]);
    EXPECT_EQ(kept.window.rings, &places[1]);
    EXPECT_EQ(kept.staged, ops.attend_params.staged);
    EXPECT_EQ(kept.staged_shape.rows, ops.attend_params.staged_shape.rows);
    ASSERT_EQ(kept.compressor.has_value(), number == kSparseLayer);
    ASSERT_EQ(kept.index_compressor.has_value(), number == kSparseLayer);
    if (number != kSparseLayer) continue;
    EXPECT_EQ(kept.compressor->rows.rings, &places[2]);
    EXPECT_EQ(kept.compressor->input.kv, ops.compressions.at(0).input.kv);
    EXPECT_EQ(kept.compressor->input.dim, kHeadDim);
    EXPECT_EQ(kept.index_compressor->rows.rings, &places[3]);
    EXPECT_EQ(kept.index_compressor->input.kv, ops.compressions.at(1).input.kv);
    EXPECT_EQ(kept.index_compressor->input.dim, kIndexHeadDim);
  }
}

TEST_F(AttentionLayerTest, AFailureToKeepABoundaryLeavesAWrittenCache) {
  LayerRig layer(golden_, kWindowLayer, kLimits);
  const BoundaryCapture capture{.first_token = 0, .start = 0, .boundary = 4, .state = 0};
  const BoundaryKeep keep{.captures = {&capture, 1}, .states = {}, .window = {}, .state = {}, .index_state = {}};
  sequence_ = layer.rig().create_sequence();
  const StepEntry entry{sequence_, 5};
  const StepView step = layer.rig().begin({&entry, 1});
  out_.resize(static_cast<std::size_t>(5 * golden_.hidden()));
  RecordingOps ops;
  ops.failing_call = 3;
  bool written = false;
  EXPECT_TRUE(
      fails_with(layer.forward(ops, step, x(), out_.data(), &keep, &written), StatusCode::kInternal, {"call 3"}));
  EXPECT_EQ(ops.calls, (Calls{"linear*2", "normed_linear*1", "write_kv", "keep_boundary_rows"}));
  EXPECT_TRUE(written);
}

TEST_F(AttentionLayerTest, TheFirstFailureEndsTheLayer) {
  LayerRig layer(golden_, kSparseLayer, kLimits);
  int failing = 0;
  for (bool complete = false; !complete; ++failing) {
    RecordingOps ops;
    ops.failing_call = failing;
    const StepEntry entry{layer.rig().create_sequence(), 1};
    const StepView step = layer.rig().begin({&entry, 1});
    std::vector<Bf16Bits> out(static_cast<std::size_t>(golden_.hidden()));
    const Status status = layer.forward(ops, step, x(), out.data());
    layer.rig().commit();
    ASSERT_OK(layer.rig().manager().release(entry.sequence));
    complete = status.ok();
    if (complete) continue;
    EXPECT_TRUE(fails_with(status, StatusCode::kInternal, {"call " + std::to_string(failing)}));
    EXPECT_EQ(static_cast<int>(ops.calls.size()), failing + 1);
  }
  EXPECT_GT(failing, 6);
}

}  // namespace
}  // namespace dsv4rt::test
