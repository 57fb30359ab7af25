#include "tools/lib/prefix_replay.h"

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/sha256.h"
#include "base/try.h"
#include "cache/cache_layout.h"

namespace dsv4rt {
namespace {

constexpr const char* kStopped = "stopped before it was compared";

// Bytes of outputs from `first` on that are not equal, layer by layer.
std::vector<std::string> output_differences(const TraceRun& cold, const TraceRun& warm, std::int64_t first,
                                            std::int64_t hidden) {
  std::vector<std::string> differences;
  for (std::size_t i = 0; i < cold.layers.size(); ++i) {
    const std::vector<bf16>& expected = cold.layers[i].output;
    const std::vector<bf16>& actual = warm.layers[i].output;
    std::size_t at = static_cast<std::size_t>(first * hidden);
    while (at < expected.size() && expected[at].bits == actual[at].bits) ++at;
    if (at == expected.size()) continue;
    differences.push_back("layer " + std::to_string(cold.layers[i].layer.value) + ": outputs differ from token " +
                          std::to_string(at / static_cast<std::size_t>(hidden)) + " on");
  }
  return differences;
}

std::vector<std::string> cache_differences(const std::vector<RoleDigest>& cold, const std::vector<RoleDigest>& warm) {
  std::vector<std::string> differences;
  for (std::size_t i = 0; i < cold.size(); ++i) {
    if (cold[i].sha256 == warm[i].sha256) continue;
    differences.push_back("layer " + std::to_string(cold[i].layer.value) + ": " +
                          std::string(cache_role_name(cold[i].role)) + " differs");
  }
  return differences;
}

void append(std::vector<std::string>& all, std::vector<std::string> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// A sequence whose ids are those of the trace up to the boundary and one token more, since the last token is never
// part of a hit. It takes no states: those that are to be replayed stay.
Result<SequenceStart> begin_at(Engine& engine, std::span<const std::int32_t> token_ids, std::int64_t boundary) {
  const auto tokens = static_cast<std::size_t>(boundary);
  std::vector<std::int32_t> ids(token_ids.begin(), token_ids.begin() + boundary);
  ids.push_back(tokens < token_ids.size() ? token_ids[tokens] : 0);
  const PrefixPolicy none{.interval_tokens = 0, .prompt_end = false, .output_end = false, .fork_points = false};
  return engine.create_sequence(ids, {.salt = {}, .reserve_tokens = 0, .policy = none});
}

Status replay(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options, const ColdRun& cold,
              PrefixReplay& result) {
  DSV4RT_ASSIGN_OR_RETURN(const SequenceStart start, begin_at(engine, options.token_ids, result.boundary));
  result.hit_tokens = start.hit_tokens;
  if (start.hit_tokens != result.boundary) {
    result.differences.push_back("the sequence began with " + std::to_string(start.hit_tokens) + " tokens");
  }
  DSV4RT_ASSIGN_OR_RETURN(const TraceRun warm, continue_trace(engine, trace, options, start.sequence, {}));
  if (warm.stopped) {
    result.skipped = kStopped;
    return engine.release(start.sequence);
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<RoleDigest> cache, digest_roles(engine, start.sequence));
  DSV4RT_RETURN_IF_ERROR(engine.release(start.sequence));

  std::vector<std::string> outputs = output_differences(cold.run, warm, start.hit_tokens, engine.config().hidden_size);
  std::vector<std::string> caches = cache_differences(cold.cache, cache);
  result.outputs_equal = outputs.empty();
  result.caches_equal = caches.empty();
  append(result.differences, std::move(outputs));
  append(result.differences, std::move(caches));
  return {};
}

}  // namespace

std::vector<std::int32_t> trace_token_ids(const AttentionTrace& trace) {
  std::vector<std::int32_t> ids;
  Sha256 hash;
  for (std::int64_t token = 0; token < trace.tokens(); ++token) {
    hash.restart();
    for (const LayerTrace& layer : trace.layers) {
      const std::size_t hidden = layer.input.size() / static_cast<std::size_t>(trace.tokens());
      hash.update(std::as_bytes(std::span(layer.input).subspan(static_cast<std::size_t>(token) * hidden, hidden)));
    }
    const Sha256::Digest digest = hash.finish();
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < sizeof(bits); ++i) bits = bits << 8 | std::to_integer<std::uint32_t>(digest[i]);
    ids.push_back(static_cast<std::int32_t>(bits >> 1));
  }
  return ids;
}

std::function<void(const PrefixEvent&)> KeptBoundaries::listener() {
  return [this](const PrefixEvent& event) {
    if (event.kind == PrefixEvent::Kind::kStateStored) boundaries_[event.end_tokens] = true;
    if (event.kind == PrefixEvent::Kind::kStateRemoved) boundaries_[event.end_tokens] = false;
  };
}

Result<std::vector<RoleDigest>> digest_roles(Engine& engine, SequenceId sequence) {
  EngineInspector inspector(engine);
  std::vector<RoleDigest> digests;
  for (const LayerId layer : engine.layers()) {
    for (const CacheRole role : inspector.roles(layer)) {
      Sha256 digest;
      DSV4RT_RETURN_IF_ERROR(inspector.digest_role(layer, role, sequence, digest));
      digests.push_back({.layer = layer, .role = role, .sha256 = digest.hex()});
    }
  }
  return digests;
}

Result<std::vector<PrefixReplay>> replay_prefixes(Engine& engine, const AttentionTrace& trace,
                                                  const TraceRunOptions& options, const ColdRun& cold,
                                                  const KeptBoundaries& kept, const TraceProgress& progress) {
  DSV4RT_RETURN_IF_ERROR(engine.release(cold.run.sequence));
  const std::int64_t most_tokens = engine.memory().cache.limits.max_context_tokens;
  std::vector<PrefixReplay> replays;
  for (const auto& [boundary, there_before] : std::map<std::int64_t, bool>(kept.boundaries())) {
    PrefixReplay result;
    result.boundary = boundary;
    if (options.watch != nullptr && options.watch->asks_to_end()) {
      result.skipped = kStopped;
    } else if (!kept.boundaries().at(boundary)) {
      result.skipped = "its state left the cache for another one";
    } else if (boundary >= most_tokens) {
      result.skipped = "a sequence that begins here needs room for one token more";
    } else {
      DSV4RT_RETURN_IF_ERROR(replay(engine, trace, options, cold, result));
    }
    replays.push_back(std::move(result));
    if (progress)
      progress(static_cast<std::int64_t>(replays.size()), static_cast<std::int64_t>(kept.boundaries().size()));
  }
  return replays;
}

}  // namespace dsv4rt
