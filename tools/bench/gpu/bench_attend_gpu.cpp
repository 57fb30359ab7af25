// Attention over cache rows on the GPU at V4-Flash and V4-Pro shapes.
//
// Every repetition has its own rows, queries, selection and outputs (together more than the L2 cache); the
// step's metadata and block table are shared, as by the layers of a step. A few outputs of the last repetition
// are checked against double precision. Floor: rows, queries and outputs moved once, or the products of scores
// and values.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "backend/attend_weights.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"
#include "graph_timing.h"
#include "support/attend_case.h"
#include "support/weights_reference.h"

namespace dsv4rt::bench {
namespace {

using test::AttendArrays;
using test::AttendInputs;
using test::AttendPart;
using test::AttendPool;
using test::AttendShape;
using test::RowBank;

struct Case {
  const char* name;
  AttendShape shape;
  std::int32_t sequences;
  std::int32_t start;
  std::int32_t tokens;  // per sequence
};

AttendShape shape_of(std::int32_t heads, std::int32_t ratio, std::int32_t top_k) {
  return {.heads = heads, .ratio = ratio, .top_k = top_k, .ring_rows = 128};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int32_t b : {1, 8, 30, 31, 32, 64, 66, 68, 128, 132, 136, 144, 152, 160, 192, 256}) {
    all.push_back({"decode csa flash", shape_of(64, 4, 512), b, 8191, 1});
  }
  for (const std::int32_t b : {1, 4, 8, 32, 33, 34, 64, 66, 68, 72, 80, 96, 128})
    all.push_back({"decode csa pro", shape_of(128, 4, 1024), b, 8191, 1});
  for (const std::int32_t b : {1, 8, 32, 128}) {
    all.push_back({"decode hca flash 8K", shape_of(64, 128, 0), b, 8191, 1});
    all.push_back({"decode hca flash 64K", shape_of(64, 128, 0), b, 65535, 1});
    all.push_back({"decode hca flash 66K", shape_of(64, 128, 0), b, 67583, 1});
    all.push_back({"decode hca flash 128K", shape_of(64, 128, 0), b, 131071, 1});
    all.push_back({"decode hca flash 256K", shape_of(64, 128, 0), b, 262143, 1});
    all.push_back({"decode hca flash 512K", shape_of(64, 128, 0), b, 524287, 1});
    all.push_back({"decode hca flash 1M", shape_of(64, 128, 0), b, 1048575, 1});
  }
  for (const std::int32_t b : {34, 66, 128}) all.push_back({"decode hca pro 8K", shape_of(128, 128, 0), b, 8191, 1});
  for (const std::int32_t b : {1, 32, 33, 34, 66, 128})
    all.push_back({"decode hca pro 128K", shape_of(128, 128, 0), b, 131071, 1});
  for (const std::int32_t b : {1, 8, 32}) all.push_back({"decode hca pro 512K", shape_of(128, 128, 0), b, 524287, 1});
  for (const std::int32_t b : {1, 8, 32}) all.push_back({"decode hca pro 1M", shape_of(128, 128, 0), b, 1048575, 1});
  for (const std::int32_t b : {1, 128}) all.push_back({"decode swa flash", shape_of(64, 0, 0), b, 8191, 1});
  for (const std::int32_t b : {34, 66, 128}) all.push_back({"decode swa pro", shape_of(128, 0, 0), b, 8191, 1});
  all.push_back({"decode csa 8 heads", shape_of(8, 4, 512), 1, 8191, 1});
  all.push_back({"decode csa 8 heads", shape_of(8, 4, 512), 128, 8191, 1});
  all.push_back({"prefill csa flash", shape_of(64, 4, 512), 1, 8192, 4096});
  all.push_back({"prefill csa flash from 0", shape_of(64, 4, 512), 1, 0, 8192});
  all.push_back({"prefill csa flash at 8K, 512 tokens", shape_of(64, 4, 512), 1, 8192, 512});
  all.push_back({"prefill csa flash at 32K, 512 tokens", shape_of(64, 4, 512), 1, 32768, 512});
  all.push_back({"prefill hca flash from 0", shape_of(64, 128, 0), 1, 0, 8192});
  all.push_back({"prefill hca flash at 32K", shape_of(64, 128, 0), 1, 32768, 4096});
  all.push_back({"prefill hca flash at 128K", shape_of(64, 128, 0), 1, 131072, 4096});
  all.push_back({"prefill swa flash from 0", shape_of(64, 0, 0), 1, 0, 8192});
  for (const std::int32_t ratio : {0, 128}) {
    all.push_back({ratio == 0 ? "prefill swa flash at 4000, 136 tokens" : "prefill hca flash at 4000, 136 tokens",
                   shape_of(64, ratio, 0), 1, 4000, 136});
    all.push_back({ratio == 0 ? "prefill swa flash at 4000, 512 tokens" : "prefill hca flash at 4000, 512 tokens",
                   shape_of(64, ratio, 0), 1, 4000, 512});
    all.push_back({ratio == 0 ? "verify swa flash, 4 tokens each" : "verify hca flash, 4 tokens each",
                   shape_of(64, ratio, 0), 64, 8000, 4});
  }
  all.push_back({"prefill csa pro", shape_of(128, 4, 1024), 1, 8192, 1024});
  return all;
}

// The values of a token's rows in their order.
std::vector<std::vector<float>> rows_of(const AttendInputs& in, const AttendPool& pool, std::int32_t token) {
  std::vector<std::vector<float>> rows;
  const auto add = [&](const BlockShape& shape, const std::byte* block, std::int64_t row) {
    rows.emplace_back(kHeadDim);
    decode_row(in.shape.format, shape, block, row, rows.back().data());
  };
  const std::int32_t position = in.position[static_cast<std::size_t>(token)];
  const std::int32_t slot = in.slot_of(token);
  const auto sequence = static_cast<std::size_t>(in.sequence[static_cast<std::size_t>(token)]);
  for (std::int32_t p = std::max(0, position - in.shape.window + 1); p <= position; ++p) {
    if (p >= in.start[sequence]) {
      add(in.staged_shape, in.staged.data(), in.first_token[sequence] + p - in.start[sequence]);
    } else {
      add(in.ring_shape, in.ring.data() + slot * in.ring_shape.block_bytes, p % in.ring_shape.rows);
    }
  }
  if (in.shape.ratio == 0) return rows;
  const bool selects = in.shape.top_k > 0;
  const std::int32_t count = selects ? in.topk_count[static_cast<std::size_t>(token)] : (position + 1) / in.shape.ratio;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t row =
        selects ? in.topk_indices[static_cast<std::size_t>(token) * static_cast<std::size_t>(in.shape.top_k) +
                                  static_cast<std::size_t>(i)]
                : i;
    const auto block = pool.table[static_cast<std::size_t>(slot * pool.stride + row / pool.rows_shape.rows)];
    add(pool.rows_shape, pool.bytes.data() + block * pool.rows_shape.block_bytes, row % pool.rows_shape.rows);
  }
  return rows;
}

