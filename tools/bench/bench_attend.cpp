// Attention, row selection and compression at V4-Flash shapes on the CPU backend, results checked in the
// same run. Counters: floor_ms is the work divided by the machine's measured rate (multiply-adds of the
// score kernel on data in the first-level cache, or copied bytes), ratio is time / floor.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_linear.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/row_kernels.h"
#include "layout/row_format.h"

namespace dsv4rt {
namespace {

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kWindow = 128;
constexpr std::int32_t kTopK = 512;
constexpr std::int32_t kBlockRows = 64;

// More than any case here takes.
struct OpsScratch {
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  cpu::AlignedBytes memory;
  Scratch region = memory.reserve(kBytes) ? Scratch(memory.data(), kBytes) : Scratch();
};

int all_threads() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  // Uniform in [-1, 1).
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  std::uint64_t state_;
};

std::vector<bf16> random_bf16(std::uint64_t seed, std::int64_t count, float scale) {
  Random random(seed);
  std::vector<bf16> values(static_cast<std::size_t>(count));
  for (bf16& value : values) value = to_bf16(random.next() * scale);
  return values;
}

double seconds_of(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Multiply-adds a second of one thread.
double multiply_add_rate() {
  static const double rate = [] {
    const cpu::RowKernels& kernels = cpu::row_kernels(cpu::detect_isa_level());
    constexpr int kDims = 64;
    constexpr int kLanes = 32;
    constexpr int kRows = 12;
    constexpr int kRepeats = 2000;
    std::vector<float> columns(kDims * kLanes, 0.5f);
    std::vector<float> rows(std::size_t{cpu::kTileRows} * kDims, 0.25f);
    std::vector<float> scores(std::size_t{cpu::kTileRows} * kLanes);
    double best = 1e9;
    for (int attempt = 0; attempt < 50; ++attempt) {
      best = std::min(best, seconds_of([&] {
                        for (int i = 0; i < kRepeats; ++i) {
                          kernels.scores(columns.data(), kLanes, kDims, rows.data(), kDims, kRows, scores.data());
                          benchmark::DoNotOptimize(scores.data());
                        }
                      }));
    }
    return double{kRepeats} * kDims * kLanes * kRows / best;
  }();
  return rate;
}

// Bytes read and written a second by one thread's copy of a large array.
double copy_rate() {
  static const double rate = [] {
    std::vector<std::byte> from(64 << 20, std::byte{1});
    std::vector<std::byte> to(from.size());
    double best = 1e9;
    for (int attempt = 0; attempt < 5; ++attempt) {
      best = std::min(best, seconds_of([&] { std::memcpy(to.data(), from.data(), from.size()); }));
      benchmark::DoNotOptimize(to.data());
    }
    return 2.0 * static_cast<double>(from.size()) / best;
  }();
  return rate;
}

void report(benchmark::State& state, double best_seconds, double floor_seconds) {
  state.counters["best_ms"] = best_seconds * 1e3;
  state.counters["floor_ms"] = floor_seconds * 1e3;
  state.counters["ratio"] = best_seconds / floor_seconds;
}

int threads_of(const benchmark::State& state) {
  return state.range(0) == 0 ? all_threads() : static_cast<int>(state.range(0));
}

// Runs the operation in the benchmark loop and returns its shortest time.
double timed_loop(benchmark::State& state, const auto& operation) {
  double best = 1e9;
  for (auto _ : state) best = std::min(best, seconds_of([&] { operation(); }));
  return best;
}

// One sequence of `tokens` tokens from `start`, alone in slot 0.
struct OneSequence {
  OneSequence(std::int32_t start, std::int32_t tokens, std::int32_t ratio)
      : start(start), first{0, tokens}, sequence(static_cast<std::size_t>(tokens), 0) {
    for (std::int32_t i = 0; i < tokens; ++i) {
      position.push_back(start + i);
      const bool completes = ratio > 0 && (start + i + 1) % ratio == 0;
      mask.push_back(completes ? 1 : 0);
      row.push_back(completes ? (start + i) / ratio : -1);
    }
  }
  [[nodiscard]] StepView view() const {
    StepView view;
    const auto tokens = static_cast<std::int32_t>(position.size());
    view.counts = {.tokens = tokens,
                   .valid_tokens = tokens,
                   .sequences = 1,
                   .table_deltas = 0,
                   .block_copies = 0,
                   .longest_entry = tokens,
                   .context_end = position.back() + 1,
                   .reserved = 0};
    view.token_position = position.data();
    view.token_sequence = sequence.data();
    view.sequence_slot = &slot;
    view.sequence_start = &start;
    view.sequence_first_token = first;
    view.valid_mask[0] = mask.data();
    view.row_index[0] = row.data();
    return view;
  }
  std::int32_t slot = 0;
  std::int32_t start;
  std::int32_t first[2];
  std::vector<std::int32_t> position, sequence, row;
  std::vector<std::uint8_t> mask;
};

// Rows of random values in blocks 1, 2, ...
template <class Format>
struct Pool {
  Pool(Format format, int dims, std::int64_t rows, std::uint64_t seed)
      : format(format), dims(dims), shape(block_shape(format, kBlockRows)), stride(rows / kBlockRows + 1) {
    blocks.resize(static_cast<std::size_t>((stride + 1) * shape.block_bytes));
    for (std::int64_t i = 0; i < stride; ++i) table.push_back(static_cast<std::int32_t>(i + 1));
    Random random(seed);
    std::vector<float> values(static_cast<std::size_t>(dims));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (float& value : values) value = round_to_bf16(random.next());
      encode_row(format, shape, values.data(), blocks.data() + (row / kBlockRows + 1) * shape.block_bytes,
                 row % kBlockRows);
    }
  }
  [[nodiscard]] PagedRows paged() { return {blocks.data(), shape, table.data(), stride}; }
  [[nodiscard]] std::vector<float> row(std::int64_t index) const {
    std::vector<float> values(static_cast<std::size_t>(dims));
    decode_row(format, shape, blocks.data() + (index / kBlockRows + 1) * shape.block_bytes, index % kBlockRows,
               values.data());
    return values;
  }
  Format format;
  int dims;
  BlockShape shape;
  std::int64_t stride;
  std::vector<std::byte> blocks;
  std::vector<std::int32_t> table;
};

// Error of one (token, head) against double precision, relative.
double attention_error(const std::vector<std::vector<float>>& rows, const bf16* q, float sink, const bf16* out) {
  std::vector<double> scores;
  for (const auto& row : rows) {
    double dot = 0;
    for (std::size_t i = 0; i < kHeadDim; ++i) dot += static_cast<double>(to_float(q[i])) * static_cast<double>(row[i]);
    scores.push_back(dot / std::sqrt(512.0));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double denominator = std::exp(static_cast<double>(sink) - largest);
  std::vector<double> sum(kHeadDim);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double weight = std::exp(scores[r] - largest);
    denominator += weight;
    for (std::size_t i = 0; i < kHeadDim; ++i) sum[i] += weight * static_cast<double>(rows[r][i]);
  }
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < kHeadDim; ++i) {
    const double expected = sum[i] / denominator;
    error += std::pow(static_cast<double>(to_float(out[i])) - expected, 2);
    norm += expected * expected;
  }
  return std::sqrt(error / norm);
}

