// A snapshot continues only where the weights that computed it are.
#include <gtest/gtest.h>

#include "support/changed_model.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

SyntheticModel tiny_model(WeightEncoding encoding) {
  return {.config = "tiny", .first_layer = 0, .layer_count = 2, .encoding = encoding};
}

EngineOptions tiny_options(const std::filesystem::path& checkpoint) {
  EngineOptions options;
  options.checkpoint = checkpoint;
  options.layer_count = 2;
  options.threads = 1;
  options.limits = {.max_sequences = 1, .max_context_tokens = 64, .max_step_tokens = 64, .pool_tokens = 0};
  return options;
}

std::vector<std::byte> snapshot_of_nine(Engine& engine) {
  SequenceFeeder feeder(engine);
  FedSequence sequence = feeder.create(random_rows(1, 2, 9, engine.config().hidden_size));
  feeder.feed_to(sequence, 9);
  return engine.save_sequence(sequence.id).value();
}

TEST(OtherWeights, SnapshotsOfThemAreRefused) {
  const TempDirectory directory;
  const SyntheticModel bf16_model = tiny_model(WeightEncoding::kBf16);
  const auto engine = make_engine(tiny_options(bf16_model.directory()));
  const std::vector<std::byte> snapshot = snapshot_of_nine(*engine);
  EXPECT_OK(make_engine(tiny_options(bf16_model.directory()))->restore_sequence(snapshot));
  // The same names, shapes and config: one value of one norm, then the encoding.
  write_changed(bf16_model, {.tensor = "layers.1.attn.kv_norm.weight", .byte = 6, .bytes = std::string("\x20\x40", 2)},
                directory / "norm");
  for (const auto& other : {directory / "norm", tiny_model(WeightEncoding::kFp8Block128).directory()}) {
    EXPECT_TRUE(fails_with(make_engine(tiny_options(other))->restore_sequence(snapshot), StatusCode::kUnsupported,
                           {"snapshot: header: weights ", "; accepted: ", "of this engine"}));
  }
}

}  // namespace
}  // namespace dsv4rt::test