double bf16_of(double value) {
  return static_cast<double>(round_to_bf16(static_cast<float>(value)));
}

// Largest relative error over a few (token, head).
double largest_error(const AttendInputs& in, const AttendPool& pool, const std::vector<bf16>& o) {
  double largest_relative = 0;
  for (const double place : {0.0, 0.4, 0.99}) {
    const auto token = static_cast<std::int32_t>(place * in.counts.valid_tokens);
    const auto rows = rows_of(in, pool, token);
    for (const std::int32_t head : {0, in.shape.heads / 2 + 1, in.shape.heads - 1}) {
      const std::size_t at = static_cast<std::size_t>(token * in.shape.heads + head) * kHeadDim;
      std::vector<double> scores;
      for (const auto& row : rows) {
        double dot = 0;
        for (std::size_t i = 0; i < kHeadDim; ++i) {
          dot += static_cast<double>(to_float(in.q[at + i])) * static_cast<double>(row[i]);
        }
        scores.push_back(dot / std::sqrt(512.0));
      }
      const std::int32_t window = std::min(in.shape.window, in.position[static_cast<std::size_t>(token)] + 1);
      const test::WeightsReference weights(scores, static_cast<std::size_t>(window),
                                           weighs_by_power(in.shape.top_k > 0, static_cast<std::int32_t>(rows.size())));
      double denominator = weights.weight(static_cast<double>(in.sink[static_cast<std::size_t>(head)]));
      std::vector<double> sum(kHeadDim);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        denominator += weights.weight(scores[r]);
        const double weight = weights.rounded(scores[r]);
        for (std::size_t i = 0; i < kHeadDim; ++i) sum[i] += weight * static_cast<double>(rows[r][i]);
      }
      for (double& value : sum) value = bf16_of(value / denominator);
      for (std::size_t pair = 0; pair < in.frequency.size(); ++pair) {
        const float angle = static_cast<float>(in.position[static_cast<std::size_t>(token)]) * in.frequency[pair];
        const double c = std::cos(static_cast<double>(angle));
        const double s = -std::sin(static_cast<double>(angle));
        double& even = sum[kNopeDim + 2 * pair];
        double& odd = sum[kNopeDim + 2 * pair + 1];
        const double x = even;
        even = bf16_of(x * c - odd * s);
        odd = bf16_of(x * s + odd * c);
      }
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < kHeadDim; ++i) {
        error += std::pow(static_cast<double>(to_float(o[at + i])) - sum[i], 2);
        norm += sum[i] * sum[i];
      }
      const double relative = std::sqrt(error / norm);
      if (!(relative <= largest_relative)) largest_relative = relative;
    }
  }
  return largest_relative;
}

