#include "tools/lib/context_exchange.h"

#include <algorithm>
#include <array>

#include "attention/context_rows.h"
#include "base/arithmetic.h"
#include "base/bfloat16.h"

namespace dsv4rt {
namespace {

std::int32_t ring_rows(const CacheLayout& layout, LayerId layer, CacheRole role) {
  const int index = layout.slot_index(layer, role);
  return index < 0 ? 0 : layout.slots()[static_cast<std::size_t>(index)].ring_rows;
}

void add(ExchangedBytes& to, const ExchangedBytes& bytes, std::int64_t times) {
  to.window += times * bytes.window;
  to.projections += times * bytes.projections;
  to.finished += times * bytes.finished;
}

// Layers of a kind exchange the same.
struct LayerKind {
  LayerSpec spec;
  std::int64_t layers = 0;
};
std::vector<LayerKind> layer_kinds(const LayerSchedule& schedule) {
  std::vector<LayerKind> kinds;
  for (const LayerSpec& spec : schedule.layers()) {
    const auto same = [&spec](const LayerKind& kind) {
      return kind.spec.ratio == spec.ratio && kind.spec.overlap == spec.overlap && kind.spec.indexer == spec.indexer;
    };
    const auto found = std::find_if(kinds.begin(), kinds.end(), same);
    if (found == kinds.end()) {
      kinds.push_back({.spec = spec, .layers = 1});
    } else {
      ++found->layers;
    }
  }
  return kinds;
}

}  // namespace

std::int64_t sequence_cache_bytes(const CacheLayout& layout, std::int64_t tokens) {
  std::int64_t bytes = layout.bytes_per_sequence();
  for (const PoolSpec& pool : layout.pools()) {
    bytes += ceil_div(tokens / pool.ratio, std::int64_t{pool.shape.rows}) * pool.shape.block_bytes;
  }
  return bytes;
}

PromptExchange prompt_exchange(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               std::int32_t ranks, const PromptShape& prompt) {
  const auto count = static_cast<std::size_t>(ranks);
  const ExchangeFormats formats{.rows = layout.formats().rows, .index_keys = layout.formats().index_keys};
  const std::vector<LayerKind> kinds = layer_kinds(schedule);
  PromptExchange exchange;
  exchange.every.resize(count);
  exchange.one.resize(count);
  exchange.outputs.resize(count);
  // So many equal steps, the prompt's last one or not.
  const auto add_steps = [&](std::int64_t times, std::int32_t tokens, bool last) {
    exchange.steps += times;
    if (times == 0 || ranks == 1 || tokens < prompt.min_tokens) return;
    exchange.dealt_steps += times;
    const ContextSplit split(tokens, ranks);
    const std::array<std::int32_t, 2> first_tokens{0, tokens};
    const ContextRows every(split, first_tokens, {});
    const ContextRows one(split, first_tokens, {}, last ? CacheOn::kFirstPlace : CacheOn::kEveryRank);
    for (const auto& [spec, layers] : kinds) {
      const CacheRole state = spec.overlap ? CacheRole::kCsaState : CacheRole::kHcaState;
      const LayerReach reach = layer_reach(spec, config.sliding_window, ring_rows(layout, spec.id, CacheRole::kSwaKv),
                                           ring_rows(layout, spec.id, state), 0, 0);
      const LayerExchange of_every = layer_exchange(every, spec, reach);
      const LayerExchange of_one = layer_exchange(one, spec, reach);
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        add(exchange.every[at], received_bytes(of_every, every, spec, formats, rank), times * layers);
        add(exchange.one[at], received_bytes(of_one, one, spec, formats, rank), times * layers);
        std::int64_t own = 0;
        for (const RowRange rows : split.of_rank(rank)) own += rows.count;
        exchange.outputs[at] += times * layers * (tokens - own) * config.hidden_size * std::int64_t{sizeof(bf16)};
      }
    }
  };
  if (prompt.tokens <= 0) return exchange;
  const std::int64_t before = (prompt.tokens - 1) / prompt.step_tokens;  // steps before the last
  add_steps(before, prompt.step_tokens, false);
  add_steps(1, static_cast<std::int32_t>(prompt.tokens - before * prompt.step_tokens), true);
  return exchange;
}

}  // namespace dsv4rt
