// Inputs of one attend step with random rows, for the comparison of backends and for benchmarks.
//
// Everything about a token follows from (seed, slot, position): its query, its window row, the rows
// selected for it. Steps that cut the same positions differently therefore have the same inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/backend.h"
#include "backend/ops.h"
#include "layout/row_format.h"

namespace dsv4rt::test {

struct AttendShape {
  RowFormat format = RowFormat::kFp8DsMla;
  std::int32_t heads = 64;
  std::int32_t ratio = 0;  // 0: window rows only
  std::int32_t top_k = 0;  // 0: all visible rows
  std::int32_t window = 128;
  std::int32_t ring_rows = 131;
  std::int32_t block_rows = 64;
  bool rotates = true;
  std::int32_t spare_rows = 0;  // staged rows beyond the step's tokens
  // Every group of 64 values of a row is multiplied by 2^row_exponent, or by 2^8 less, up to row_steps times at random.
  std::int32_t row_exponent = 0;
  std::int32_t row_steps = 0;
  std::int32_t compressed_exponent = 0;  // compressed rows are multiplied by 2 to this besides
};

// Tokens [start, start + count) of the sequence in `slot`.
struct AttendPart {
  std::int32_t slot = 0;
  std::int32_t start = 0;
  std::int32_t count = 0;
};

// Mixes its arguments into a sequence of random numbers.
class RowRandom {
 public:
  RowRandom(std::uint64_t seed, std::int64_t a, std::int64_t b = 0)
      : state_(seed * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(a) * 0xbf58476d1ce4e5b9U +
               static_cast<std::uint64_t>(b) * 0x94d049bb133111ebU) {}
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  // Nearly normal, variance 1: the sum of the four 16-bit parts of one draw.
  float normal() {
    const std::uint64_t z = bits();
    const auto sum =
        static_cast<std::int64_t>((z & 0xffffU) + ((z >> 16U) & 0xffffU) + ((z >> 32U) & 0xffffU) + (z >> 48U));
    return static_cast<float>(sum - 131070) * 0x1.bb67aep-16F;  // sqrt(3) / 65536
  }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

// Encoded random rows, of which caches are filled: encoding every cache row would take minutes.
class RowBank {
 public:
  static constexpr std::int64_t kRows = 1024;
  static constexpr std::size_t kGroupValues = 64;
  explicit RowBank(RowFormat format, std::uint64_t seed = 1) : RowBank(AttendShape{.format = format}, seed) {}
  explicit RowBank(const AttendShape& shape, std::uint64_t seed = 1) : shape_(block_shape(shape.format, kRows)) {
    bytes_.resize(static_cast<std::size_t>(shape_.block_bytes));
    std::vector<float> values(kHeadDim);
    for (std::int64_t row = 0; row < kRows; ++row) {
      RowRandom random(seed, row, 1);
      for (float& value : values) value = round_to_bf16(random.normal());
      RowRandom steps(seed, row, 2);
      for (std::size_t first = 0; first < values.size(); first += kGroupValues) {
        const auto exponent = shape.row_exponent - 8 * static_cast<std::int32_t>(steps.below(shape.row_steps + 1));
        for (std::size_t i = first; i < first + kGroupValues; ++i) values[i] = std::ldexp(values[i], exponent);
      }
      encode_row(shape.format, shape_, values.data(), bytes_.data(), row);
    }
  }
  void copy(std::int64_t row, const BlockShape& shape, std::byte* block, std::int64_t to) const {
    row %= kRows;
    std::memcpy(block + shape.data_offset(to), bytes_.data() + shape_.data_offset(row),
                static_cast<std::size_t>(shape.data_bytes));
    std::memcpy(block + shape.scale_offset(to), bytes_.data() + shape_.scale_offset(row),
                static_cast<std::size_t>(shape.scale_bytes));
  }

