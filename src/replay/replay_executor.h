// What a replay asks its executor besides running steps: how full the cache is, and whether all is well.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsv4rt/linear_precision.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/prefix_cache.h"
#include "dsv4rt/types.h"
#include "replay/step_executor.h"
#include "replay/step_time_model.h"

namespace dsv4rt::replay {

// Blocks of a paged role, all layers together.
struct RoleOccupancy {
  CacheRole role = CacheRole::kCsaKv;
  std::int64_t total_blocks = 0;
  std::int64_t live_blocks = 0;      // held by sequences
  std::int64_t cached_blocks = 0;    // held by prefixes alone, pinned ones included
  std::int64_t reserved_blocks = 0;  // owed to sequences
};

struct CacheOccupancy {
  std::vector<RoleOccupancy> roles;  // in the order of the roles; those that the model has
  std::int32_t live_sequences = 0;   // slots in use: what all ring roles have
  std::int32_t max_sequences = 0;
  std::int64_t kept_states = 0;  // boundary states of the prefix cache
  std::int64_t max_states = 0;
};

// Counts since the beginning; unset: does not apply.
struct ExecutorCounts {
  std::optional<std::int64_t> extrapolated_steps;  // whose time no measured shapes surround
  std::optional<std::int64_t> captured_steps;      // run by a graph; the others ran eagerly
  std::optional<std::int64_t> graph_captures;      // graphs that were made for these
  std::int64_t saves = 0;                          // sequences moved to host memory
  std::int64_t saved_bytes = 0;
  std::int64_t peak_saved_bytes = 0;  // at a time
};

// What computed the steps of a real run, and what it took beside the cache.
struct EngineOrigin {
  std::string backend;
  std::int32_t layers = 0;
  LinearPrecision linear_precision = LinearPrecision::kExact;
  ExpertTimes experts;
  std::int64_t weight_bytes = 0;
  std::int64_t workspace_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t graph_bytes = 0;       // most that graphs may take
  std::int64_t output_row_bytes = 0;  // rows that are digested, kept until the step has been timed
};

class ReplayExecutor : public StepExecutor {
 public:
  [[nodiscard]] virtual const MemoryPlan& memory_plan() const = 0;
  [[nodiscard]] const CacheLimits& limits() const { return memory_plan().limits; }
  // At present, into `occupancy`, whose memory is used again.
  virtual void occupancy(CacheOccupancy& occupancy) const = 0;
  [[nodiscard]] virtual PrefixStats prefix_stats() const = 0;
  // Tokens at the beginning of these that a sequence would not have to run; 0 without a prefix cache.
  [[nodiscard]] virtual std::int64_t cached_tokens(std::span<const std::int32_t> token_ids) const {
    static_cast<void>(token_ids);
    return 0;
  }
  [[nodiscard]] virtual ExecutorCounts counts() const = 0;
  // Unset unless an engine computes.
  [[nodiscard]] virtual std::optional<EngineOrigin> engine_origin() const { return std::nullopt; }
  // Every invariant of the cache, from scratch; kInternal.
  [[nodiscard]] virtual Status check() const = 0;
  // Digest of the answer of a request (StepPart::request) that has ended, which is forgotten; empty where outputs are
  // not computed.
  virtual std::string take_output_digest(std::int64_t request) {
    static_cast<void>(request);
    return {};
  }

  // While the latest step ran.
  [[nodiscard]] const CacheOccupancy& step_occupancy() const noexcept { return step_occupancy_; }

 protected:
  // Every implementation of run() calls it, with the step prepared.
  void note_occupancy() { occupancy(step_occupancy_); }

 private:
  CacheOccupancy step_occupancy_;
};

}  // namespace dsv4rt::replay
