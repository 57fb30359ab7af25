// Begins sequences from every prefix that a trace run left in the cache and compares them with that run, byte for byte.
//
//   KeptBoundaries kept;
//   options.prefix_cache.on_event = kept.listener();
//   ... run_trace with token ids: the cold run ...
//   auto cache = digest_roles(engine, run.sequence);
//   auto replays = replay_prefixes(engine, trace, trace_options, {run, *cache}, kept, {});
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dsv4rt/engine.h"
#include "tools/lib/attention_trace.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt {

// Ids for a trace's tokens, which has none: of each token the first 31 bits of the SHA-256 of its input rows, layer by
// layer. Equal rows have equal ids, whatever the machine.
std::vector<std::int32_t> trace_token_ids(const AttentionTrace& trace);

// The boundaries at which states were taken, and whether they still are there.
class KeptBoundaries {
 public:
  // Of an engine in which one sequence's tokens enter the cache. The object outlives it.
  [[nodiscard]] std::function<void(const PrefixEvent&)> listener();
  // Whether the state is there, by boundary.
  [[nodiscard]] const std::map<std::int64_t, bool>& boundaries() const noexcept { return boundaries_; }

 private:
  std::map<std::int64_t, bool> boundaries_;
};

// SHA-256 of what a sequence has in one role of a layer (EngineInspector::digest_role).
struct RoleDigest {
  LayerId layer;
  CacheRole role = CacheRole::kSwaKv;
  std::string sha256;
};
Result<std::vector<RoleDigest>> digest_roles(Engine& engine, SequenceId sequence);

// A run from an empty cache, and what its sequence held at the end.
struct ColdRun {
  const TraceRun& run;
  const std::vector<RoleDigest>& cache;
};

// A sequence that began with a cached prefix and ran the rest of the trace.
struct PrefixReplay {
  std::int64_t boundary = 0;
  std::int64_t hit_tokens = 0;
  bool outputs_equal = false;
  bool caches_equal = false;
  std::string skipped;                   // why nothing was run; empty: it was
  std::vector<std::string> differences;  // from the cold run; empty if there are none

  [[nodiscard]] bool ok() const noexcept { return skipped.empty() && differences.empty(); }
};

// Releases the cold run's sequence, then replays the rest of the trace from every boundary of `kept`, ascending. A
// boundary that cannot be replayed is in the answer with the reason. The engine needs room for the trace twice, two
// sequences, and one token more than the trace for the boundary at its end. Replays take no states.
Result<std::vector<PrefixReplay>> replay_prefixes(Engine& engine, const AttentionTrace& trace,
                                                  const TraceRunOptions& options, const ColdRun& cold,
                                                  const KeptBoundaries& kept, const TraceProgress& progress);

}  // namespace dsv4rt
