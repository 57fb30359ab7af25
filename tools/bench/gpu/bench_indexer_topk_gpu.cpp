// Row selection on the GPU at V4-Flash shapes (64 index heads, top 512, ratio 4): the whole operation and its
// two stages, per key format, for B sequences of n compressed rows each.
//
// The floor of the scores is the bytes of the keys or the multiply-adds in BF16. Selections of the last
// sequences are checked against double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "graph_timing.h"
#include "layout/rounding.h"
#include "layout/row_format.h"
#include "tools/lib/step_shape.h"

namespace dsv4rt::bench {
namespace {

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kRatio = 4;
constexpr std::int32_t kTopK = 512;
constexpr std::int32_t kBlockRows = 64;
constexpr float kHeadScale = 0.011048543f;  // 128^-0.5 * 64^-0.5
constexpr std::size_t kScratchBytes = std::size_t{256} << 20;
constexpr std::int64_t kDistinctBlocks = 4096;
constexpr std::int64_t kMostRows = std::int64_t{1} << 28;  // positions have 31 bits

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // About normal: the sum of four uniform numbers.
  float normal() {
    const std::uint64_t b = bits();
    const auto sum = static_cast<float>((b & 0xffff) + ((b >> 16) & 0xffff) + ((b >> 32) & 0xffff) + (b >> 48));
    return (sum * 0x1p-16f - 2.0f) * 1.7320508f;
  }

 private:
  std::uint64_t state_;
};

template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(std::size_t count) : count_(count) {
    void* memory = nullptr;
    require_cuda(cudaMalloc(&memory, count * sizeof(T)), "device memory");
    data_.reset(static_cast<T*>(memory));
  }
  explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
    copy_to_device(data(), values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] std::vector<T> download() const {
    std::vector<T> values(count_);
    require_cuda(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  std::size_t count_;
  std::unique_ptr<T, Free> data_;
};

void in_threads(std::int64_t items, const auto& body) {
  const auto count = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = t; i < items; i += count) body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Pool of one format, large enough for every workload; the distinct blocks repeat.
class Pool {
 public:
  Pool(IndexKeyFormat format, std::int64_t blocks)
      : format_(format),
        shape_(block_shape(format, kBlockRows)),
        distinct_(static_cast<std::size_t>(kDistinctBlocks * shape_.block_bytes)),
        memory_(static_cast<std::size_t>(blocks * shape_.block_bytes)),
        blocks_(blocks) {
    in_threads(kDistinctBlocks, [&](std::int64_t block) {
      Random random(static_cast<std::uint64_t>(block));
      for (std::int32_t row = 0; row < kBlockRows; ++row) {
        float values[kIndexHeadDim];
        for (float& value : values) value = round_to_bf16(random.normal());
        encode_row(format, shape_, values, distinct_.data() + block * shape_.block_bytes, row);
      }
    });
    for (std::int64_t first = 0; first < blocks; first += kDistinctBlocks) {
      const std::int64_t count = std::min(kDistinctBlocks, blocks - first);
      copy_to_device(memory_.data() + first * shape_.block_bytes, distinct_.data(),
                     static_cast<std::size_t>(count * shape_.block_bytes));
    }
  }

  [[nodiscard]] std::int64_t blocks() const { return blocks_; }
  [[nodiscard]] const BlockShape& shape() const { return shape_; }
  [[nodiscard]] IndexKeyFormat format() const { return format_; }
  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  void decode(std::int32_t block, std::int32_t row, float* values) const {
    decode_row(format_, shape_, distinct_.data() + block % kDistinctBlocks * shape_.block_bytes, row, values);
  }

 private:
  IndexKeyFormat format_;
  BlockShape shape_;
  std::vector<std::byte> distinct_;
  DeviceVector<std::byte> memory_;
  std::int64_t blocks_;
};

// Sequences with `tokens` tokens each, in several rotating sets of keys, queries and weights. Rows are visible to a
// sequence's last token.
class Workload {
 public:
  Workload(const Pool& pool, const StepShape& shape, std::int64_t tokens_each, std::int64_t sets)
      : pool_(pool),
        tokens_(shape.batch * tokens_each),
        stride_((shape.context_tokens + kBlockRows - 1) / kBlockRows),
        sets_(sets) {
    const std::int64_t sequences = shape.batch;
    const std::int64_t rows = shape.context_tokens;
    Random random(static_cast<std::uint64_t>(sequences * 1000003 + rows));
    std::vector<std::int32_t> order(static_cast<std::size_t>(pool.blocks()));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.bits() % (i + 1)]);
    for (std::int64_t i = 0; i < sets * sequences * stride_; ++i) {
      table_.push_back(order[static_cast<std::size_t>(i) % order.size()]);
    }
    for (std::int64_t row = 0; row < sets * tokens_ * kHeads; ++row) {
      float values[kIndexHeadDim];
      for (float& value : values) value = round_to_bf16(random.normal());
      round_through(pool.format(), values);
      for (const float value : values) q_.push_back(to_bf16(value));
      weight_.push_back(to_bf16(random.normal()));
    }
    for (std::int32_t s = 0; s < shape.batch; ++s) {
      const std::int64_t start = context_of(shape, s) * kRatio - tokens_each;
      sequence_slot_.push_back(s);
      sequence_start_.push_back(static_cast<std::int32_t>(start));
      sequence_first_token_.push_back(static_cast<std::int32_t>(s * tokens_each));
      for (std::int64_t i = 0; i < tokens_each; ++i) {
        token_sequence_.push_back(s);
        token_position_.push_back(static_cast<std::int32_t>(start + i));
      }
    }
    sequence_first_token_.push_back(static_cast<std::int32_t>(tokens_));
    step_.counts = {.tokens = static_cast<std::int32_t>(tokens_),
                    .valid_tokens = static_cast<std::int32_t>(tokens_),
                    .sequences = static_cast<std::int32_t>(sequences),
                    .table_deltas = 0,
                    .block_copies = 0,
                    .longest_entry = static_cast<std::int32_t>(tokens_each),
                    .context_end = static_cast<std::int32_t>(rows * kRatio),
                    .reserved = 0};
    device_ = std::make_unique<Device>(*this);
    step_.token_position = device_->token_position.data();
    step_.token_sequence = device_->token_sequence.data();
    step_.sequence_slot = device_->sequence_slot.data();
    step_.sequence_start = device_->sequence_start.data();
    step_.sequence_first_token = device_->sequence_first_token.data();
  }

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t sets() const { return sets_; }

