// Ops: the operations that attention layers call, and those between steps. row_ops.h has the parts of
// write_kv as operations of their own.
//
// CPU and CUDA implement the same contract and the same tests run on both. Shapes stand in
// brackets: T tokens of the step (padding included), B sequences, h query heads, d hidden size.
// Unless said otherwise arrays are dense row-major in backend memory, pointers are not null, inputs
// and outputs do not overlap, and padding tokens produce rows of unspecified finite content and
// change no cache byte.
//
// Determinism: the value computed for a token depends only on that token's inputs and its
// sequence's cache, never on T, on other tokens of the step or on the number of threads. A backend
// made for products in NVFP4 (LinearPrecision::kNvfp4) relaxes this for linear alone, which may then
// depend on T.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bfloat16.h"
#include "dsv4rt/profile.h"
#include "dsv4rt/row_geometry.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"
#include "layout/row_format.h"
#include "step/step_metadata.h"

namespace dsv4rt {

// A weight matrix in the backend's own order. Made by Backend::pack_linear.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  [[nodiscard]] std::int64_t out_features() const noexcept { return out_features_; }
  [[nodiscard]] std::int64_t in_features() const noexcept { return in_features_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }  // weight and scales as held

 protected:
  std::int64_t out_features_ = 0;
  std::int64_t in_features_ = 0;
  std::int64_t bytes_ = 0;
};

enum class OutputType : std::uint8_t { kBf16, kF32 };

// Rows of values as products of E4M3 read them: codes, and apart from them a power-of-two scale for every 128 values.
// Codes times scales are the values of round_activation_fp8.
struct EncodedRows {
  std::uint8_t* codes = nullptr;  // [T, width], 16-byte aligned
  std::int64_t width = 0;         // a multiple of 128
  float* scales = nullptr;        // [width / 128, scale_stride], 16-byte aligned; a block's of all tokens side by side
  std::int32_t scale_stride = 0;  // encoded_scale_stride() of T or of more tokens
};
inline constexpr std::int64_t kEncodedBlockValues = 128;  // values that share a scale
// Kernels fetch the scales of an item's tokens whole, so many at most; those beyond T do not matter.
inline constexpr std::int32_t kMostEncodedItemTokens = 192;
constexpr std::int32_t encoded_scale_stride(std::int32_t tokens) {
  constexpr std::int32_t kAligned = 4;  // scales in 16 bytes
  return (tokens + kAligned - 1) / kAligned * kAligned + kMostEncodedItemTokens;
}

// y[t, :] = weight * round(x[t, :]); FP32 accumulation in an order that is fixed per output.
// Activation rounding (none or E4M3 per 128) is a property of the weight.
struct LinearCall {
  const bf16* x = nullptr;  // [T, in_features], rows x_stride values apart
  std::int64_t x_stride = 0;
  const PackedLinear* weight = nullptr;
  void* y = nullptr;  // [T, out_features] of bf16 or float, rows y_stride values apart
  std::int64_t y_stride = 0;
  OutputType output = OutputType::kBf16;
  // Instead of x, where Ops::takes_encoded_rows() says so: in_features columns of encoded rows.
  std::optional<EncodedRows> encoded = std::nullopt;
  std::int64_t encoded_column = 0;  // the first one, a multiple of 128
  // Instead of y, where Ops::encodes_outputs() says so: out_features columns of rows, encoded as bf16 outputs are.
  std::optional<EncodedRows> encoded_y = std::nullopt;
  std::int64_t encoded_y_column = 0;  // the first one, a multiple of 128
};

// y = x * rsqrt(mean(x^2) + eps) * weight in FP32, rounded to BF16.
struct RmsNormParams {
  std::int32_t tokens = 0;
  std::int32_t width = 0;
  const bf16* x = nullptr;       // [T, width]
  const bf16* weight = nullptr;  // [width]
  float eps = 0;
  bf16* y = nullptr;  // [T, width]; may equal x
};

// Rotation of the last kRopeDim values of a vector at a position: interleaved pairs (2i, 2i+1),
// angle = float(position) * inverse_frequency[i] in FP32; result rounded to BF16.
struct RopeParams {
  const float* inverse_frequency = nullptr;  // [kRopeDim / 2]; null: no rotation
  bool inverse = false;                      // conjugate rotation
};

// Works in place on q: per head x *= rsqrt(mean(x^2) + eps) over kHeadDim without weight, then RoPE. Every
// step of the norm rounds to BF16, as the reference does on its BF16 tensors:
// t = b(x * x), m = b(b(mean(t)) + eps), x = b(x * b(1 / sqrt(m))).
struct QueryParams {
  StepView step;
  std::int32_t heads = 0;
  bf16* q = nullptr;  // [T, h, kHeadDim]
  float eps = 0;
  RopeParams rope;
};

