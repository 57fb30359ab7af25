// Whole steps of an engine on the GPU, captured or eager, with every layer's output kept.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "dsv4rt/engine.h"
#include "support/expect_ok.h"
#include "support/golden_case.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {

// An engine that runs whole steps on rows given by the test and keeps every layer's output.
class StepRecorder {
 public:
  // Steps of up to `max_tokens` rows.
  StepRecorder(const EngineOptions& options, bool capture, std::int64_t max_tokens)
      : engine_(make_engine(options)), capture_(capture) {
    const auto hidden = static_cast<std::size_t>(engine_->config().hidden_size);
    layer_bytes_ = static_cast<std::size_t>(max_tokens) * hidden * sizeof(Bf16Bits);
    EXPECT_EQ(cudaMalloc(&record_, layer_bytes_ * engine_->layers().size()), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&x_, layer_bytes_), cudaSuccess);
  }
  ~StepRecorder() {
    engine_.reset();
    static_cast<void>(cudaFree(record_));
    static_cast<void>(cudaFree(x_));
  }
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  [[nodiscard]] Engine& engine() { return *engine_; }

  // Runs the step and returns the outputs of all layers, valid rows only. Padding rows are NaN.
  std::vector<Bf16Bits> run(std::span<const StepEntry> entries, const std::vector<Bf16Bits>& rows,
                            std::span<const std::int32_t> accepted) {
    const auto hidden = static_cast<std::size_t>(engine_->config().hidden_size);
    const auto step = engine_->prepare(entries, {.capture = capture_});
    EXPECT_OK(step);
    if (!step.ok()) return {};
    auto stream = static_cast<cudaStream_t>(engine_->stream());
    EXPECT_EQ(cudaMemsetAsync(x_, 0xff, layer_bytes_, stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(x_, rows.data(), rows.size() * sizeof(Bf16Bits), cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    std::size_t layer = 0;
    const auto hook = [&](const LayerOutput& output) -> Status {
      const auto bytes = static_cast<std::size_t>(step->tokens) * hidden * sizeof(Bf16Bits);
      auto* to = static_cast<std::byte*>(record_) + layer_bytes_ * layer++;
      auto on = static_cast<cudaStream_t>(output.stream);
      EXPECT_EQ(cudaMemcpyAsync(to, output.output, bytes, cudaMemcpyDeviceToDevice, on), cudaSuccess);
      if (output.next_input != nullptr) {
        EXPECT_EQ(cudaMemcpyAsync(output.next_input, x_, bytes, cudaMemcpyDeviceToDevice, on), cudaSuccess);
      }
      return {};
    };
    EXPECT_OK(engine_->step(*step, static_cast<const Bf16Bits*>(x_), hook));
    EXPECT_OK(engine_->synchronize());
    EXPECT_OK(engine_->commit(*step, accepted));
    std::vector<Bf16Bits> outputs;
    const auto valid = static_cast<std::size_t>(step->valid_tokens) * hidden;
    for (std::size_t i = 0; i < engine_->layers().size(); ++i) {
      std::vector<Bf16Bits> one(valid);
      EXPECT_EQ(cudaMemcpy(one.data(), static_cast<std::byte*>(record_) + layer_bytes_ * i, valid * sizeof(Bf16Bits),
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      outputs.insert(outputs.end(), one.begin(), one.end());
    }
    return outputs;
  }

  std::string digest(SequenceId sequence) {
    EngineInspector inspector(*engine_);
    Sha256 digest;
    for (const LayerId layer : engine_->layers()) EXPECT_OK(inspector.digest_cache(layer, sequence, digest));
    return digest.hex();
  }

 private:
  std::unique_ptr<Engine> engine_;
  bool capture_;
  std::size_t layer_bytes_ = 0;
  void* record_ = nullptr;  // [layers][max_tokens, hidden]
  void* x_ = nullptr;       // [max_tokens, hidden]
};

}  // namespace dsv4rt::test
