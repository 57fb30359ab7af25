// A layer between its projections and its reads of the cache: random inputs, rings and pools in one range of
// memory, for the tests of write_kv on any backend.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/try.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt::test {

inline constexpr std::int32_t kRowsWindow = 16;

enum class LayerKind { kSwa, kCsa, kHca };

// What a layer is; the same for CPU and GPU.
struct RowsLayer {
  LayerKind kind = LayerKind::kCsa;
  std::int32_t heads = 6;
  std::int32_t index_heads = 5;
  RowFormat row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat key_format = IndexKeyFormat::kMxfp4;
  Profile profile = Profile::deepseek_v4();
  std::int32_t draft_budget = 0;
  std::int32_t csa_ratio = 4;
  std::int32_t hca_ratio = 128;

  [[nodiscard]] std::vector<std::int32_t> ratios() const {
    if (kind == LayerKind::kSwa) return {};
    return {kind == LayerKind::kCsa ? csa_ratio : hca_ratio};
  }
};

struct PoolShape {
  std::int32_t ratio;
  std::int32_t dim;
  bool overlap;
  [[nodiscard]] std::int32_t width() const { return overlap ? 2 * dim : dim; }
  [[nodiscard]] std::int32_t pooled() const { return overlap ? 2 * ratio : ratio; }
};

// All memory of a layer in one range: offsets serve host and device. Inputs are random numbers, outputs random
// bytes, so that bytes that should stay show when they do not.
class RowsMemory {
  static constexpr std::int32_t kBlockRows = 3;
  static constexpr float kEps = 1e-6F;

 public:
  RowsMemory(const RowsLayer& layer, std::int32_t tokens, std::int32_t slots, std::int32_t context_end,
             std::uint64_t seed)
      : layer_(layer), tokens_(tokens), slots_(slots) {
    random_.emplace(seed);
    const std::int64_t t = tokens;
    q_ = take_bf16(t * layer.heads * kHeadDim);
    index_q_ = take_bf16(t * layer.index_heads * kIndexHeadDim);
    kv_ = take_bf16(t * kHeadDim);
    norm_ = take_bf16(kHeadDim);
    frequencies_ = static_cast<std::int64_t>(bytes_.size());
    for (const float value : test_frequencies(160000.0)) append(value);
    staged_ = take_poison(staged_shape().block_bytes);
    ring_ = take_poison(slots * ring_slot_bytes());
    if (layer.kind == LayerKind::kCsa) {
      add({layer.csa_ratio, kHeadDim, true}, context_end);
      add({layer.csa_ratio, kIndexHeadDim, true}, context_end);
    } else if (layer.kind == LayerKind::kHca) {
      add({layer.hca_ratio, kHeadDim, false}, context_end);
    }
  }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  [[nodiscard]] BlockShape staged_shape() const { return block_shape(layer_.row_format, tokens_); }
  [[nodiscard]] BlockShape ring_shape() const {
    return block_shape(layer_.row_format, kRowsWindow + layer_.draft_budget);
  }
  [[nodiscard]] std::int64_t ring_slot_bytes() const { return ring_shape().block_bytes + 64; }

  // The call over this memory at `base`. Inputs of the step's first token are those of token `first_input`.
  [[nodiscard]] WriteKvParams params(const StepView& step, std::byte* base, std::int64_t first_input = 0) const {
    const RopeParams rope{.inverse_frequency = at<float>(base, frequencies_), .inverse = false};
    const BlockShape staged = block_shape(layer_.row_format, std::max(1, step.counts.tokens));
    WriteKvParams p{.query = QueryParams{step, layer_.heads, at<bf16>(base, q_) + first_input * layer_.heads * kHeadDim,
                                         kEps, rope},
                    .index_query = {},
                    .window = {step, at<bf16>(base, kv_) + first_input * kHeadDim, at<bf16>(base, norm_), kEps, rope,
                               layer_.row_format, staged, base + staged_},
                    .swa_ring = SwaRing{base + ring_, ring_slot_bytes(), ring_shape(), layer_.row_format},
                    .compress = {},
                    .index_compress = {}};
    for (const Compressor& c : compressors_) {
      const bool key = c.shape.dim == kIndexHeadDim;
      CompressParams one{.step = step,
                         .input = {.kv = at<float>(base, c.kv) + first_input * c.shape.width(),
                                   .score = at<float>(base, c.score) + first_input * c.shape.width(),
                                   .stride = c.shape.width(),
                                   .ape = at<float>(base, c.ape),
                                   .ratio = c.shape.ratio,
                                   .ratio_class = 0,
                                   .dim = c.shape.dim,
                                   .overlap = c.shape.overlap},
                         .state = {base + c.state, state_slot_bytes(c.shape), c.shape.pooled() + layer_.draft_budget},
                         .norm_weight = layer_.profile.compressor_norm ? at<bf16>(base, norm_) : nullptr,
                         .eps = kEps,
                         .rope = key && !layer_.profile.index_rope ? RopeParams{} : rope,
                         .anchor = layer_.profile.rope_anchor,
                         .hadamard = key && layer_.profile.index_hadamard,
                         .is_index_key = key,
                         .row_format = layer_.row_format,
                         .key_format = layer_.key_format,
                         .rows = {base + c.pool, rows_shape(c.shape), at<std::int32_t>(base, c.table), c.table_stride}};
      (key ? p.index_compress : p.compress) = one;
    }
    if (layer_.kind == LayerKind::kCsa) {
      p.index_query = IndexQueryParams{step,
                                       layer_.index_heads,
                                       at<bf16>(base, index_q_) + first_input * layer_.index_heads * kIndexHeadDim,
                                       layer_.profile.index_rope ? rope : RopeParams{},
                                       layer_.profile.index_hadamard,
                                       layer_.key_format};
    }
    return p;
  }