 private:
  BlockShape shape_;
  std::vector<std::byte> bytes_;
};

// The compressed rows of all sequences: `blocks` random blocks, every table entry one of them at random.
struct AttendPool {
  AttendPool(const AttendShape& shape, const RowBank& bank, std::int32_t slots, std::int64_t positions,
             std::int64_t blocks, std::uint64_t seed = 2)
      : rows_shape(block_shape(shape.format, shape.block_rows)) {
    if (shape.ratio == 0) return;
    stride = positions / shape.ratio / shape.block_rows + 1;
    bytes.resize(static_cast<std::size_t>(blocks * rows_shape.block_bytes));
    RowRandom random(seed, 0);
    for (std::int64_t row = 0; row < blocks * shape.block_rows; ++row) {
      bank.copy(random.below(RowBank::kRows), rows_shape,
                bytes.data() + row / shape.block_rows * rows_shape.block_bytes, row % shape.block_rows);
    }
    // A walk with a stride coprime to the pool: few blocks twice, none near its neighbour.
    for (std::int64_t i = 0; i < slots * stride; ++i) {
      table.push_back(static_cast<std::int32_t>((i * 7919 + 13) % blocks));
    }
  }
  BlockShape rows_shape;
  std::int64_t stride = 0;
  std::vector<std::byte> bytes;
  std::vector<std::int32_t> table;
};

// A cache of several sequences, from which steps of any cut take their inputs.
struct AttendSetup {
  AttendSetup(const AttendShape& attend_shape, std::int32_t sequence_slots, std::int64_t positions)
      : shape(attend_shape),
        slots(sequence_slots),
        bank(shape),
        pool(shape, RowBank(of_compressed_rows(shape)), slots, positions, 97) {}
  AttendShape shape;
  std::int32_t slots;
  RowBank bank;  // gives the window rows
  AttendPool pool;

 private:
  static AttendShape of_compressed_rows(AttendShape shape) {
    shape.row_exponent += shape.compressed_exponent;
    return shape;
  }
};

// Host arrays of one step.
struct AttendInputs {
  AttendInputs(const AttendShape& shape_, const RowBank& bank, std::int32_t slots, const std::vector<AttendPart>& parts,
               std::int32_t padding = 0, std::uint64_t seed = 3)
      : shape(shape_), ring_shape(block_shape(shape.format, shape.ring_rows)) {
    first_token.push_back(0);
    for (const AttendPart& part : parts) {
      slot.push_back(part.slot);
      start.push_back(part.start);
      for (std::int32_t i = 0; i < part.count; ++i) {
        sequence.push_back(static_cast<std::int32_t>(slot.size()) - 1);
        position.push_back(part.start + i);
      }
      first_token.push_back(static_cast<std::int32_t>(position.size()));
      counts.longest_entry = std::max(counts.longest_entry, part.count);
      counts.context_end = std::max(counts.context_end, part.start + part.count);
    }
    counts.valid_tokens = static_cast<std::int32_t>(position.size());
    counts.sequences = static_cast<std::int32_t>(parts.size());
    sequence.insert(sequence.end(), static_cast<std::size_t>(padding), -1);
    position.insert(position.end(), static_cast<std::size_t>(padding), 0);
    counts.tokens = static_cast<std::int32_t>(position.size());

    staged_shape = block_shape(shape.format, std::max(counts.tokens, 1) + shape.spare_rows);
    staged.resize(static_cast<std::size_t>(staged_shape.block_bytes), std::byte{0xff});
    ring.resize(static_cast<std::size_t>(slots * ring_shape.block_bytes), std::byte{0xff});
    for (const AttendPart& part : parts) {
      std::byte* own = ring.data() + part.slot * ring_shape.block_bytes;
      for (std::int32_t p = std::max(0, part.start - shape.ring_rows); p < part.start; ++p) {
        bank.copy(window_row(seed, part.slot, p), ring_shape, own, p % shape.ring_rows);
      }
    }
    const std::size_t width = static_cast<std::size_t>(shape.heads) * kHeadDim;
    q.resize(static_cast<std::size_t>(counts.tokens) * width, bf16{0x7fc0});
    topk_count.resize(static_cast<std::size_t>(counts.tokens), 0);
    topk_indices.resize(static_cast<std::size_t>(counts.tokens) * static_cast<std::size_t>(shape.top_k), -1);
    for (std::int32_t t = 0; t < counts.valid_tokens; ++t) {
      const std::int32_t own = slot_of(t);
      const std::int32_t p = position[static_cast<std::size_t>(t)];
      bank.copy(window_row(seed, own, p), staged_shape, staged.data(), t);
      RowRandom random(seed, own, p);
      for (std::size_t i = 0; i < width; i += 4) {
        const std::uint64_t bits = random.bits();  // four values of a quarter's resolution each: cheap
        for (std::size_t j = 0; j < 4; ++j) {
          const auto part = static_cast<std::int16_t>(bits >> (16 * j));
          q[static_cast<std::size_t>(t) * width + i + j] = to_bf16(static_cast<float>(part) * 0x1p-14F);
        }
      }
      if (shape.top_k > 0) select(random, t, p);
    }
    RowRandom random(seed, -1);
    for (std::int32_t h = 0; h < shape.heads; ++h) sink.push_back(2 * random.normal());
    for (int i = 0; i < kRopeDim / 2; ++i) {
      frequency.push_back(static_cast<float>(std::pow(160000.0, -2.0 * i / kRopeDim)));
    }
  }