  [[nodiscard]] IndexerTopkParams params(std::int64_t set) const {
    const std::int64_t tokens = tokens_;
    return {
        .step = step_,
        .heads = kHeads,
        .ratio = kRatio,
        .top_k = kTopK,
        .q = device_->q.data() + set * tokens * kHeads * kIndexHeadDim,
        .head_weight = device_->weight.data() + set * tokens * kHeads,
        .head_weight_stride = kHeads,
        .head_scale = kHeadScale,
        .key_format = pool_.format(),
        .keys = {pool_.data(), pool_.shape(), device_->table.data() + set * step_.counts.sequences * stride_, stride_},
        .topk_indices = device_->topk_indices.data(),
        .topk_count = device_->count.data()};
  }

  // Fails if a row that was not selected scores higher than a selected one, beyond FP32 rounding.
  [[nodiscard]] bool check(std::int64_t set, std::int64_t token) const {
    const auto topk_indices = device_->topk_indices.download();
    const std::int32_t sequence = token_sequence_[static_cast<std::size_t>(token)];
    const std::int64_t visible = (token_position_[static_cast<std::size_t>(token)] + 1) / kRatio;
    if (visible <= kTopK) return true;  // the first tokens of a prompt
    std::vector<double> scores(static_cast<std::size_t>(visible));
    const bf16* q = q_.data() + (set * tokens_ + token) * kHeads * kIndexHeadDim;
    const bf16* weight = weight_.data() + (set * tokens_ + token) * kHeads;
    in_threads(visible, [&](std::int64_t row) {
      float key[kIndexHeadDim];
      pool_.decode(
          table_[static_cast<std::size_t>((set * step_.counts.sequences + sequence) * stride_ + row / kBlockRows)],
          static_cast<std::int32_t>(row % kBlockRows), key);
      double sum = 0;
      for (int h = 0; h < kHeads; ++h) {
        float dot[4] = {};  // products of codes are exact; the sum is not, within the tolerance
        for (int d = 0; d < kIndexHeadDim; ++d) dot[d % 4] += to_float(q[h * kIndexHeadDim + d]) * key[d];
        const double total = (double{dot[0]} + double{dot[1]}) + (double{dot[2]} + double{dot[3]});
        sum += std::max(total, 0.0) * double{to_float(weight[h]) * kHeadScale};
      }
      scores[static_cast<std::size_t>(row)] = sum;
    });
    std::vector<double> sorted = scores;
    std::nth_element(sorted.begin(), sorted.begin() + kTopK - 1, sorted.end(), std::greater<>());
    const double last = sorted[kTopK - 1];
    for (std::int64_t i = 0; i < kTopK; ++i) {
      const std::int32_t row = topk_indices[static_cast<std::size_t>(token * kTopK + i)];
      if (row < 0 || row >= visible) return false;
      if (i > 0 && row <= topk_indices[static_cast<std::size_t>(token * kTopK + i - 1)]) return false;
      if (scores[static_cast<std::size_t>(row)] < last - 1e-4) return false;
    }
    return true;
  }
  void poison() const {
    fill_on_device(device_->topk_indices.data(), 0xa5, static_cast<std::size_t>(tokens_ * kTopK) * 4);
  }