// range(0): threads (0: all), range(1): first position, range(2): tokens, range(3): ratio, range(4): 1 = top-k
// rows, 0 = all visible.
void attend(benchmark::State& state) {
  const int threads = threads_of(state);
  const auto start = static_cast<std::int32_t>(state.range(1));
  const auto tokens = static_cast<std::int32_t>(state.range(2));
  const auto ratio = static_cast<std::int32_t>(state.range(3));
  const bool select = state.range(4) != 0;
  const OneSequence sequence(start, tokens, ratio);
  Pool<RowFormat> pool(RowFormat::kFp8DsMla, kHeadDim, (start + tokens) / ratio, 1);
  const BlockShape ring_shape = block_shape(RowFormat::kFp8DsMla, kWindow);
  const BlockShape staged_shape = block_shape(RowFormat::kFp8DsMla, tokens);
  std::vector<std::byte> ring(static_cast<std::size_t>(ring_shape.block_bytes));
  std::vector<std::byte> staged(static_cast<std::size_t>(staged_shape.block_bytes));
  Random random(2);
  std::vector<float> values(kHeadDim);
  const auto fill = [&](const BlockShape& shape, std::vector<std::byte>& memory, std::int32_t row) {
    for (float& value : values) value = round_to_bf16(random.next());
    encode_row(RowFormat::kFp8DsMla, shape, values.data(), memory.data(), row);
  };
  for (std::int32_t row = 0; row < kWindow; ++row) fill(ring_shape, ring, row);
  for (std::int32_t row = 0; row < tokens; ++row) fill(staged_shape, staged, row);
  const auto q = random_bf16(3, std::int64_t{tokens} * kHeads * kHeadDim, 4.0f);
  std::vector<float> sink(kHeads, 0.5f);
  std::vector<std::int32_t> topk_indices(static_cast<std::size_t>(tokens) * kTopK, -1);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(tokens));
  double rows_total = 0;
  for (std::int32_t t = 0; t < tokens; ++t) {
    const std::int32_t visible = (start + t + 1) / ratio;
    const std::int32_t count = select ? std::min(visible, kTopK) : visible;
    counts[static_cast<std::size_t>(t)] = count;
    for (std::int32_t i = 0; select && i < count; ++i) {
      topk_indices[static_cast<std::size_t>(t * kTopK + i)] =
          static_cast<std::int32_t>(std::int64_t{i} * visible / count);
    }
    rows_total += count + std::min(kWindow, start + t + 1);
  }
  std::vector<bf16> out(q.size());
  const cpu::ThreadTeam team(threads);
  const OpsScratch scratch;
  cpu::CpuOps ops(team, scratch.region, cpu::detect_isa_level());
  const AttendParams params{.step = sequence.view(),
                            .heads = kHeads,
                            .window = kWindow,
                            .q = q.data(),
                            .sink = sink.data(),
                            .ring = {ring.data(), ring_shape.block_bytes, ring_shape, RowFormat::kFp8DsMla},
                            .staged_shape = staged_shape,
                            .staged = staged.data(),
                            .ratio = ratio,
                            .row_format = RowFormat::kFp8DsMla,
                            .rows = pool.paged(),
                            .topk_indices = select ? topk_indices.data() : nullptr,
                            .topk_count = counts.data(),
                            .topk_stride = kTopK,
                            .output_rope = {},
                            .o = out.data()};
  const double best = timed_loop(state, [&] { benchmark::DoNotOptimize(ops.attend(params).ok()); });

  const std::int32_t last = tokens - 1;
  std::vector<std::vector<float>> rows;
  for (std::int32_t p = std::max(0, start + last - kWindow + 1); p <= start + last; ++p) {
    rows.emplace_back(kHeadDim);
    const bool old = p < start;
    decode_row(RowFormat::kFp8DsMla, old ? ring_shape : staged_shape, old ? ring.data() : staged.data(),
               old ? p % kWindow : p - start, rows.back().data());
  }
  for (std::int32_t i = 0; i < counts[static_cast<std::size_t>(last)]; ++i) {
    rows.push_back(pool.row(select ? topk_indices[static_cast<std::size_t>(last * kTopK + i)] : i));
  }
  for (const std::int32_t head : {0, 37, 63}) {
    const std::size_t at = (static_cast<std::size_t>(last) * kHeads + static_cast<std::size_t>(head)) * kHeadDim;
    const double error = attention_error(rows, q.data() + at, 0.5f, out.data() + at);
    if (!(error < 5e-3)) state.SkipWithError(("relative error " + std::to_string(error)).c_str());
  }
  report(state, best, rows_total * kHeads * kHeadDim * 2 / (multiply_add_rate() * threads));
}
BENCHMARK(attend)
    ->ArgNames({"threads", "start", "tokens", "ratio", "topk"})
    ->Args({1, 2047, 1, 4, 1})
    ->Args({0, 2047, 1, 4, 1})
    ->Args({1, 2047, 1, 128, 0})
    ->Args({0, 2047, 1, 128, 0})
    ->Args({1, 1048000, 1, 128, 0})
    ->Args({0, 1048000, 1, 128, 0})
    ->Args({1, 0, 1024, 4, 1})
    ->Args({0, 0, 1024, 4, 1})
    ->Args({1, 0, 1024, 128, 0})
    ->Args({0, 0, 1024, 128, 0})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