struct Pools {
  RowBank bank{RowFormat::kFp8DsMla};
  Backend* backend = nullptr;
  bool norm_queries = false;  // attention does it, where it can
};

constexpr float kEps = 1e-6F;

// Takes attention's queries to what it made of them. `stream`: of ops; the backend copies on its own one.
bool norm_queries(Ops& ops, Backend& backend, cudaStream_t stream, const AttendParams& params, std::vector<bf16>& q) {
  const QueryParams query{.step = params.step,
                          .heads = params.heads,
                          .q = const_cast<bf16*>(params.q),
                          .eps = kEps,
                          .rope = {params.output_rope.inverse_frequency, false}};
  return ops.query(query).ok() && cudaStreamSynchronize(stream) == cudaSuccess &&
         backend.download(q.data(), params.q, q.size() * sizeof(bf16)).ok();
}

bool run(const Case& c, const Pools& pools, cudaStream_t stream, Ops& ops) {
  Backend& backend = *pools.backend;
  const std::int64_t rows_per_token = c.shape.window + (c.shape.ratio == 0  ? 0
                                                        : c.shape.top_k > 0 ? c.shape.top_k
                                                                            : (c.start + c.tokens) / c.shape.ratio);
  const std::int64_t set_bytes =
      c.tokens > 1 ? kColdBytes : c.sequences * (rows_per_token * 584 + std::int64_t{c.shape.heads} * kHeadDim * 2);
  const auto sets = static_cast<std::int32_t>(std::clamp<std::int64_t>(kColdBytes / set_bytes + 1, 1, 256));
  const std::int64_t positions = c.start + c.tokens;
  const std::int64_t blocks = c.shape.ratio == 0 ? 1 : 8209;  // 307 MB
  AttendPool pool(c.shape, pools.bank, c.sequences, positions, blocks);
  // A set's rows start elsewhere in the pool; the table reaches half of it.
  const std::int64_t reach = std::max<std::int64_t>(blocks / 2, 1);
  for (std::int32_t& block : pool.table) block = static_cast<std::int32_t>(block % reach);
  const auto set_offset = [&](std::int32_t set) { return set * (blocks - reach) / sets * pool.rows_shape.block_bytes; };
  auto device_blocks = backend.allocate(pool.bytes.size() + 16, "blocks");
  auto device_table = backend.allocate(pool.table.size() * 4 + 16, "table");
  if (!device_blocks.ok() || !device_table.ok()) return false;
  if (!backend.upload(device_blocks->data(), pool.bytes.data(), pool.bytes.size()).ok()) return false;
  if (!backend.upload(device_table->data(), pool.table.data(), pool.table.size() * 4).ok()) return false;

  std::vector<std::unique_ptr<AttendArrays>> arrays;
  std::unique_ptr<AttendInputs> last;
  std::vector<float> sink;
  double rows = 0;
  for (std::int32_t set = 0; set < sets; ++set) {
    std::vector<AttendPart> parts;
    for (std::int32_t b = 0; b < c.sequences; ++b) parts.push_back({b, c.start, c.tokens});
    last = std::make_unique<AttendInputs>(c.shape, pools.bank, c.sequences, parts, 0,
                                          1000 + static_cast<std::uint64_t>(set));
    arrays.push_back(std::make_unique<AttendArrays>(backend, *last, pool, device_blocks->data() + set_offset(set),
                                                    device_table->as<std::int32_t>()));
    if (set == 0) sink = last->sink;
    last->sink = sink;
    AttendParams& params = arrays.back()->params;
    params.step = arrays.front()->params.step;
    params.sink = arrays.front()->params.sink;
    params.output_rope = arrays.front()->params.output_rope;
    if (const auto norms = ops.norms_queries(params); pools.norm_queries && norms.ok() && *norms)
      params.query_eps = kEps;
  }
  for (std::int32_t t = 0; t < last->counts.tokens; ++t) {
    const std::int32_t p = last->position[static_cast<std::size_t>(t)];
    const std::int32_t visible = c.shape.ratio == 0 ? 0 : (p + 1) / c.shape.ratio;
    rows += std::min(p + 1, c.shape.window) + (c.shape.top_k > 0 ? std::min(visible, c.shape.top_k) : visible);
  }
  const double tokens = last->counts.tokens;
  // Rows of one sequence in one step are shared by its tokens.
  const double distinct =
      c.tokens > 1 ? static_cast<double>(positions) * (c.shape.ratio == 0 ? 1.0 : 1.0 + 1.0 / c.shape.ratio) : rows;
  const double bytes = distinct * 584 + tokens * c.shape.heads * kHeadDim * 4;
  const double flops = 4.0 * rows * c.shape.heads * kHeadDim;
  const double floor = floor_us(bytes, flops, kBf16FlopsPerSecond);

  bool ok = true;
  const int repetitions = c.tokens > 1 ? 2 : std::max(sets, 16);
  const GraphTime time = time_in_graph(stream, repetitions, c.tokens > 1 ? 5 : 21, [&](int i) {
    const Status status = ops.attend(arrays[static_cast<std::size_t>(i % sets)]->params);
    if (!status.ok()) {
      std::printf("%s\n", status.to_string().c_str());
      ok = false;
    }
  });
  std::vector<bf16> o;
  ok = ok && arrays.back()->output(o).ok();
  const AttendParams& last_params = arrays.back()->params;
  if (last_params.query_eps) ok = ok && norm_queries(ops, backend, stream, last_params, last->q);
  pool.bytes.erase(pool.bytes.begin(), pool.bytes.begin() + set_offset(sets - 1));
  const double error = ok ? largest_error(*last, pool, o) : 1;
  std::printf("%-26s B=%-3d%s rows/token %6.0f  %9.2f us  floor %8.2f  ratio %5.2f  error %.1e%s\n", c.name,
              c.sequences, last_params.query_eps ? " norms queries" : "", rows / tokens, time.microseconds, floor,
              time.microseconds / floor, error, error < 6e-3 ? "" : "  WRONG");
  std::fflush(stdout);
  return error < 6e-3;
}

}  // namespace
}  // namespace dsv4rt::bench