  [[nodiscard]] std::int32_t slot_of(std::int32_t token) const {
    return slot[static_cast<std::size_t>(sequence[static_cast<std::size_t>(token)])];
  }

  AttendShape shape;
  BlockShape ring_shape, staged_shape;
  StepHeader counts{};
  std::vector<std::int32_t> position, sequence, slot, start, first_token;
  std::vector<std::byte> ring, staged;
  std::vector<bf16> q;
  std::vector<float> sink, frequency;
  std::vector<std::int32_t> topk_indices, topk_count;

 private:
  static std::int64_t window_row(std::uint64_t seed, std::int32_t slot, std::int32_t position) {
    return RowRandom(seed, slot, position + (std::int64_t{1} << 40)).below(RowBank::kRows);
  }
  // Distinct ascending rows: one of each of top_k equal stretches.
  void select(RowRandom& random, std::int32_t token, std::int32_t p) {
    const std::int64_t visible = (p + 1) / shape.ratio;
    const std::int64_t count = std::min<std::int64_t>(visible, shape.top_k);
    std::int32_t* rows = topk_indices.data() + std::int64_t{token} * shape.top_k;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t from = i * visible / count;
      rows[i] = static_cast<std::int32_t>(from + random.below((i + 1) * visible / count - from));
    }
    topk_count[static_cast<std::size_t>(token)] = static_cast<std::int32_t>(count);
  }
};

// The same in backend memory.
class AttendArrays {
 public:
  AttendArrays(Backend& backend, const AttendInputs& in, const AttendPool& pool, const std::byte* blocks,
               const std::int32_t* table)
      : backend_(backend) {
    AttendParams& p = params;
    p.step.counts = in.counts;
    p.step.token_position = put(in.position);
    p.step.token_sequence = put(in.sequence);
    p.step.sequence_slot = put(in.slot);
    p.step.sequence_start = put(in.start);
    p.step.sequence_first_token = put(in.first_token);
    p.heads = in.shape.heads;
    p.window = in.shape.window;
    p.q = put(in.q);
    p.sink = put(in.sink);
    p.ring = {put(in.ring), in.ring_shape.block_bytes, in.ring_shape, in.shape.format};
    p.staged_shape = in.staged_shape;
    p.staged = put(in.staged);
    p.ratio = in.shape.ratio;
    p.row_format = in.shape.format;
    p.rows = {const_cast<std::byte*>(blocks), pool.rows_shape, table, pool.stride};
    if (in.shape.top_k > 0) {
      p.topk_indices = put(in.topk_indices);
      p.topk_count = put(in.topk_count);
      p.topk_stride = in.shape.top_k;
    }
    if (in.shape.rotates) p.output_rope = {put(in.frequency), true};
    p.o = put(std::vector<bf16>(in.q.size(), bf16{0x7fc0}));
    values_ = in.q.size();
  }
  // Waits for the step.
  Status output(std::vector<bf16>& o) const {
    o.resize(values_);
    return backend_.download(o.data(), params.o, values_ * sizeof(bf16));
  }

  AttendParams params;

 private:
  template <class T>
  T* put(const std::vector<T>& values) {
    auto buffer = backend_.allocate(std::max<std::size_t>(values.size(), 1) * sizeof(T), "attend inputs");
    if (!buffer.ok() || !backend_.upload(buffer->data(), values.data(), values.size() * sizeof(T)).ok()) std::abort();
    buffers_.push_back(std::move(buffer).value());
    return buffers_.back().as<T>();
  }

  Backend& backend_;
  std::vector<Buffer> buffers_;
  std::size_t values_ = 0;
};

}  // namespace dsv4rt::test