// Window rows of the step's tokens: RMSNorm with weight, RoPE, encode. They are staged apart from the
// ring, because a chunk may be longer than the ring and its tokens need the rows it will overwrite.
struct SwaKvParams {
  StepView step;
  const bf16* kv = nullptr;           // [T, kHeadDim]
  const bf16* norm_weight = nullptr;  // [kHeadDim]
  float eps = 0;
  RopeParams rope;
  RowFormat format = RowFormat::kFp8DsMla;
  BlockShape staged_shape;      // one block of >= staged_first + T rows
  std::byte* staged = nullptr;  // row staged_first + t = token t
  std::int32_t staged_first = 0;
};

// A ring per slot: the row of position p is p % ring_rows of slot_base + slot * slot_bytes.
struct SwaRing {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  BlockShape shape;  // the ring is one block of ring_rows rows
  RowFormat format = RowFormat::kFp8DsMla;
};

// Moves the step's last ring_rows staged rows of every sequence into its ring.
struct SwaCacheWriteParams {
  StepView step;
  BlockShape staged_shape;
  const std::byte* staged = nullptr;
  SwaRing ring;
};

// Compressor ring of one role: FP32 [ring_rows][2][width] per slot, kv then score + ape.
struct StateRing {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  std::int32_t ring_rows = 0;
};

// A paged region: blocks of `shape`, and the device block table, one row per slot.
struct PagedRows {
  std::byte* blocks = nullptr;  // [num_blocks][shape.block_bytes]
  BlockShape shape;
  const std::int32_t* block_table = nullptr;  // [max_sequences, table_stride] block ids
  std::int64_t table_stride = 0;
};

// The step's fresh compressor projections: rows of the whole step, also where an operation looks at some tokens of it.
struct CompressorInput {
  const float* kv = nullptr;     // [T, width], rows stride values apart
  const float* score = nullptr;  // [T, width], without ape
  std::int64_t stride = 0;
  const float* ape = nullptr;  // [ratio, width], added to the score by position % ratio
  std::int32_t ratio = 0;
  std::int32_t ratio_class = 0;  // index into StepView::valid_mask / row_index
  std::int32_t dim = 0;          // values of a compressed row: kHeadDim or kIndexHeadDim
  bool overlap = false;          // width = 2 * dim, columns [previous | current]; otherwise width = dim
};

// For every token t with valid_mask: pools the block that t completes (rows from the state ring for
// positions before the step, fresh rows otherwise), per channel softmax over positions in FP32 in
// position order (previous block first), rounds to BF16, optional RMSNorm, RoPE at the block's
// anchor, optional Hadamard, encodes, writes row row_index[t] of the sequence. Exactly those rows'
// bytes change.
struct CompressParams {
  StepView step;
  CompressorInput input;
  StateRing state;
  const bf16* norm_weight = nullptr;  // [dim]; null: no norm (profile `seed`)
  float eps = 0;
  RopeParams rope;
  Profile::RopeAnchor anchor = Profile::RopeAnchor::kFirstToken;
  bool hadamard = false;
  bool is_index_key = false;  // key_format applies, not row_format
  RowFormat row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat key_format = IndexKeyFormat::kMxfp4;
  PagedRows rows;
};

// Writes the step's last ring_rows tokens of every sequence into its state ring (kv, score + ape).
// Runs after compress of the same step.
struct StateStoreParams {
  StepView step;
  CompressorInput input;
  StateRing state;
};

// Rows that tokens have completed, between the cache and a block that has nothing else, for ranks to exchange. The
// tokens are some of a step, one after another; `step` begins with the first of them. A token's row lies at place
// packed_place() of the block, whatever its position; places that no row has stay as they are.
struct FinishedRowsParams {
  StepView step;
  std::int32_t ratio = 0;
  std::int32_t ratio_class = 0;  // index into StepView::valid_mask / row_index
  PagedRows rows;
  BlockShape packed_shape;  // one block of >= packed_places() rows, with as many bytes a row as rows.shape
  std::byte* packed = nullptr;
};
enum class RowDirection : std::uint8_t { kFromCache, kToCache };

// The place of the row that token t completes. Sequences follow each other and one completes a row every `ratio`
// tokens at most: no two tokens have one place.
constexpr std::int32_t packed_place(std::int32_t t, std::int32_t ratio, std::int32_t sequence,
                                    std::int32_t first_sequence) {
  return t / ratio + sequence - first_sequence;
}
// Places of `tokens` tokens, 1 or more, of `sequences` sequences.
constexpr std::int32_t packed_places(std::int32_t tokens, std::int32_t ratio, std::int32_t sequences) {
  return (tokens - 1) / ratio + sequences;
}