int main(int argc, char** argv) {
  using namespace dsv4rt;
  CLI::App app("Attention over cache rows on the GPU");
  std::string only;
  app.add_option("--only", only, "cases whose name contains this");
  bench::Pools pools;
  app.add_flag("--norm-queries", pools.norm_queries, "attention norms and turns queries, where it can");
  std::size_t scratch_mib = 256;
  app.add_option("--scratch-mib", scratch_mib, "scratch memory; of 1 MiB each block decodes the rows of prompts")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  auto backend = create_cuda_backend({.device = 0});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().to_string().c_str());
    return 1;
  }
  pools.backend = backend->get();
  cudaStream_t stream = nullptr;
  bench::require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const std::size_t scratch_bytes = scratch_mib << 20;
  auto scratch_memory = (*backend)->allocate(scratch_bytes, "scratch");
  auto zeros = (*backend)->allocate(cuda::kSelectStateBytes, "zeros");
  if (!scratch_memory.ok() || !zeros.ok()) return 1;
  bench::fill_on_device(zeros->data(), 0, cuda::kSelectStateBytes);
  cuda::Scratch scratch(scratch_memory->data(), scratch_bytes, {zeros->data(), cuda::kSelectStateBytes});
  const auto device = cuda::CudaDevice::create(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().to_string().c_str());
    return 1;
  }
  cuda::CudaOps ops(**device, stream, scratch);
  bool ok = true;
  int measured = 0;
  for (const bench::Case& c : bench::cases()) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    ok = bench::run(c, pools, stream, ops) && ok;
    ++measured;
  }
  if (measured == 0) {
    std::fprintf(stderr, "--only: no case's name contains '%s'\n", only.c_str());
    return 2;
  }
  return ok ? 0 : 1;
}
