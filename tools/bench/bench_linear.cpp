// Linear layers of DeepSeek-V4-Flash on the CPU backend: decode (T = 1, 8) against memory bandwidth,
// prefill (T = 1024) against the machine's arithmetic peak. Every timed result is also checked.
//
// Decode rotates over copies of the weight that together exceed the caches, as a model's layers do.
// --threads=N (default: all) chooses the team; with one thread all rates are of processor time, which is
// the figure to trust on a machine that other programs use.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "backend/cpu/cpu_backend.h"
#include "layout/rounding.h"
#include "machine_limits.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::bench {
namespace {

constexpr std::size_t kFootprintBytes = std::size_t{640} << 20;

struct Shape {
  const char* name;
  WeightEncoding encoding;
  ActivationRounding activation;
  std::int64_t out;
  std::int64_t in;
};

constexpr Shape kShapes[] = {
    {"wq_a", WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, 1024, 4096},
    {"wq_b", WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, 32768, 1024},
    {"wkv", WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, 512, 4096},
    {"wo_b", WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, 4096, 8192},
    {"wo_b_nvfp4", WeightEncoding::kNvfp4, ActivationRounding::kNone, 4096, 8192},
    {"compressor_wkv_bf16", WeightEncoding::kBf16, ActivationRounding::kNone, 1024, 4096},
};

struct Limits {
  int threads;
  double bytes_per_s;
  double flops;
};

// Compares sampled results with the chain computed one element at a time.
bool results_match(const test::TestMatrix& matrix, const std::vector<bf16>& x, const std::vector<float>& y,
                   std::int64_t tokens) {
  const std::int64_t in = matrix.host.in_features;
  const std::int64_t out = matrix.host.out_features;
  for (std::int64_t t = 0; t < tokens; t += std::max<std::int64_t>(1, tokens / 5)) {
    std::vector<float> row;
    for (std::int64_t k = 0; k < in; ++k) row.push_back(to_float(x[static_cast<std::size_t>(t * in + k)]));
    if (matrix.host.activation == ActivationRounding::kFp8Block128) round_activation_fp8(row.data(), row.size());
    for (std::int64_t n = t % 7; n < out; n += out / 16 + 1) {
      const float sum = test::chain(matrix.values.data() + n * in, row.data(), in) * matrix.host.global_scale;
      if (sum != y[static_cast<std::size_t>(t * out + n)]) return false;
    }
  }
  return true;
}

void bench_linear(benchmark::State& state, const Shape& shape, std::int32_t tokens, const Limits& limits) {
  CpuBackendOptions options;
  options.threads = limits.threads;
  auto backend = create_cpu_backend(options).value();
  StepShapes shapes{.max_tokens = tokens};
  shapes.linears.push_back({.matrices = 1, .inputs = 1, .in_features = shape.in, .out_features = shape.out});
  if (!backend->reserve_scratch(static_cast<std::size_t>(backend->scratch_bytes(shapes))).ok()) {
    state.SkipWithError("no memory for scratch");
    return;
  }
  test::TestMatrix matrix;
  test::fill_matrix(matrix, shape.encoding, shape.activation, shape.out, shape.in, 1);
  std::vector<std::unique_ptr<PackedLinear>> copies;
  do {
    copies.push_back(backend->pack_linear(matrix.host).value());
  } while (tokens < 64 && copies.size() * static_cast<std::size_t>(copies[0]->bytes()) < kFootprintBytes);

  std::mt19937 random(2);
  std::vector<bf16> x(static_cast<std::size_t>(tokens * shape.in));
  for (bf16& value : x) value = test::random_bf16(random, -6, 3);
  std::vector<float> y(static_cast<std::size_t>(tokens * shape.out));
  std::size_t next = 0;
  const auto run = [&] {
    const LinearCall call{x.data(), shape.in, copies[next].get(), y.data(), shape.out, OutputType::kF32};
    next = (next + 1) % copies.size();
    return backend->ops().linear(tokens, std::span(&call, 1)).ok();
  };
  if (!run() || !results_match(matrix, x, y, tokens)) {
    state.SkipWithError("wrong result");
    return;
  }
  for (auto iteration : state) {
    if (!run()) state.SkipWithError("linear failed");
  }
  const double bytes = static_cast<double>(copies[0]->bytes());
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(shape.out * shape.in);
  using benchmark::Counter;
  const auto rate = Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = Counter(bytes * 1e-9, rate);
  state.counters["of_read"] = Counter(bytes / limits.bytes_per_s, rate);
  state.counters["GFLOP/s"] = Counter(flops * 1e-9, rate);
  state.counters["of_peak"] = Counter(flops / limits.flops, rate);
  if (!results_match(matrix, x, y, tokens)) state.SkipWithError("wrong result");
}

}  // namespace
}  // namespace dsv4rt::bench

int main(int argc, char** argv) {
  using namespace dsv4rt::bench;
  benchmark::Initialize(&argc, argv);
  Limits limits{};
  limits.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (argc == 2 && std::string(argv[1]).starts_with("--threads=")) limits.threads = std::atoi(argv[1] + 10);
  if (argc > 2 || limits.threads < 1 || limits.threads > 1024) {
    std::fprintf(stderr, "usage: bench_linear [--threads=1..1024] [--benchmark_...]\n");
    return 2;
  }
  limits.bytes_per_s = measure_read_bandwidth(limits.threads, kFootprintBytes);
  limits.flops = measure_peak_flops(limits.threads);
  std::printf("%d threads: %.1f GB/s read, %.1f GFLOP/s peak\n", limits.threads, limits.bytes_per_s * 1e-9,
              limits.flops * 1e-9);
  for (const Shape& shape : kShapes) {
    for (const std::int32_t tokens : {1, 8, 1024}) {
      const std::string name = std::string(shape.name) + "/[" + std::to_string(shape.out) + "," +
                               std::to_string(shape.in) + "]/T:" + std::to_string(tokens);
      auto* bench = benchmark::RegisterBenchmark(name.c_str(), [&shape, tokens, limits](benchmark::State& state) {
        bench_linear(state, shape, tokens, limits);
      });
      bench->Unit(benchmark::kMicrosecond);
      if (limits.threads > 1) bench->UseRealTime();
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