  // Rows of padding tokens are unspecified.
  void clear_padding(std::int32_t valid_tokens) {
    for (std::int64_t t = valid_tokens; t < tokens_; ++t) {
      clear(q_ + t * layer_.heads * kHeadDim * 2, layer_.heads * kHeadDim * 2);
      clear(index_q_ + t * layer_.index_heads * kIndexHeadDim * 2, layer_.index_heads * kIndexHeadDim * 2);
      clear(staged_ + staged_shape().data_offset(t), staged_shape().data_bytes);
      clear(staged_ + staged_shape().scale_offset(t), staged_shape().scale_bytes);
    }
  }
  void clear_staged() { clear(staged_, staged_shape().block_bytes); }

  // Where the first byte lies that differs from `other`, "" without one.
  [[nodiscard]] std::string difference(const RowsMemory& other) const {
    if (bytes_ == other.bytes_) return "";
    const auto [mine, theirs] = std::mismatch(bytes_.begin(), bytes_.end(), other.bytes_.begin());
    const auto offset = static_cast<std::int64_t>(mine - bytes_.begin());
    std::size_t count = 0;
    for (std::size_t i = 0; i < bytes_.size(); ++i) count += bytes_[i] != other.bytes_[i] ? 1 : 0;
    std::vector<std::pair<std::int64_t, std::string>> parts{
        {q_, "q"}, {index_q_, "index_q"}, {kv_, "kv"}, {staged_, "staged"}, {ring_, "ring"}};
    for (const Compressor& c : compressors_) {
      parts.push_back({c.kv, "compressor input"});
      parts.push_back({c.state, "state"});
      parts.push_back({c.pool, "rows"});
    }
    std::pair<std::int64_t, std::string> part;
    for (const auto& candidate : parts) {
      if (candidate.first <= offset) part = candidate;
    }
    return std::to_string(count) + " bytes, first " + part.second + " + " + std::to_string(offset - part.first);
  }

 private:
  struct Compressor {
    PoolShape shape;
    std::int64_t kv, score, ape, state, table, table_stride, pool;
  };

