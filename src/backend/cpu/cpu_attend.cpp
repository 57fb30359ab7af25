// Attention over window rows and compressed rows.
#include <algorithm>
#include <cmath>

#include "backend/attend_weights.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/paged_rows.h"
#include "backend/cpu/rope_rows.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/step_tokens.h"
#include "backend/cpu/worker_scratch.h"
#include "backend/require.h"
#include "base/arithmetic.h"
#include "base/check.h"
#include "base/try.h"

namespace dsv4rt::cpu {
namespace {

// Up to this many rows stay decoded between the two passes over them (1.4 MiB, what a level-2 cache
// holds); longer lists are decoded again for the second pass, which costs a twentieth of the arithmetic.
constexpr std::int32_t kResidentRows = 7 * kTileRows;
constexpr std::int32_t kMaxGroupHeads = 64;
static_assert(kMaxGroupHeads % kHeadLanes == 0);

// The rows of one token in their order: window oldest first, then compressed rows ascending.
class TokenRows {
 public:
  TokenRows(const AttendParams& params, std::int64_t token)
      : params_(params), place_(token_position(params.step, token)) {
    if (!place_.real) return;
    window_ = std::min(params.window, place_.position + 1);
    if (params.ratio == 0) return;
    if (params.topk_indices != nullptr) {
      selected_ = params.topk_indices + token * params.topk_stride;
      compressed_ = params.topk_count[token];
    } else {
      compressed_ = visible_rows(place_.position, params.ratio);
    }
  }

  [[nodiscard]] std::int32_t count() const { return window_ + compressed_; }
  [[nodiscard]] std::int32_t window() const { return window_; }

  // Rows [begin, begin + count) to FP32, kDecodedStride apart.
  void decode(const RowKernels& kernels, std::int32_t begin, std::int32_t count, float* out) const {
    for (std::int32_t i = begin; i < begin + count; ++i, out += kDecodedStride) {
      if (i < window_) {
        decode_window(kernels, place_.position - window_ + 1 + i, out);
      } else {
        decode_compressed(kernels, i - window_, out);
      }
    }
  }

 private:
  void decode_window(const RowKernels& kernels, std::int32_t position, float* out) const {
    if (position >= place_.start) {
      kernels.decode_row(params_.ring.format, params_.staged_shape, params_.staged, place_.token_of(position), out);
      return;
    }
    const SwaRing& ring = params_.ring;
    kernels.decode_row(ring.format, ring.shape, ring.base + place_.slot * ring.slot_bytes, position % ring.shape.rows,
                       out);
  }

  void decode_compressed(const RowKernels& kernels, std::int32_t index, float* out) const {
    const PagedRows& rows = params_.rows;
    const std::int32_t row = selected_ != nullptr ? selected_[index] : index;
    kernels.decode_row(params_.row_format, rows.shape, rows.blocks + block_offset(rows, place_.slot, row),
                       row % rows.shape.rows, out);
  }

  const AttendParams& params_;
  TokenPosition place_;
  std::int32_t window_ = 0;
  std::int32_t compressed_ = 0;
  const std::int32_t* selected_ = nullptr;
};

// Where one worker keeps its intermediate values.
struct AttendScratch {
  AttendScratch(float* base, std::int64_t padded) {
    columns = base;
    sink = columns + padded * kHeadDim;
    denominator = sink + padded;
    sums = denominator + padded;
    rows = sums + padded * kHeadDim;
    scores = rows + std::int64_t{kResidentRows} * kDecodedStride;
  }
  static std::int64_t values(std::int64_t padded, std::int64_t most_rows) {
    return padded * (2 * kHeadDim + 2) + std::int64_t{kResidentRows} * kDecodedStride +
           round_up<std::int64_t>(most_rows, kTileRows) * padded;
  }

