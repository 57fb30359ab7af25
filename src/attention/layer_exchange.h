// What a layer of a step whose rows are dealt out brings from rank to rank, before anything has an address: for the
// layer itself and for plans.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/context_rows.h"
#include "cache/cache_layout.h"
#include "dsv4rt/model.h"
#include "layout/row_format.h"

namespace dsv4rt {

// How far around cuts, ends and kept boundaries the rows of a layer are needed.
struct LayerReach {
  SharedReach window;
  SharedReach projections;      // nothing where the layer compresses nothing
  std::int32_t around_cut = 0;  // a row behind a cut is pooled from tokens before it if it is one of the first so many
};

// `window_rows`, `state_rows`: of the rings. `kept_window_rows`, `kept_state_rows`: of a boundary state, 0 where the
// step keeps none.
LayerReach layer_reach(const LayerSpec& spec, std::int64_t sliding_window, std::int32_t window_rows,
                       std::int32_t state_rows, std::int32_t kept_window_rows, std::int32_t kept_state_rows);

struct PackedRange {
  OwnedRows of;
  std::int32_t places = 0;  // rows of the block that they are packed into
};

struct LayerExchange {
  std::vector<OwnedRows> window;
  std::vector<OwnedRows> projections;
  std::vector<PackedRange> finished;
};

LayerExchange layer_exchange(const ContextRows& rows, const LayerSpec& spec, const LayerReach& reach);

// Bytes of a row of each kind.
struct ExchangeFormats {
  RowFormat rows = RowFormat::kFp8DsMla;
  IndexKeyFormat index_keys = IndexKeyFormat::kMxfp4;
};

// FP32 values and scores that a token has in a layer's compressors.
std::int64_t projection_bytes(const LayerSpec& spec) noexcept;
std::int64_t packed_bytes(const LayerSpec& spec, const ExchangeFormats& formats, std::int32_t places);

struct ExchangedBytes {
  std::int64_t window = 0;
  std::int64_t projections = 0;
  std::int64_t finished = 0;
  [[nodiscard]] std::int64_t total() const noexcept { return window + projections + finished; }
};
// Bytes that come to a rank from the others.
ExchangedBytes received_bytes(const LayerExchange& exchange, const ContextRows& rows, const LayerSpec& spec,
                              const ExchangeFormats& formats, std::int32_t rank);

}  // namespace dsv4rt