// Works in place on indexer queries: RoPE, optional Hadamard, rounding through the key format.
struct IndexQueryParams {
  StepView step;
  std::int32_t heads = 0;
  bf16* q = nullptr;  // [T, heads, kIndexHeadDim]
  RopeParams rope;
  bool hadamard = false;
  IndexKeyFormat key_format = IndexKeyFormat::kMxfp4;
};

// Whether a step may write its rows into a ring before its tokens have read the rows that they need, the
// last `needed_rows` positions up to their own. The oldest of them is start + 1 - needed_rows, needed by
// the first token of a sequence, the newest write start + longest_entry - 1: a ring that holds both keeps
// all in between.
constexpr bool ring_keeps_needed_rows(std::int32_t ring_rows, std::int32_t needed_rows, const StepHeader& counts) {
  return ring_rows >= std::int64_t{needed_rows} + counts.longest_entry - 1;
}

// Everything between a layer's projections and its reads of the cache. The bytes are those of query,
// index_query, swa_kv, swa_cache_write and, for each compressor, compress and state_store, called in this order for
// one step; a single call, so that a backend can do it in a single launch.
struct WriteKvParams {
  std::optional<QueryParams> query;  // none: attend() norms them
  std::optional<IndexQueryParams> index_query;
  SwaKvParams window;
  // Where the window rows are stored besides being staged. Only a ring that ring_keeps_needed_rows() of the
  // window may be written before attend; without one swa_cache_write follows attend.
  std::optional<SwaRing> swa_ring;
  std::optional<CompressParams> compress;        // the layer's rows, and their state ring
  std::optional<CompressParams> index_compress;  // its index keys, and theirs
};

// score[s] = sum over heads of w[h] * scale * relu(q[h] . k[s]) in FP32 over the visible rows
// s < (position + 1) / ratio; the top_k best, equal scores lowest row first, NaN below everything.
// With no more than top_k visible rows all are selected without scoring.
struct IndexerTopkParams {
  StepView step;
  std::int32_t heads = 0;
  std::int32_t ratio = 0;
  std::int32_t top_k = 0;
  const bf16* q = nullptr;            // [T, heads, kIndexHeadDim]
  const bf16* head_weight = nullptr;  // [T, heads], rows head_weight_stride values apart
  std::int64_t head_weight_stride = 0;
  float head_scale = 0;  // 128^-0.5 * heads^-0.5
  IndexKeyFormat key_format = IndexKeyFormat::kMxfp4;
  PagedRows keys;
  std::int32_t* topk_indices = nullptr;  // [T, top_k] row numbers, ascending; entries past the count: -1
  std::int32_t* topk_count = nullptr;    // [T]
};

// One softmax over the window entries and the chosen compressed rows, sink in the denominator only:
// o = sum(exp(s - m) v) / (sum(exp(s - m)) + exp(sink - m)), s = q.k * kHeadDim^-0.5, K = V.
// Window: the last `window` positions up to the token's own (ring before the step, staged rows
// within it). Compressed rows: `topk_indices` when given, otherwise all visible ones; none if ratio = 0.
// Order of summation: compressed rows ascending after window rows, oldest first. m is the greatest
// score of the window (attend_weights.h); the product with v uses exp(s - m) rounded to BF16 and
// unnormalised, the denominator sums it unrounded (the reference's rounding points but for m, which
// is the maximum over all rows there). o is rounded to BF16; then
// output_rope turns the last kRopeDim values of every head by the token's position and rounds again.
struct AttendParams {
  StepView step;
  std::int32_t heads = 0;
  std::int32_t window = 0;
  const bf16* q = nullptr;      // [T, h, kHeadDim]
  const float* sink = nullptr;  // [h]
  // Set: q is as projected, and attend() norms it with this eps and turns it by the inverse of output_rope, as query()
  // would in place; q itself stays. Only where norms_queries() says so.
  std::optional<float> query_eps = std::nullopt;
  SwaRing ring;
  BlockShape staged_shape;
  const std::byte* staged = nullptr;
  std::int32_t ratio = 0;
  RowFormat row_format = RowFormat::kFp8DsMla;
  PagedRows rows;                              // ratio > 0
  const std::int32_t* topk_indices = nullptr;  // [T, topk_stride] or null
  const std::int32_t* topk_count = nullptr;    // [T]
  std::int64_t topk_stride = 0;
  RopeParams output_rope;
  bf16* o = nullptr;  // [T, h, kHeadDim]
  // Set: outputs go here, encoded, width h * kHeadDim, instead of to o, whose content is unspecified afterwards. Only
  // for a backend that takes_encoded_rows().
  std::optional<EncodedRows> encoded = std::nullopt;
};

