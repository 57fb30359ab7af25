#include "tools/lib/context_exchange.h"

#include <algorithm>
#include <array>

#include "attention/context_rows.h"
#include "base/bfloat16.h"

namespace dsv4rt {
namespace {

std::int32_t ring_rows(const CacheLayout& layout, LayerId layer, CacheRole role) {
  const int index = layout.slot_index(layer, role);
  return index < 0 ? 0 : layout.slots()[static_cast<std::size_t>(index)].ring_rows;
}

void add(ExchangedBytes& to, const ExchangedBytes& bytes) {
  to.window += bytes.window;
  to.projections += bytes.projections;
  to.finished += bytes.finished;
}

}  // namespace

PromptExchange prompt_exchange(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               std::int32_t ranks, const PromptShape& prompt) {
  const auto count = static_cast<std::size_t>(ranks);
  const ExchangeFormats formats{.rows = layout.formats().rows, .index_keys = layout.formats().index_keys};
  PromptExchange exchange;
  exchange.every.resize(count);
  exchange.one.resize(count);
  exchange.outputs.resize(count);
  for (std::int64_t done = 0; done < prompt.tokens; done += prompt.step_tokens) {
    const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(prompt.step_tokens, prompt.tokens - done));
    ++exchange.steps;
    if (ranks == 1 || tokens < prompt.min_tokens) continue;
    ++exchange.dealt_steps;
    const bool last = done + tokens == prompt.tokens;
    const ContextSplit split(tokens, ranks);
    const std::array<std::int32_t, 2> first_tokens{0, tokens};
    const ContextRows every(split, first_tokens, {});
    const ContextRows one(split, first_tokens, {}, last ? CacheOn::kFirstPlace : CacheOn::kEveryRank);
    for (const LayerSpec& spec : schedule.layers()) {
      const CacheRole state = spec.overlap ? CacheRole::kCsaState : CacheRole::kHcaState;
      const LayerReach reach = layer_reach(spec, config.sliding_window, ring_rows(layout, spec.id, CacheRole::kSwaKv),
                                           ring_rows(layout, spec.id, state), 0, 0);
      const LayerExchange of_every = layer_exchange(every, spec, reach);
      const LayerExchange of_one = layer_exchange(one, spec, reach);
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        add(exchange.every[at], received_bytes(of_every, every, spec, formats, rank));
        add(exchange.one[at], received_bytes(of_one, one, spec, formats, rank));
        std::int64_t own = 0;
        for (const RowRange rows : split.of_rank(rank)) own += rows.count;
        exchange.outputs[at] += (tokens - own) * config.hidden_size * std::int64_t{sizeof(bf16)};
      }
    }
  }
  return exchange;
}

}  // namespace dsv4rt
