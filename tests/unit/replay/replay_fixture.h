// Small models of machines and generated requests for the tests of src/replay.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "replay/replay_run.h"
#include "replay/seeded_hash.h"
#include "support/expect_ok.h"

namespace dsv4rt::replay::test {

using dsv4rt::test::fails_with;

// Decode: 1 ms for 1 sequence, 4 ms for 64. Prefill: 10 us a token from 64 tokens on.
inline StepTable small_table() {
  StepTable table;
  table.provenance = {{"device", "a \"test\" machine\\"}};
  for (const std::int64_t context : {1, 100'000}) {
    table.points.push_back(
        {.kind = StepKind::kDecode, .sequences = 1, .context_tokens = context, .tokens = 1, .microseconds = 1000});
    table.points.push_back(
        {.kind = StepKind::kDecode, .sequences = 64, .context_tokens = context, .tokens = 1, .microseconds = 4000});
    table.points.push_back(
        {.kind = StepKind::kPrefill, .sequences = 1, .context_tokens = context, .tokens = 64, .microseconds = 640});
    table.points.push_back(
        {.kind = StepKind::kPrefill, .sequences = 1, .context_tokens = context, .tokens = 4096, .microseconds = 40960});
  }
  return table;
}

// One CSA and one HCA layer; blocks of 64 and 256 tokens, prefix units of 128.
inline ModelReplayOptions small_options(std::int32_t sequences = 8, std::int64_t pool_tokens = 0,
                                        std::int32_t boundary_states = 64) {
  ModelReplayOptions options;
  options.config.num_hidden_layers = 2;
  options.config.compress_ratios = {4, 128};
  options.config.sliding_window = 128;
  options.config.max_position_embeddings = 1 << 20;
  options.cache.formats.csa_rows_per_block = 16;
  options.cache.formats.hca_rows_per_block = 2;
  options.cache.limits = {.max_sequences = sequences,
                          .max_context_tokens = 4096,
                          .max_step_tokens = 512,
                          .pool_tokens = pool_tokens,
                          .boundary_states = boundary_states};
  options.cache.prefixes.interval_tokens = 128;
  options.table = small_table();
  options.replay.scheduler.max_sequences = sequences;
  options.replay.scheduler.max_context_tokens = 4096;
  options.replay.scheduler.step_tokens = 512;
  options.replay.seed = 1;
  options.replay.check_every_steps = 50;
  return options;
}

inline Request request(std::int64_t index, double arrival_ms, std::int64_t input, std::int64_t output) {
  Request made;
  made.index = index;
  made.id = "r" + std::to_string(index);
  made.line = index + 1;
  made.arrival_ms = arrival_ms;
  made.input_tokens = input;
  made.output_tokens = output;
  return made;
}

struct Load {
  std::int64_t requests = 100;
  double every_ms = 20;
  std::int64_t most_input = 1500;
  std::int64_t most_output = 60;
  std::int64_t shared_prompts = 0;  // prompts begin with one of so many runs of block ids
  std::int32_t priorities = 1;
  std::uint64_t seed = 7;
};

// The same request for the same load and index, whenever it is asked for.
inline Request generated(const Load& load, std::int64_t index) {
  const auto draw = [&](std::uint64_t what, std::int64_t below) {
    const std::uint64_t hash = seeded_hash(scramble(load.seed) + what, static_cast<std::uint64_t>(index));
    return static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(below));
  };
  Request made = request(index, load.every_ms * static_cast<double>(index), 1 + draw(1, load.most_input),
                         1 + draw(2, load.most_output));
  made.priority = static_cast<std::int32_t>(draw(3, load.priorities));
  if (load.shared_prompts > 0) {
    made.block_tokens = 256;
    const auto prompt = static_cast<std::uint64_t>(draw(4, load.shared_prompts));
    for (std::int64_t block = 0; block * 256 < made.input_tokens; ++block) {
      // Three blocks are shared, the others are the request's own.
      const auto own = static_cast<std::uint64_t>(1'000'000 + index);
      made.block_ids.push_back((block < 3 ? prompt : own) * 1000 + static_cast<std::uint64_t>(block));
    }
  }
  return made;
}

inline RequestSupply generate(const Load& load) {
  return [load, next = std::int64_t{0}]() mutable -> Result<std::optional<Request>> {
    if (next == load.requests) return std::optional<Request>();
    return std::optional<Request>(generated(load, next++));
  };
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<std::string> file_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace dsv4rt::replay::test
