// A golden checkpoint with its trace, and engines for it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "dsv4rt/engine.h"
#include "support/expect_ok.h"
#include "support/layer_rows.h"
#include "support/test_backend.h"
#include "tools/lib/attention_trace.h"

namespace dsv4rt::test {

inline std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(DSV4RT_SOURCE_DIR) / "tests/golden" / name;
}

struct GoldenCase {
  std::filesystem::path checkpoint;
  ModelConfig config;
  AttentionTrace trace;  // trace of the loaded layers
  LayerRows inputs;      // inputs of the same layers, as the trace records them
  std::int32_t first_layer = 0;
  std::int32_t layer_count = 0;

  // layer_count 0: to the last layer.
  static GoldenCase open(const std::string& name, std::int32_t first_layer = 0, std::int32_t layer_count = 0) {
    GoldenCase golden;
    golden.checkpoint = golden_path(name);
    golden.config = ModelConfig::from_file(golden.checkpoint / "config.json").value();
    golden.first_layer = first_layer;
    golden.layer_count =
        layer_count == 0 ? static_cast<std::int32_t>(golden.config.num_hidden_layers) - first_layer : layer_count;
    golden.trace = AttentionTrace::open(golden.checkpoint / "trace.safetensors", golden.config, LayerId(first_layer),
                                        LayerId(first_layer + golden.layer_count - 1))
                       .value();
    for (const LayerTrace& layer : golden.trace.layers) {
      auto& rows = golden.inputs.emplace_back();
      for (const bf16 value : layer.input) rows.push_back(value.bits);
    }
    return golden;
  }

  [[nodiscard]] std::int64_t tokens() const { return trace.tokens(); }
  [[nodiscard]] std::int64_t layers() const { return layer_count; }
  [[nodiscard]] std::int64_t hidden() const { return config.hidden_size; }

  // One sequence as long as the trace, fed in steps of any size, on one thread.
  [[nodiscard]] EngineOptions options() const {
    EngineOptions options;
    options.checkpoint = checkpoint;
    options.backend = kTestBackend;
    options.threads = 1;
    options.first_layer = first_layer;
    options.layer_count = layer_count;
    options.limits = {.max_sequences = 1,
                      .max_context_tokens = tokens(),
                      .max_step_tokens = static_cast<std::int32_t>(tokens()),
                      .pool_tokens = 0};
    return options;
  }
};

inline std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  auto engine = Engine::create(options);
  EXPECT_OK(engine);
  return std::move(engine).value();
}

}  // namespace dsv4rt::test
