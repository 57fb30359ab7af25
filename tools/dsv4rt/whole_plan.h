// The memory of an engine by its role: what plan says before there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cache/cache_layout.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/model.h"
#include "dsv4rt/status.h"
#include "tools/lib/context_exchange.h"

namespace dsv4rt::cli {

// What is to be planned; the flags of dsv4rt plan.
struct PlanFlags {
  std::string config;
  std::string checkpoint;  // instead of the config
  std::string layers;
  std::string weights;  // encoding; empty: as the config or the checkpoint says
  std::string memory;
  std::string other = "";
  std::string cache_format = "fp8_ds_mla";
  std::string index_format = "mxfp4";
  std::string backend = "cpu";
  std::int32_t threads = 0;
  std::int64_t max_context = 0;
  std::string context;  // tokens of the sequences that are to be counted
  std::int32_t sequences = 1;
  std::int32_t max_step_tokens = 2048;
  std::int64_t pool_tokens = 0;
  std::int32_t prefix_states = 0;
  std::int32_t tensor_ranks = 1;
  std::int32_t context_ranks = 1;
  std::string prompt;  // tokens whose exchange between context_ranks is planned; empty: max_step_tokens
  CacheFormats formats;
};

// The model, or the part of it, whose memory is planned.
struct PlannedModel {
  ModelConfig config;
  LayerSchedule schedule;
  ModelConfig rank_config;  // one of several ranks
  std::string encoding;     // how linears are stored; "as stored" for a checkpoint
  std::int64_t weight_bytes = 0;
  std::int64_t rank_weight_bytes = 0;
};

// What the cache leaves to others, and --other besides.
struct StepMemory {
  std::int64_t weight_bytes = 0;  // attention weights of this rank
  std::int64_t workspace_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t graph_bytes = 0;
  std::int64_t exchange_bytes = 0;  // with several ranks

  [[nodiscard]] std::int64_t total_bytes() const {
    return weight_bytes + workspace_bytes + scratch_bytes + graph_bytes + exchange_bytes;
  }
};

// With context parallelism: a prompt over the ranks.
struct PlannedPrompt {
  std::int64_t tokens = 0;
  PromptExchange exchange = {};
  std::int64_t cache_bytes = 0;  // what a rank has of the prompt, if it has it
};

struct WholePlan {
  MemoryPlan cache;
  StepMemory steps;
  PlannedModel model;
  std::optional<PlannedPrompt> prompt;      // with --cp
  std::optional<std::int64_t> cache_bytes;  // what --memory leaves for the cache
  bool counted = false;                     // max_sequences is how many fit
};

// "4096 (4.00 KiB)".
std::string bytes_text(std::int64_t bytes);

// As an engine with default options would allocate. `other_bytes`: what others take of --memory. kResourceExhausted
// with the bytes of everything where nothing fits; kInvalidArgument and kUnsupported naming flags; errors of config and
// checkpoint.
Result<WholePlan> make_plan(const PlanFlags& flags, std::int64_t other_bytes);

}  // namespace dsv4rt::cli
