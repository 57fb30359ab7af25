// What one launch of the row kernel does: some of the parts between the projections and the reads of the cache,
// each by a range of thread blocks.
#pragma once

#include <cstdint>

#include "backend/ops.h"

namespace dsv4rt::cuda {

// Parts in the order of their blocks: the ones that take longest come first. The last two share their blocks' range
// (QueryTurn of kernel.cuh).
enum RowPart : int { kCompress, kIndexCompress, kWindow, kState, kQuery, kIndexQuery, kRowParts };

// How the rows of `compress` are pooled; fixes the kernel's registers, shared memory and cluster.
enum class Pooling : std::uint8_t { kNone, kInRegisters, kInCluster };

inline constexpr int kRowThreads = 256;  // threads of a block, whatever its part; equals kBlockThreads of row_group.cuh
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kBlockWindowRows = kRowThreads / (kHeadDim / 4);
inline constexpr int kBlockIndexKeys = kRowThreads / (kIndexHeadDim / 2);

struct RowLaunch {
  QueryParams query;
  IndexQueryParams index_query;
  SwaKvParams window;
  SwaRing swa_ring;  // base null: window rows are staged only
  CompressParams compress;
  CompressParams index_compress;
  // The first block after each part's; a part that is not asked for has none.
  std::uint32_t end[kRowParts] = {};
  // Tokens that a cluster (many rows), a block (few rows) or a group of threads (index keys) looks at.
  std::int32_t compress_tokens = 1;
  std::int32_t index_compress_tokens = 1;
  // Tokens whose window rows a group of threads makes, one after the other; 1 where the launch pools.
  std::int32_t window_tokens = 1;
  std::int32_t warp_index_heads = 4;  // heads of a token whose index queries a warp takes
  std::int32_t state_tokens = 1;      // tokens whose projections a block stores in state rings
  bool stores_state = false;          // the state ring of `compress` is written
  bool stores_index_state = false;    // the state ring of `index_compress` is written
};

}  // namespace dsv4rt::cuda