  void add(const PoolShape& shape, std::int32_t context_end) {
    Compressor c{.shape = shape, .kv = 0, .score = 0, .ape = 0, .state = 0, .table = 0, .table_stride = 0, .pool = 0};
    c.kv = take_floats(tokens_ * std::int64_t{shape.width()}, 1.0F);
    c.score = take_floats(tokens_ * std::int64_t{shape.width()}, 2.0F);
    c.ape = take_floats(std::int64_t{shape.ratio} * shape.width(), 1.0F);
    c.state = take_floats(slots_ * state_slot_bytes(shape) / 4, 1.5F);
    // A sequence's rows lie in blocks of its own, out of order; rows that are far apart share them.
    const std::int64_t rows = context_end / shape.ratio + 1;
    c.table_stride = rows / kBlockRows + 1;
    const std::int64_t own_blocks = std::min<std::int64_t>(c.table_stride, 256);
    c.table = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      for (std::int64_t b = 0; b < c.table_stride; ++b) {
        append(static_cast<std::int32_t>((slot + 1) * own_blocks - 1 - b % own_blocks));
      }
    }
    align();
    c.pool = take_poison(slots_ * own_blocks * rows_shape(shape).block_bytes);
    compressors_.push_back(c);
  }
  [[nodiscard]] std::int64_t state_slot_bytes(const PoolShape& shape) const {
    return std::int64_t{shape.pooled() + layer_.draft_budget} * 2 * shape.width() * 4 + 64;
  }
  [[nodiscard]] BlockShape rows_shape(const PoolShape& shape) const {
    return shape.dim == kHeadDim ? block_shape(layer_.row_format, kBlockRows)
                                 : block_shape(layer_.key_format, kBlockRows);
  }

  template <class T>
  static T* at(std::byte* base, std::int64_t offset) {
    return reinterpret_cast<T*>(base + offset);
  }
  template <class T>
  void append(const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  void align() { bytes_.resize((bytes_.size() + 255) / 256 * 256); }
  std::int64_t take_bf16(std::int64_t count) {
    const auto offset = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t i = 0; i < count; ++i) append(to_bf16(normal()));
    align();
    return offset;
  }
  std::int64_t take_floats(std::int64_t count, float scale) {
    const auto offset = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t i = 0; i < count; ++i) append(normal() * scale);
    align();
    return offset;
  }
  std::int64_t take_poison(std::int64_t count) {
    const auto offset = static_cast<std::int64_t>(bytes_.size());
    for (std::int64_t i = 0; i < count; i += 8) append(random_->bits());
    align();
    return offset;
  }
  // About normal, cheaply: the tests need many.
  float normal() {
    const std::uint64_t bits = random_->bits();
    float sum = -6.0F;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) * (3.0F / 65535);
    return sum;
  }
  void clear(std::int64_t offset, std::int64_t count) { std::fill_n(bytes_.begin() + offset, count, std::byte{0}); }

  RowsLayer layer_;
  std::int32_t tokens_, slots_;
  std::optional<Random> random_;
  std::vector<std::byte> bytes_;
  std::int64_t q_ = 0, index_q_ = 0, kv_ = 0, norm_ = 0, frequencies_ = 0, staged_ = 0, ring_ = 0;
  std::vector<Compressor> compressors_;
};

inline Status write_kv_one_by_one(RowOps& ops, const WriteKvParams& p) {
  DSV4RT_RETURN_IF_ERROR(ops.query(*p.query));
  if (p.index_query) DSV4RT_RETURN_IF_ERROR(ops.index_query(*p.index_query));
  DSV4RT_RETURN_IF_ERROR(ops.swa_kv(p.window));
  if (p.swa_ring) {
    DSV4RT_RETURN_IF_ERROR(ops.swa_cache_write({p.window.step, p.window.staged_shape, p.window.staged, *p.swa_ring}));
  }
  for (const auto& one : {p.compress, p.index_compress}) {
    if (!one) continue;
    DSV4RT_RETURN_IF_ERROR(ops.compress(*one));
    DSV4RT_RETURN_IF_ERROR(ops.state_store({one->step, one->input, one->state}));
  }
  return {};
}

// The same with the tokens dealt out in pieces, as over ranks: what a token makes comes from calls for its piece alone;
// what rings get, from calls for the step.
inline Status write_kv_in_pieces(RowOps& ops, const WriteKvParams& p, const std::vector<std::int32_t>& cuts) {
  const auto piece_of = [](StepView step, std::int32_t first, std::int32_t count) {
    step.counts.tokens = count;
    step.token_position += first;
    step.token_sequence += first;
    if (step.valid_mask[0] != nullptr) step.valid_mask[0] += first;
    if (step.row_index[0] != nullptr) step.row_index[0] += first;
    return step;
  };
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::int32_t first = cuts[i];
    const StepView piece = piece_of(p.window.step, first, cuts[i + 1] - first);
    QueryParams query = *p.query;
    query.step = piece;
    query.q += std::int64_t{first} * query.heads * kHeadDim;
    DSV4RT_RETURN_IF_ERROR(ops.query(query));
    if (p.index_query) {
      IndexQueryParams index_query = *p.index_query;
      index_query.step = piece;
      index_query.q += std::int64_t{first} * index_query.heads * kIndexHeadDim;
      DSV4RT_RETURN_IF_ERROR(ops.index_query(index_query));
    }
    SwaKvParams window = p.window;
    window.step = piece;
    window.kv += std::int64_t{first} * kHeadDim;
    window.staged_first = first;
    DSV4RT_RETURN_IF_ERROR(ops.swa_kv(window));
    for (const auto& one : {p.compress, p.index_compress}) {
      if (!one) continue;
      CompressParams rows = *one;
      rows.step = piece;
      DSV4RT_RETURN_IF_ERROR(ops.compress(rows));
    }
  }
  if (p.swa_ring) {
    DSV4RT_RETURN_IF_ERROR(ops.swa_cache_write({p.window.step, p.window.staged_shape, p.window.staged, *p.swa_ring}));
  }
  for (const auto& one : {p.compress, p.index_compress}) {
    if (one) DSV4RT_RETURN_IF_ERROR(ops.state_store({one->step, one->input, one->state}));
  }
  return {};
}

}  // namespace dsv4rt::test
