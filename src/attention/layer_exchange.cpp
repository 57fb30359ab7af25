#include "attention/layer_exchange.h"

#include "backend/ops.h"

namespace dsv4rt {

LayerReach layer_reach(const LayerSpec& spec, std::int64_t sliding_window, std::int32_t window_rows,
                       std::int32_t state_rows, std::int32_t kept_window_rows, std::int32_t kept_state_rows) {
  LayerReach reach;
  reach.window = {.before_cut = static_cast<std::int32_t>(sliding_window) - 1,
                  .behind_cut = 0,
                  .at_end = window_rows,
                  .before_boundary = kept_window_rows};
  if (spec.ratio == 0) return reach;
  reach.around_cut = spec.ratio * (spec.overlap ? 2 : 1) - 1;
  reach.projections = {.before_cut = reach.around_cut,
                       .behind_cut = reach.around_cut,
                       .at_end = state_rows,
                       .before_boundary = spec.overlap ? kept_state_rows : 0};
  return reach;
}

LayerExchange layer_exchange(const ContextRows& rows, const LayerSpec& spec, const LayerReach& reach) {
  LayerExchange exchange;
  const auto take = [&rows](std::vector<OwnedRows>& to, const SharedReach& of) {
    for (const OwnedRows& shared : rows.shared(of)) {
      if (rows.travel(shared)) to.push_back(shared);
    }
  };
  take(exchange.window, reach.window);
  if (spec.ratio == 0) return exchange;
  take(exchange.projections, reach.projections);
  for (const OwnedRows& of : rows.owned(reach.around_cut)) {
    const std::int32_t sequences = rows.sequences_in(of.rows);
    if (sequences == 0) continue;  // padding
    exchange.finished.push_back({.of = of, .places = packed_places(of.rows.count, spec.ratio, sequences)});
  }
  return exchange;
}

std::int64_t projection_bytes(const LayerSpec& spec) noexcept {
  if (spec.ratio == 0) return 0;
  const std::int64_t columns = (spec.overlap ? 2 : 1) * (kHeadDim + (spec.indexer ? kIndexHeadDim : 0));
  return 2 * columns * std::int64_t{sizeof(float)};
}

std::int64_t packed_bytes(const LayerSpec& spec, const ExchangeFormats& formats, std::int32_t places) {
  const std::int64_t rows = block_shape(formats.rows, places).block_bytes;
  return rows + (spec.indexer ? block_shape(formats.index_keys, places).block_bytes : 0);
}

ExchangedBytes received_bytes(const LayerExchange& exchange, const ContextRows& rows, const LayerSpec& spec,
                              const ExchangeFormats& formats, std::int32_t rank) {
  const auto comes = [&](const OwnedRows& of) { return of.owner != rank && rows.reads(of, rank); };
  ExchangedBytes bytes;
  const std::int64_t window_bytes = block_shape(formats.rows, 1).row_bytes();
  for (const OwnedRows& of : exchange.window) bytes.window += comes(of) ? of.rows.count * window_bytes : 0;
  for (const OwnedRows& of : exchange.projections) {
    bytes.projections += comes(of) ? of.rows.count * projection_bytes(spec) : 0;
  }
  for (const PackedRange& range : exchange.finished) {
    bytes.finished += comes(range.of) ? packed_bytes(spec, formats, range.places) : 0;
  }
  return bytes;
}

}  // namespace dsv4rt
