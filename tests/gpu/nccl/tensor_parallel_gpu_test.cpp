// Tensor parallelism over NCCL: two ranks on two GPUs, here two threads of one process.
#include <array>
#include <chrono>
#include <cmath>
#include <cuda_runtime_api.h>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "dsv4rt/communicator.h"
#include "gpu/nccl/two_ranks.h"
#include "gpu/support/device_writes.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kTokens = 300;

// Sixteen heads and four groups: a rank has eight and two.
SyntheticModel model_of(WeightEncoding encoding) {
  return {.config = "tiny", .layer_count = 4, .encoding = encoding, .heads = 16, .o_groups = 4, .o_lora_rank = 128};
}

EngineOptions options_of(const SyntheticModel& model, int device, std::shared_ptr<Communicator> ranks) {
  EngineOptions options = model.options();
  options.backend = "cuda";
  options.device = device;
  options.limits = {
      .max_sequences = 2, .max_context_tokens = kTokens, .max_step_tokens = kTokens, .pool_tokens = 2 * kTokens};
  options.parallel.tensor = std::move(ranks);
  options.parallel.create_deadline_seconds = 60;
  return options;
}

struct Outcome {
  LayerRows outputs;
  std::vector<std::string> caches;
};

// A prompt in chunks, then tokens one by one.
Outcome run(Engine& engine, const LayerRows& inputs, std::int64_t chunk) {
  SequenceFeeder feeder(engine);
  FedSequence sequence = feeder.create(inputs);
  feeder.feed_to(sequence, kTokens - 10, chunk);
  feeder.feed_to(sequence, kTokens, 1);
  Outcome outcome{.outputs = sequence.outputs, .caches = feeder.digests(sequence)};
  feeder.release(sequence);
  return outcome;
}

// Whole decode steps: layers feed each other. Outputs of the last layer, as digest.
std::string decode(Engine& engine, const LayerRows& inputs, bool capture) {
  const auto sequence = engine.create_sequence();
  EXPECT_OK(sequence);
  const auto bytes = static_cast<std::size_t>(engine.config().hidden_size) * sizeof(Bf16Bits);
  Bf16Bits* kept = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&kept), bytes), cudaSuccess);
  const auto hook = [&](const LayerOutput& layer) -> Status {
    const auto stream = static_cast<cudaStream_t>(layer.stream);
    Bf16Bits* to = layer.next_input != nullptr ? layer.next_input : kept;
    const cudaError_t copied = cudaMemcpyAsync(to, layer.output, bytes, cudaMemcpyDeviceToDevice, stream);
    return copied == cudaSuccess ? Status{} : Status{StatusCode::kFaulted, cudaGetErrorString(copied)};
  };
  Sha256 digest;
  std::vector<Bf16Bits> out(bytes / sizeof(Bf16Bits));
  for (std::size_t token = 0; token < 8; ++token) {
    const StepEntry entry{*sequence, 1};
    const auto step = engine.prepare({&entry, 1}, {.capture = capture});
    EXPECT_OK(step);
    copy_to_device(engine.input(), inputs[0].data() + token * out.size(), bytes);
    EXPECT_OK(engine.step(*step, engine.input(), hook));
    EXPECT_OK(engine.synchronize());
    EXPECT_EQ(cudaMemcpy(out.data(), kept, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    digest.update(std::as_bytes(std::span(out)));
    EXPECT_OK(engine.commit(*step));
  }
  static_cast<void>(cudaFree(kept));
  EXPECT_OK(engine.release(*sequence));
  return digest.hex();
}

using TensorParallelGpu = TwoRanksGpu;

TEST_F(TensorParallelGpu, GivesWhatOneRankGivesWithTheSameCacheBytes) {
  for (const auto encoding : {WeightEncoding::kFp8Block128, WeightEncoding::kBf16}) {
    const SyntheticModel model = model_of(encoding);
    const double tolerance = encoding == WeightEncoding::kBf16 ? 4e-3 : 1e-2;
    const auto alone = make_engine(options_of(model, 0, nullptr));
    const LayerRows inputs = random_rows(11, model.layer_count, kTokens, alone->config().hidden_size);
    const Outcome one = run(*alone, inputs, 64);
    std::array<Outcome, kRanks> outcomes;
    std::array<std::array<std::string, 3>, kRanks> decoded;
    on_ranks(30, [&](int rank, std::shared_ptr<Communicator> ranks) {
      const auto engine = make_engine(options_of(model, rank, std::move(ranks)));
      Outcome& mine = outcomes[static_cast<std::size_t>(rank)];
      mine = run(*engine, inputs, kTokens);
      const Outcome chunks = run(*engine, inputs, 37);
      EXPECT_EQ(chunks.outputs, mine.outputs);
      EXPECT_EQ(chunks.caches, mine.caches);
      auto& digests = decoded[static_cast<std::size_t>(rank)];
      digests = {decode(*engine, inputs, false), decode(*engine, inputs, true), decode(*engine, inputs, true)};
      EXPECT_GT(engine->graph_stats().captures, 0);
    });
    EXPECT_EQ(outcomes[0].outputs, outcomes[1].outputs);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.caches, one.caches);
    for (const auto& digests : decoded) {
      for (const std::string& digest : digests) EXPECT_EQ(digest, decoded[0][0]);
    }
    for (std::size_t layer = 0; layer < one.outputs.size(); ++layer) {
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < one.outputs[layer].size(); ++i) {
        const double expected = to_float(bf16{one.outputs[layer][i]});
        error += std::pow(to_float(bf16{outcomes[0].outputs[layer][i]}) - expected, 2);
        norm += expected * expected;
      }
      EXPECT_LE(std::sqrt(error / norm), tolerance) << "layer " << layer;
    }
  }
}

// Rank 1 stays away from a step, eager or captured: rank 0 waits for its stream and is told in time.
TEST_F(TensorParallelGpu, ARankThatStaysAwayLatchesTheOther) {
  constexpr double kDeadline = 2;
  const SyntheticModel model = model_of(WeightEncoding::kFp8Block128);
  for (const bool capture : {false, true}) {
    on_ranks(kDeadline, [&](int rank, std::shared_ptr<Communicator> ranks) {
      const auto engine = make_engine(options_of(model, rank, std::move(ranks)));
      const LayerRows inputs = random_rows(5, 1, 8, engine->config().hidden_size);
      static_cast<void>(decode(*engine, inputs, capture));
      if (rank == 1) {  // alive until the other has given up
        std::this_thread::sleep_for(std::chrono::duration<double>(kDeadline + 2));
        return;
      }
      const auto sequence = engine->create_sequence();
      ASSERT_OK(sequence);
      const StepEntry entry{*sequence, 1};
      const auto step = engine->prepare({&entry, 1}, {.capture = capture});
      ASSERT_OK(step);
      const auto nothing = [](const LayerOutput&) { return Status{}; };
      const auto begin = std::chrono::steady_clock::now();
      Status status = engine->step(*step, engine->input(), nothing, 7);
      if (status.ok()) status = engine->synchronize();
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      EXPECT_EQ(status.code(), StatusCode::kBackendLost) << status.message();
      EXPECT_LE(waited.count(), kDeadline + 1);
      EXPECT_EQ(engine->commit(*step).message(), status.message());
    });
  }
  // The same process goes on.
  on_ranks(30, [&](int rank, std::shared_ptr<Communicator> ranks) {
    const auto engine = make_engine(options_of(model, rank, std::move(ranks)));
    static_cast<void>(decode(*engine, random_rows(5, 1, 8, engine->config().hidden_size), true));
  });
}

}  // namespace
}  // namespace dsv4rt::test
