// What tests of ranks that are threads of one process have in common: a narrow model, its options and its inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/sha256.h"
#include "dsv4rt/engine.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "support/test_backend.h"

namespace dsv4rt::test {

inline constexpr std::int32_t kMinTokens = 32;

// A layer of each kind: window only, every 4 tokens with an indexer, every 128 tokens.
inline SyntheticModel model() {
  return {.config = "tiny", .layer_count = 3, .encoding = WeightEncoding::kBf16};
}

inline EngineOptions options_of(const CacheLimits& limits) {
  EngineOptions options = model().options();
  options.backend = kTestBackend;
  options.threads = 1;
  options.limits = limits;
  return options;
}

inline EngineOptions divided(EngineOptions options, const std::shared_ptr<Communicator>& ranks) {
  options.parallel.context = ranks;
  options.parallel.context_min_tokens = kMinTokens;
  return options;
}

inline LayerRows inputs_of(std::uint64_t seed, std::int64_t tokens) {
  return random_rows(seed, model().layer_count, tokens,
                     ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value().hidden_size);
}

// Outputs and cache of a sequence.
inline std::string digest_of(SequenceFeeder& feeder, const FedSequence& sequence) {
  Sha256 digest;
  for (const auto& layer : sequence.outputs) digest.update(std::as_bytes(std::span(layer)));
  for (const std::string& cache : feeder.digests(sequence)) digest.update(std::as_bytes(std::span(cache)));
  return digest.hex();
}

}  // namespace dsv4rt::test