 private:
  struct Device {
    explicit Device(const Workload& w)
        : table(w.table_),
          q(w.q_),
          weight(w.weight_),
          token_position(w.token_position_),
          token_sequence(w.token_sequence_),
          sequence_slot(w.sequence_slot_),
          sequence_start(w.sequence_start_),
          sequence_first_token(w.sequence_first_token_),
          topk_indices(static_cast<std::size_t>(w.tokens_ * kTopK)),
          count(static_cast<std::size_t>(w.tokens_)) {}
    DeviceVector<std::int32_t> table;
    DeviceVector<bf16> q, weight;
    DeviceVector<std::int32_t> token_position, token_sequence, sequence_slot, sequence_start, sequence_first_token;
    DeviceVector<std::int32_t> topk_indices, count;
  };

  const Pool& pool_;
  std::int64_t tokens_;
  std::int64_t stride_;
  std::int64_t sets_;
  std::vector<std::int32_t> table_;
  std::vector<bf16> q_, weight_;
  std::vector<std::int32_t> token_position_, token_sequence_, sequence_slot_, sequence_start_, sequence_first_token_;
  StepView step_;
  std::unique_ptr<Device> device_;
};

void require_ok(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

// shape: rows in place of tokens.
bool run_case(const Pool& pool, const StepShape& shape, std::int64_t tokens_each, const cuda::CudaDevice& device,
              cudaStream_t stream, const cuda::Scratch& scratch_region, int replays) {
  const std::int64_t set_bytes = cached_tokens(shape) * pool.shape().row_bytes();
  const std::int64_t query_bytes = shape.batch * tokens_each * kHeads * kIndexHeadDim * std::int64_t{sizeof(bf16)};
  const std::int64_t sets = std::clamp<std::int64_t>(kColdBytes / (set_bytes + query_bytes) + 1, 1, 64);
  const Workload work(pool, shape, tokens_each, sets);
  cuda::Scratch scratch = scratch_region;
  cuda::CudaOps ops(device, stream, scratch);
  const int repetitions = static_cast<int>(std::clamp<std::int64_t>(sets, 8, 32));

  work.poison();
  require_ok(ops.indexer_topk(work.params(0)));
  require_cuda(cudaStreamSynchronize(stream), "indexer_topk");
  // Of tokens of several lengths the first one sees most rows.
  bool right = true;
  for (const std::int64_t at : {0, 1, 2, 3, 4}) right = work.check(0, at * (work.tokens() - 1) / 4) && right;

  const GraphTime whole =
      time_in_graph(stream, repetitions, replays, [&](int i) { require_ok(ops.indexer_topk(work.params(i % sets))); });
  const Result<cuda::ScoreBatch> batch = cuda::plan_scores(work.params(0), scratch);
  require_ok(batch.status());
  double scan_us = 0;
  double top_k_us = 0;
  if (batch->tokens == work.tokens()) {
    scan_us = time_in_graph(stream, repetitions, replays, [&](int i) {
                require_ok(cuda::launch_scores(device, work.params(i % sets), *batch, stream));
              }).microseconds;
    // Each repetition ranks the same scores; they lie in the L2 cache, as they do after the scan.
    top_k_us = time_in_graph(stream, repetitions, replays, [&](int i) {
                 require_ok(cuda::launch_top_k(device, work.params(i % sets), *batch, stream));
               }).microseconds;
  }
  const double flops = 2.0 * static_cast<double>(tokens_each * cached_tokens(shape)) * kHeads * kIndexHeadDim;
  const double floor = floor_us(static_cast<double>(set_bytes), flops, kBf16FlopsPerSecond);
  std::printf(
      "%-6s B %4d n %7s tokens %5lld | op %8.2f us (%zu nodes) scan %8.2f floor %7.2f ratio %5.2f top-k %7.2f | %s\n",
      std::string(index_key_format_name(pool.format())).c_str(), shape.batch, context_text(shape).c_str(),
      static_cast<long long>(work.tokens()), whole.microseconds, whole.nodes, scan_us, floor, scan_us / floor, top_k_us,
      right ? "right" : "WRONG");
  std::fflush(stdout);
  return right;
}

int run(int argc, char** argv) {
  CLI::App app("Row selection on the GPU: time against its floor");
  std::vector<std::string> formats = {"fp8", "mxfp4"};
  std::vector<std::int32_t> sequences = {1, 1, 32, 128, 32};
  std::vector<std::int64_t> rows = {32768, 262144, 32768, 32768, 32768};
  std::vector<std::int64_t> shortest = {0, 0, 0, 0, 1024};
  std::vector<std::int64_t> tokens_each = {1, 1, 1, 1, 1};
  int replays = 25;
  app.add_option("--format", formats, "key formats");
  app.add_option("--sequences", sequences, "sequences B of each workload");
  const CLI::Option* const rows_option =
      app.add_option("--rows", rows, "visible rows n of each workload, or of its longest sequence");
  const CLI::Option* const shortest_option = app.add_option(
      "--shortest", shortest, "rows that no sequence has fewer of; 0, or with --rows and without this: all are alike");
  const CLI::Option* const tokens_option =
      app.add_option("--tokens", tokens_each, "tokens of each sequence of each workload");
  app.add_option("--replays", replays, "graph replays, of which the median counts");
  CLI11_PARSE(app, argc, argv);
  if (tokens_option->count() == 0) tokens_each.assign(sequences.size(), 1);
  if (shortest_option->count() == 0 && rows_option->count() > 0) shortest.assign(sequences.size(), 0);
  if (rows.size() != sequences.size() || tokens_each.size() != sequences.size() ||
      shortest.size() != sequences.size()) {
    std::fprintf(stderr, "--sequences, --rows, --shortest and --tokens name the same number of workloads\n");
    return 2;
  }
  std::vector<StepShape> shapes;  // rows in place of tokens
  for (std::size_t i = 0; i < rows.size(); ++i) {
    shapes.push_back({.batch = sequences[i], .context_tokens = rows[i], .shortest_tokens = shortest[i]});
    require_ok(check_step_shape(shapes.back()));
    const std::int64_t least = shortest[i] == 0 ? rows[i] : shortest[i];
    if (rows[i] > kMostRows || tokens_each[i] < 1 || tokens_each[i] > least * kRatio) {
      std::fprintf(
          stderr,
          "--rows %lld, --tokens %lld: accepted: up to %lld rows, and from one token to %lld times the rows of "
          "the shortest sequence\n",
          static_cast<long long>(rows[i]), static_cast<long long>(tokens_each[i]), static_cast<long long>(kMostRows),
          static_cast<long long>(kRatio));
      return 2;
    }
  }
  const auto device = cuda::CudaDevice::create(0);
  require_ok(device.status());
  cudaStream_t stream = nullptr;
  require_cuda(cudaStreamCreate(&stream), "stream");
  const DeviceVector<std::byte> scratch_memory(kScratchBytes);
  const DeviceVector<std::byte> zeros(cuda::kSelectStateBytes);
  fill_on_device(zeros.data(), 0, cuda::kSelectStateBytes);
  const cuda::Scratch scratch(scratch_memory.data(), kScratchBytes, {zeros.data(), cuda::kSelectStateBytes});
  bool right = true;
  for (const std::string& name : formats) {
    const Result<IndexKeyFormat> format = index_key_format_from_name(name);
    require_ok(format.status());
    std::int64_t most_blocks = kDistinctBlocks;
    for (const StepShape& shape : shapes) {
      most_blocks = std::max(most_blocks, shape.batch * ((shape.context_tokens + kBlockRows - 1) / kBlockRows));
    }
    const std::int64_t cold_blocks = kColdBytes / block_shape(*format, kBlockRows).block_bytes + 1;
    const Pool pool(*format, std::max(most_blocks, cold_blocks));
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      right = run_case(pool, shapes[i], tokens_each[i], **device, stream, scratch, replays) && right;
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace dsv4rt::bench

int main(int argc, char** argv) {
  return dsv4rt::bench::run(argc, argv);
}