// range(0): threads, range(1): rows; the last token stands at position 4 * rows - 1; range(2): tokens.
void indexer_topk(benchmark::State& state) {
  const int threads = threads_of(state);
  const auto rows = static_cast<std::int32_t>(state.range(1));
  const auto tokens = static_cast<std::int32_t>(state.range(2));
  const OneSequence sequence(4 * rows - tokens, tokens, 4);
  Pool<IndexKeyFormat> keys(IndexKeyFormat::kMxfp4, kIndexHeadDim, rows, 5);
  const auto q = random_bf16(6, std::int64_t{tokens} * kHeads * kIndexHeadDim, 1.0f);
  const auto weight = random_bf16(7, std::int64_t{tokens} * kHeads, 1.0f);
  std::vector<std::int32_t> topk_indices(static_cast<std::size_t>(tokens) * kTopK);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(tokens));
  const cpu::ThreadTeam team(threads);
  const OpsScratch scratch;
  cpu::CpuOps ops(team, scratch.region, cpu::detect_isa_level());
  const IndexerTopkParams params{.step = sequence.view(),
                                 .heads = kHeads,
                                 .ratio = 4,
                                 .top_k = kTopK,
                                 .q = q.data(),
                                 .head_weight = weight.data(),
                                 .head_weight_stride = kHeads,
                                 .head_scale = 0.011f,
                                 .key_format = IndexKeyFormat::kMxfp4,
                                 .keys = keys.paged(),
                                 .topk_indices = topk_indices.data(),
                                 .topk_count = counts.data()};
  const double best = timed_loop(state, [&] { benchmark::DoNotOptimize(ops.indexer_topk(params).ok()); });

  const std::size_t last = static_cast<std::size_t>(tokens) - 1;
  std::vector<double> scores;
  for (std::int32_t row = 0; row < rows; ++row) {
    const auto key = keys.row(row);
    double score = 0;
    for (std::size_t h = 0; h < kHeads; ++h) {
      double dot = 0;
      for (std::size_t i = 0; i < kIndexHeadDim; ++i) {
        dot += static_cast<double>(to_float(q[(last * kHeads + h) * kIndexHeadDim + i])) * static_cast<double>(key[i]);
      }
      score += std::max(dot, 0.0) * static_cast<double>(to_float(weight[last * kHeads + h]) * 0.011f);
    }
    scores.push_back(score);
  }
  auto sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + kTopK - 1, sorted.end(), std::greater<>());
  for (std::size_t i = 0; i < kTopK; ++i) {
    const double score = scores[static_cast<std::size_t>(topk_indices[last * kTopK + i])];
    if (score < sorted[kTopK - 1] - 1e-4) state.SkipWithError("a row below the top-k was selected");
  }
  report(state, best, static_cast<double>(rows) * tokens * kHeads * kIndexHeadDim / (multiply_add_rate() * threads));
}
BENCHMARK(indexer_topk)
    ->ArgNames({"threads", "rows", "tokens"})
    ->Args({1, 2048, 1})
    ->Args({0, 2048, 1})
    ->Args({1, 32768, 1})
    ->Args({0, 32768, 1})
    ->Args({1, 262144, 1})
    ->Args({0, 262144, 1})
    ->Args({1, 1024, 256})
    ->Args({0, 1024, 256})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