// Sets flags[s] to 1 for every sequence s of the step, by its number in the step's metadata, of which a row of x has a
// value that is NaN or infinite. Other flags stay as they are; padding rows are not looked at.
struct FlagNonFiniteParams {
  StepView step;
  std::int64_t width = 0;
  const bf16* x = nullptr;        // [T, width]
  std::int32_t* flags = nullptr;  // [B]
};

// boundary_state.h
struct BoundaryCopy;
struct BoundaryRows;
struct BoundaryStates;
struct KeepBoundaryParams;
enum class BoundaryDirection : std::uint8_t;

// Device block tables and pools of the whole cache, for the operations that span layers.
struct CacheTable {
  std::int32_t* block_table = nullptr;  // [max_sequences, stride]
  std::int64_t stride = 0;
  std::byte* blocks = nullptr;
  std::int64_t block_bytes = 0;
};
struct CacheRings {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Several linears over the same step; calls that share x read and round it once.
  virtual Status linear(std::int32_t tokens, std::span<const LinearCall> calls) = 0;
  // linear() on rows normed first: x of every call is norm.y, with unspecified content afterwards.
  virtual Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) = 0;
  // Whether linear() multiplies codes of its inputs with this weight in a step of so many tokens, so that it takes less
  // time where these come as codes (LinearCall::encoded).
  [[nodiscard]] virtual bool takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const = 0;
  // Whether linear() writes outputs of such calls as codes (LinearCall::encoded_y) in no more time than as values.
  virtual Result<bool> encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) = 0;
  virtual Status write_kv(const WriteKvParams& params) = 0;
  // The parts of write_kv, for steps whose rows are dealt out over ranks: a part may then be asked for some tokens of
  // the step, but for state_store, whose step is the whole.
  virtual Status query(const QueryParams& params) = 0;
  virtual Status index_query(const IndexQueryParams& params) = 0;
  virtual Status swa_kv(const SwaKvParams& params) = 0;
  virtual Status compress(const CompressParams& params) = 0;
  virtual Status state_store(const StateStoreParams& params) = 0;
  virtual Status copy_finished_rows(RowDirection direction, const FinishedRowsParams& params) = 0;
  virtual Status swa_cache_write(const SwaCacheWriteParams& params) = 0;
  virtual Status indexer_topk(const IndexerTopkParams& params) = 0;
  virtual Status attend(const AttendParams& params) = 0;
  // Whether attend() norms and turns the queries of such a call itself (AttendParams::query_eps), in less time than
  // query() would.
  virtual Result<bool> norms_queries(const AttendParams& params) = 0;
  virtual Status flag_non_finite(const FlagNonFiniteParams& params) = 0;

  // Start of a step: applies the step's table deltas, then its copy-on-write block copies.
  // tables[i] belongs to pool i.
  virtual Status begin_step(const StepView& step, std::span<const CacheTable> tables) = 0;
  // Fork: duplicates slot `source` of every ring and its block-table rows into slot `target`.
  virtual Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                           std::span<const CacheRings> rings) = 0;

  // Copies rows between rings and boundary states, for every copy and every ring: positions
  // [max(0, boundary - state.rows), min(end, boundary)), of which the ring must still hold what it gives. Position p
  // is row p % ring.rows of the slot's ring and row p - (boundary - state.rows) of the state. Only these rows' bytes
  // change. No copy of a call writes what another one of it reads or writes. Runs between steps or launches of
  // captured graphs, in stream order with them, never inside: the host's numbers would become part of a graph.
  virtual Status copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                                    std::span<const BoundaryRows> rows, const BoundaryStates& states) = 0;
  // Takes rows that the step computed into boundary states, for one layer and every capture: positions
  // [max(start, boundary - state.rows), boundary), in the bytes that swa_cache_write and write_kv put in the rings.
  // Runs after write_kv of the layer and before the next layer's projections, in steps that are not captured. Earlier
  // rows of the states come from the rings before the step (copy_boundary_rows with end = start).
  virtual Status keep_boundary_rows(const KeepBoundaryParams& params) = 0;
  // Writes the first columns[i] entries of row `slot` of tables[i]; entries past them stay. `ids` are block ids in
  // backend memory, table after table. Runs between steps, as copy_slot does.
  virtual Status write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                                  std::span<const CacheTable> tables) = 0;
};

}  // namespace dsv4rt