  float* columns;      // [kHeadDim, padded] queries, heads in lanes
  float* sink;         // [padded]
  float* denominator;  // [padded]
  float* sums;         // [padded, kHeadDim]
  float* rows;         // [kResidentRows, kDecodedStride]
  float* scores;       // [rows of the token, padded]
};

// Heads [head, head + heads) of one token.
void attend_heads(const AttendParams& params, const RowKernels& kernels, std::int64_t token, std::int32_t head,
                  std::int32_t heads, float* worker_scratch) {
  const TokenRows rows(params, token);
  const std::int64_t first = (token * params.heads + head) * kHeadDim;
  const std::int32_t count = rows.count();
  if (count == 0) {  // padding
    std::fill_n(params.o + first, std::int64_t{heads} * kHeadDim, bf16{});
    return;
  }
  const std::int32_t padded = round_up(heads, kHeadLanes);
  const AttendScratch scratch(worker_scratch, padded);
  kernels.heads_to_lanes(params.q + first, heads, kHeadDim, padded, scratch.columns);
  std::fill_n(scratch.sink, padded, 0.0f);
  std::copy_n(params.sink + head, heads, scratch.sink);

  const bool resident = count <= kResidentRows;
  const auto tile_rows = [&](std::int32_t tile) {
    return scratch.rows + (resident ? std::int64_t{tile} * kDecodedStride : 0);
  };
  for (std::int32_t tile = 0; tile < count; tile += kTileRows) {
    const std::int32_t size = std::min(kTileRows, count - tile);
    rows.decode(kernels, tile, size, tile_rows(tile));
    kernels.scores(scratch.columns, padded, kHeadDim, tile_rows(tile), kDecodedStride, size,
                   scratch.scores + std::int64_t{tile} * padded);
  }
  constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
  static_assert(kHeadDim == 512);
  const bool by_power = weighs_by_power(params.topk_indices != nullptr, count);
  kernels.softmax(scratch.scores, count, rows.window(), padded, kScale, by_power, scratch.sink, scratch.denominator);
  std::fill_n(scratch.sums, std::int64_t{padded} * kHeadDim, 0.0f);
  for (std::int32_t tile = 0; tile < count; tile += kTileRows) {
    const std::int32_t size = std::min(kTileRows, count - tile);
    if (!resident) rows.decode(kernels, tile, size, tile_rows(tile));
    kernels.accumulate(scratch.scores + std::int64_t{tile} * padded, padded, tile_rows(tile), kDecodedStride, size,
                       scratch.sums);
  }
  kernels.finish(scratch.sums, scratch.denominator, heads, params.o + first);
  const RopeRotation rotation(params.output_rope, params.step.token_position[token]);
  for (std::int64_t h = 0; h < heads; ++h) rotation.apply(params.o + first + h * kHeadDim + kNopeDim);
}

// Heads that one work item takes: as many as share a decoded row cheaply, fewer when the step has too
// few tokens to occupy the team.
std::int32_t heads_per_item(std::int64_t tokens, std::int32_t heads, int threads) {
  std::int32_t group = kMaxGroupHeads;
  while (group > kHeadLanes && tokens * ceil_div(heads, group) < threads) group /= 2;
  return std::min(group, round_up(heads, kHeadLanes));
}

// The widest group of heads that an item may have.
std::int32_t most_heads_per_item(std::int32_t heads) {
  return std::min(kMaxGroupHeads, round_up(heads, kHeadLanes));
}

}  // namespace

std::int64_t CpuOps::attend_scratch_bytes(const StepShapes& shapes, int threads) {
  std::int64_t compressed = 0;
  for (const CompressedRowsShape& rows : shapes.compressed) {
    const std::int64_t visible = shapes.max_context_tokens / rows.ratio;
    compressed = std::max(compressed, rows.index_heads > 0 ? std::min(visible, rows.top_k) : visible);
  }
  const std::int64_t most_rows = std::min(shapes.window, shapes.max_context_tokens) + compressed;
  return WorkerScratch::bytes(threads, 0, AttendScratch::values(most_heads_per_item(shapes.heads), most_rows));
}

Result<bool> CpuOps::norms_queries(const AttendParams& /*params*/) {
  return false;
}

Status CpuOps::attend(const AttendParams& params) {
  DSV4RT_RETURN_IF_ERROR(require(!params.query_eps, "attend", "query_eps", 1, "none: query() norms queries here"));
  DSV4RT_RETURN_IF_ERROR(require(!params.encoded, "attend", "encoded", 1, "none: linears here take values"));
  DSV4RT_CHECK(params.window >= 1 && params.heads >= 1 && params.window <= params.ring.shape.rows);
  const std::int64_t tokens = params.step.counts.tokens;
  std::int64_t most_rows = 0;
  for (std::int64_t token = 0; token < tokens; ++token) {
    most_rows = std::max<std::int64_t>(most_rows, TokenRows(params, token).count());
  }
  const std::int32_t group = heads_per_item(tokens, params.heads, team_.threads());
  const std::int64_t groups = ceil_div(params.heads, group);
  DSV4RT_ASSIGN_OR_RETURN(
      const WorkerScratch scratch,
      WorkerScratch::take(scratch_, team_.threads(), 0, AttendScratch::values(group, most_rows), "attention"));
  const RowKernels& kernels = row_kernels(isa_);
  return team_.parallel_for(tokens * groups, [&](std::int64_t begin, std::int64_t end, int worker) {
    for (std::int64_t item = begin; item < end; ++item) {
      const auto head = static_cast<std::int32_t>(item % groups) * group;
      attend_heads(params, kernels, item / groups, head, std::min(group, params.heads - head),
                   scratch.of_worker(worker));
    }
  });
}

}  // namespace dsv4rt::cpu