// range(0): threads, range(1): ratio, range(2): tokens, range(3): 1 = the previous block is pooled too.
void compress(benchmark::State& state) {
  const int threads = threads_of(state);
  const auto ratio = static_cast<std::int32_t>(state.range(1));
  const auto tokens = static_cast<std::int32_t>(state.range(2));
  const bool overlap = state.range(3) != 0;
  const std::int64_t width = overlap ? 2 * kHeadDim : kHeadDim;
  const OneSequence sequence(0, tokens, ratio);
  Pool<RowFormat> pool(RowFormat::kBf16, kHeadDim, tokens / ratio, 8);
  Random random(9);
  std::vector<float> kv(static_cast<std::size_t>(tokens * width));
  std::vector<float> score(kv.size());
  std::vector<float> ape(static_cast<std::size_t>(ratio * width));
  for (auto* values : {&kv, &score, &ape}) {
    for (float& value : *values) value = random.next();
  }
  const cpu::ThreadTeam team(threads);
  const OpsScratch scratch;
  cpu::CpuOps ops(team, scratch.region, cpu::detect_isa_level());
  CompressParams params{.step = sequence.view(),
                        .input = {kv.data(), score.data(), width, ape.data(), ratio, 0, kHeadDim, overlap},
                        .state = {},
                        .norm_weight = nullptr,
                        .eps = 1e-6f,
                        .rope = {},
                        .anchor = Profile::RopeAnchor::kFirstToken,
                        .hadamard = false,
                        .is_index_key = false,
                        .row_format = RowFormat::kBf16,
                        .key_format = IndexKeyFormat::kMxfp4,
                        .rows = pool.paged()};
  const double best = timed_loop(state, [&] { benchmark::DoNotOptimize(ops.compress(params).ok()); });
  const auto last = pool.row(tokens / ratio - 1);
  for (std::int64_t i = 0; i < kHeadDim; i += 37) {
    double weights = 0;
    double sum = 0;
    for (std::int32_t p = tokens - (overlap ? 2 * ratio : ratio); p < tokens; ++p) {
      const std::int64_t column = overlap && p >= tokens - ratio ? kHeadDim + i : i;
      const double weight = std::exp(static_cast<double>(score[static_cast<std::size_t>(p * width + column)]) +
                                     static_cast<double>(ape[static_cast<std::size_t>(p % ratio * width + column)]));
      weights += weight;
      sum += weight * static_cast<double>(kv[static_cast<std::size_t>(p * width + column)]);
    }
    if (std::abs(static_cast<double>(last[static_cast<std::size_t>(i)]) - sum / weights) > 5e-3) {
      state.SkipWithError("a pooled value differs");
    }
  }
  report(state, best, static_cast<double>(2 * kv.size() * sizeof(float)) / copy_rate());
}
BENCHMARK(compress)
    ->ArgNames({"threads", "ratio", "tokens", "overlap"})
    ->Args({1, 4, 1024, 1})
    ->Args({0, 4, 1024, 1})
    ->Args({1, 128, 1024, 0})
    ->Args({0, 128, 1024, 0})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

}  // namespace
}  // namespace dsv4rt

BENCHMARK_MAIN();
