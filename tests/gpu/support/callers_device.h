// Every public call of an engine, with the caller's current device looked at after each.
#pragma once

#include <cuda_runtime_api.h>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {

inline int current_device() {
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

inline EngineOptions tiny_engine_options(int device) {
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.backend = "cuda";
  options.device = device;
  options.limits = {.max_sequences = 4, .max_context_tokens = 300, .max_step_tokens = 200, .pool_tokens = 0};
  return options;
}

// Evaluates the call, which gives a Status or a Result, and looks at the device.
#define DSV4RT_KEEPS_DEVICE(device, call) \
  ([&] {                                  \
    auto result = (call);                 \
    EXPECT_OK(result);                    \
    EXPECT_EQ(current_device(), device);  \
    return result;                        \
  }())

inline void expect_calls_keep_device(int callers, int engines) {
  ASSERT_EQ(cudaSetDevice(callers), cudaSuccess);
  auto created = DSV4RT_KEEPS_DEVICE(callers, Engine::create(tiny_engine_options(engines)));
  ASSERT_TRUE(created.ok());
  std::unique_ptr<Engine> engine = std::move(created).value();
  const auto hidden = static_cast<std::size_t>(engine->config().hidden_size);
  const SequenceId sequence = DSV4RT_KEEPS_DEVICE(callers, engine->create_sequence(100)).value();
  std::vector<Bf16Bits> x(40 * hidden, to_bf16(0.25F).bits);
  std::vector<Bf16Bits> out(x.size());
  const auto enqueue_nothing = [&](const LayerOutput&) -> Status {
    EXPECT_EQ(current_device(), callers);
    return {};
  };

  const StepEntry prompt{sequence, 40};
  Step step = DSV4RT_KEEPS_DEVICE(callers, engine->prepare({&prompt, 1})).value();
  for (const LayerId layer : engine->layers()) {
    static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->forward_layer_from_host(step, layer, x.data(), out.data())));
  }
  static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->commit(step)));
  const SequenceId child = DSV4RT_KEEPS_DEVICE(callers, engine->fork(sequence)).value();
  const auto snapshot = DSV4RT_KEEPS_DEVICE(callers, engine->save_sequence(sequence)).value();
  const SequenceId restored = DSV4RT_KEEPS_DEVICE(callers, engine->restore_sequence(snapshot)).value();
  static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->can_admit(10)));
  const StepEntry decode{child, 1};
  for (const bool capture : {false, true, true}) {
    step = DSV4RT_KEEPS_DEVICE(callers, engine->prepare({&decode, 1}, {.capture = capture})).value();
    static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->step(step, engine->input(), enqueue_nothing)));
    static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->synchronize()));
    static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->commit(step)));
  }
  step = DSV4RT_KEEPS_DEVICE(callers, engine->prepare({&decode, 1})).value();
  static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->cancel(step)));
  static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->truncate(restored, 0)));
  static_cast<void>(DSV4RT_KEEPS_DEVICE(callers, engine->release(child)));
  engine.reset();
  EXPECT_EQ(current_device(), callers);
}

// A prompt and some tokens after it: outputs of every layer, and digests of the cache.
struct EngineRun {
  LayerRows outputs;
  std::vector<std::string> digests;
  bool operator==(const EngineRun&) const = default;
};

class RunOfEngine {
 public:
  RunOfEngine(Engine& engine, std::uint64_t seed)
      : feeder_(engine),
        sequence_(feeder_.create(random_rows(seed, engine.layers().size(), kTokens, engine.config().hidden_size))) {}
  [[nodiscard]] bool more() const { return sequence_.length < kTokens; }
  void advance() { feeder_.feed(sequence_, sequence_.length == 0 ? kPrompt : 1); }
  EngineRun finish() {
    while (more() && !testing::Test::HasFatalFailure()) advance();
    EngineRun run{.outputs = sequence_.outputs, .digests = feeder_.digests(sequence_)};
    feeder_.release(sequence_);
    return run;
  }

 private:
  static constexpr std::int64_t kPrompt = 130;
  static constexpr std::int64_t kTokens = 150;
  SequenceFeeder feeder_;
  FedSequence sequence_;
};

}  // namespace dsv4rt::test
