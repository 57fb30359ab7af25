// A model that computes fast, and requests for it, for replays through an engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/synthetic_checkpoint.h"
#include "replay_fixture.h"
#include "support/temp_directory.h"
#include "tools/engine_replay/engine_replay.h"

namespace dsv4rt::replay::test {

// The layers of configs/tiny.json of each kind once, narrower. Written at first use.
inline const std::filesystem::path& fast_checkpoint() {
  static const dsv4rt::test::TempDirectory directory;
  static const std::filesystem::path path = [] {
    ModelConfig model = ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value();
    model.num_hidden_layers = 3;
    model.compress_ratios = {0, 4, 128};
    model.hidden_size = 64;
    model.q_lora_rank = 64;
    model.o_lora_rank = 16;
    model.index_topk = 4;
    model.sliding_window = 16;
    const LayerSchedule schedule = LayerSchedule::create(model).value();
    const std::filesystem::path made = directory / "fast";
    EXPECT_OK(write_synthetic_checkpoint(made, model, schedule.layers(),
                                         {.encoding = WeightEncoding::kBf16, .seed = 7, .max_shard_bytes = 0}));
    return made;
  }();
  return path;
}

// One thread: the steps are too small for more.
inline EngineOptions fast_engine(std::int32_t sequences, std::int64_t pool_tokens, std::int32_t boundary_states) {
  EngineOptions options;
  options.checkpoint = fast_checkpoint();
  options.threads = 1;
  options.csa_rows_per_block = 16;
  options.hca_rows_per_block = 2;
  options.limits = {.max_sequences = sequences,
                    .max_context_tokens = 512,
                    .max_step_tokens = 512,
                    .pool_tokens = pool_tokens,
                    .boundary_states = boundary_states};
  options.prefix_cache.policy.interval_tokens = 128;
  return options;
}

// A cache of which `sequences` at a time nearly fill the blocks, so that those which reserve their prompt alone are
// preempted now and then.
inline EngineReplayOptions crowded_options(Preemption preemption, std::int32_t draft_tokens = 2) {
  EngineReplayOptions options;
  options.engine = fast_engine(8, 768, 12);
  options.replay.scheduler.max_sequences = 0;
  options.replay.scheduler.max_waiting = 100'000;
  options.replay.scheduler.reservation = Reservation::kPrompt;
  options.replay.scheduler.preemption = preemption;
  options.replay.scheduler.draft_tokens = draft_tokens;
  options.replay.acceptance = 0.6;
  options.replay.seed = 3;
  return options;
}

// Half of the prompts begin with a block of 128 tokens that others share, and some with two; one in eight has a long
// answer.
inline Request answered_request(std::int64_t index) {
  const auto draw = [&](std::uint64_t what, std::int64_t below) {
    const std::uint64_t hash = seeded_hash(scramble(91) + what, static_cast<std::uint64_t>(index));
    return static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(below));
  };
  const std::int64_t blocks = std::max<std::int64_t>(0, draw(1, 6) - 2) / 2 + draw(1, 2);
  const std::int64_t output = draw(3, 8) == 0 ? 50 + draw(4, 80) : draw(4, 6);
  Request made = request(index, 2.0 * static_cast<double>(index), blocks * 128 + 2 + draw(2, 30), output);
  if (blocks == 0) return made;
  made.block_tokens = 128;
  const auto group = static_cast<std::uint64_t>(draw(6, 3));
  for (std::int64_t block = 0; block < blocks; ++block) {
    made.block_ids.push_back(group * 100 + static_cast<std::uint64_t>(block));
  }
  return made;
}

// A clock that shows another half millisecond whenever it is looked at.
inline std::function<std::int64_t()> even_clock() {
  return [now_ns = std::int64_t{0}]() mutable { return now_ns += 500'000; };
}

// Numbers first to end - 1.
inline RequestSupply answered_requests(std::int64_t first, std::int64_t end) {
  return [end, next = first]() mutable -> Result<std::optional<Request>> {
    if (next == end) return std::optional<Request>();
    return std::optional<Request>(answered_request(next++));
  };
}

// The digest of every finished request, by its index.
inline std::map<std::int64_t, std::string> digests_of(const std::filesystem::path& requests_file) {
  std::map<std::int64_t, std::string> digests;
  for (const std::string& line : file_lines(requests_file)) {
    const nlohmann::json metadata = nlohmann::json::parse(line).at("metadata");
    if (metadata.at("outcome") == "finished") {
      digests[metadata.at("session_num").get<std::int64_t>()] = metadata.at("output_sha256").get<std::string>();
    }
  }
  return digests;
}

}  // namespace dsv4rt::replay::test
