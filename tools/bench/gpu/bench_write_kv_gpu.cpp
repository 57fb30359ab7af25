// Everything between the projections and the reads of the cache, at V4-Flash shapes: write_kv as one call,
// and the single operations it is made of. Inputs are DRAM-cold; one result per case is compared with the CPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/parallel.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/write_kv/launch.h"
#include "gpu_bench_support.h"
#include "graph_timing.h"
#include "layout/row_format.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt::bench {
namespace {

using test::Part;
using test::TestStep;

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kIndexHeads = 64;
constexpr std::int32_t kWindow = 128;
constexpr std::int32_t kBlockRows = 64;
constexpr float kEps = 1e-6F;

// A compressor and what it reads and writes for one input set.
struct CompressorShape {
  std::int32_t ratio = 0;
  std::int32_t dim = 0;
  bool overlap = false;
  [[nodiscard]] std::int32_t width() const { return overlap ? 2 * dim : dim; }
  [[nodiscard]] std::int32_t pooled() const { return overlap ? 2 * ratio : ratio; }
  [[nodiscard]] std::int64_t slot_bytes() const { return std::int64_t{pooled()} * 2 * width() * 4; }
  [[nodiscard]] BlockShape rows() const {
    return dim == kHeadDim ? block_shape(RowFormat::kFp8DsMla, kBlockRows)
                           : block_shape(IndexKeyFormat::kMxfp4, kBlockRows);
  }
};
constexpr CompressorShape kCsa{4, kHeadDim, true};
constexpr CompressorShape kIndex{4, kIndexHeadDim, true};
constexpr CompressorShape kHca{128, kHeadDim, false};

struct Case {
  std::string name;
  std::vector<CompressorShape> compressors;  // none: SWA; CSA: rows and index keys; HCA: rows
  std::vector<Part> parts;
  std::int32_t repetitions_hint = 0;

  [[nodiscard]] bool indexer() const { return compressors.size() == 2; }
};

// Offsets of one input set's arrays.
struct SetLayout {
  struct Compressor {
    std::size_t kv, score, state, blocks;
  };
  SetLayout(const Case& c, std::int64_t tokens, std::int64_t slots) {
    q = take(tokens * kHeads * kHeadDim * 2);
    index_q = take(c.indexer() ? tokens * kIndexHeads * kIndexHeadDim * 2 : 0);
    kv = take(tokens * kHeadDim * 2);
    staged = take(block_shape(RowFormat::kFp8DsMla, static_cast<std::int32_t>(tokens)).block_bytes);
    ring = take(slots * block_shape(RowFormat::kFp8DsMla, kWindow).block_bytes);
    random_bytes = bytes;  // floats from here on
    for (const CompressorShape& s : c.compressors) {
      Compressor at{};
      at.kv = take(tokens * s.width() * 4);
      at.score = take(tokens * s.width() * 4);
      at.state = take(slots * s.slot_bytes());
      compressors.push_back(at);
    }
    floats_end = bytes;
    for (std::size_t i = 0; i < compressors.size(); ++i) {
      compressors[i].blocks = take(slots * blocks_of_slot(c, i) * c.compressors[i].rows().block_bytes);
    }
  }
  // The rows that the step completes lie in one block of a decoding sequence, in many of a chunk.
  static std::int64_t blocks_of_slot(const Case& c, std::size_t i) {
    const std::int32_t count = c.parts.front().count;
    return count / c.compressors[i].ratio / kBlockRows + 1;
  }
  std::size_t take(std::int64_t size) {
    const std::size_t at = bytes;
    bytes += (static_cast<std::size_t>(size) + 255) / 256 * 256;
    return at;
  }
  std::size_t q, index_q, kv, staged, ring, random_bytes, floats_end;
  std::vector<Compressor> compressors;
  std::size_t bytes = 0;
};

// Weights and tables, the same for all sets.
struct Shared {
  std::vector<bf16> norm = test::random_bf16(5, kHeadDim);
  std::vector<float> ape = test::random_floats(6, 4 * 1024 > 128 * 512 ? 4 * 1024 : 128 * 512);
  std::vector<float> frequencies = test::test_frequencies(160000.0);
  std::vector<std::int32_t> table[2];
  std::int64_t table_stride[2] = {};
};

WriteKvParams params_of(const Case& c, const SetLayout& at, const StepView& step, std::byte* set, const bf16* norm,
                        const float* ape, const float* frequencies, std::int32_t* const (&table)[2],
                        const Shared& shared) {
  const RopeParams rope{.inverse_frequency = frequencies, .inverse = false};
  const BlockShape staged_shape = block_shape(RowFormat::kFp8DsMla, step.counts.tokens);
  const BlockShape ring_shape = block_shape(RowFormat::kFp8DsMla, kWindow);
  WriteKvParams p{.query = QueryParams{step, kHeads, reinterpret_cast<bf16*>(set + at.q), kEps, rope},
                  .index_query = {},
                  .window = {step, reinterpret_cast<bf16*>(set + at.kv), norm, kEps, rope, RowFormat::kFp8DsMla,
                             staged_shape, set + at.staged},
                  .swa_ring = {},
                  .compress = {},
                  .index_compress = {}};
  if (ring_keeps_needed_rows(kWindow, kWindow, step.counts)) {
    p.swa_ring = SwaRing{set + at.ring, ring_shape.block_bytes, ring_shape, RowFormat::kFp8DsMla};
  }
  if (c.indexer()) {
    p.index_query = IndexQueryParams{step, kIndexHeads, reinterpret_cast<bf16*>(set + at.index_q),
                                     rope, true,        IndexKeyFormat::kMxfp4};
  }
  for (std::size_t i = 0; i < c.compressors.size(); ++i) {
    const CompressorShape& s = c.compressors[i];
    const bool key = s.dim == kIndexHeadDim;
    (key ? p.index_compress : p.compress) =
        CompressParams{.step = step,
                       .input = {.kv = reinterpret_cast<float*>(set + at.compressors[i].kv),
                                 .score = reinterpret_cast<float*>(set + at.compressors[i].score),
                                 .stride = s.width(),
                                 .ape = ape,
                                 .ratio = s.ratio,
                                 .ratio_class = 0,
                                 .dim = s.dim,
                                 .overlap = s.overlap},
                       .state = {set + at.compressors[i].state, s.slot_bytes(), s.pooled()},
                       .norm_weight = norm,
                       .eps = kEps,
                       .rope = rope,
                       .anchor = Profile::RopeAnchor::kFirstToken,
                       .hadamard = key,
                       .is_index_key = key,
                       .row_format = RowFormat::kFp8DsMla,
                       .key_format = IndexKeyFormat::kMxfp4,
                       .rows = {set + at.compressors[i].blocks, s.rows(), table[i], shared.table_stride[i]}};
  }
  return p;
}

// Every slot's rows lie in blocks of its own; a decoding sequence's table names its one block everywhere.
void fill_tables(const Case& c, std::int64_t slots, Shared& shared) {
  for (std::size_t i = 0; i < c.compressors.size(); ++i) {
    std::int64_t most_rows = 0;
    for (const Part& part : c.parts) {
      most_rows = std::max<std::int64_t>(most_rows, (part.start + part.count) / c.compressors[i].ratio + 1);
    }
    const std::int64_t own = SetLayout::blocks_of_slot(c, i);
    shared.table_stride[i] = most_rows / kBlockRows + 1;
    shared.table[i].resize(static_cast<std::size_t>(slots * shared.table_stride[i]));
    for (std::int64_t s = 0; s < slots; ++s) {
      for (std::int64_t b = 0; b < shared.table_stride[i]; ++b) {
        shared.table[i][static_cast<std::size_t>(s * shared.table_stride[i] + b)] =
            static_cast<std::int32_t>(s * own + b % own);
      }
    }
  }
}

// Random content: normal BF16 up to random_bytes, normal floats up to floats_end, zero behind.
std::vector<std::byte> random_set(const SetLayout& at) {
  static const std::vector<bf16> halves = test::random_bf16(1, std::size_t{1} << 18);
  static const std::vector<float> floats = test::random_floats(2, std::size_t{1} << 18);
  std::vector<std::byte> set(at.bytes);
  test::Random random(3);
  const auto fill = [&](std::size_t begin, std::size_t end, const std::byte* from, std::size_t size) {
    for (std::size_t chunk = begin; chunk < end; chunk += 4096) {
      const std::size_t offset = random.bits() % (size - 4096) / 4 * 4;
      std::memcpy(set.data() + chunk, from + offset, std::min<std::size_t>(4096, end - chunk));
    }
  };
  fill(0, at.random_bytes, reinterpret_cast<const std::byte*>(halves.data()), halves.size() * 2);
  fill(at.random_bytes, at.floats_end, reinterpret_cast<const std::byte*>(floats.data()), floats.size() * 4);
  return set;
}

struct Traffic {
  double query = 0, index_query = 0, window = 0, compress = 0, state = 0;
  [[nodiscard]] double total() const { return query + index_query + window + compress + state; }
};

Traffic traffic_of(const Case& c, const StepView& step) {
  const double tokens = step.counts.tokens;
  Traffic bytes;
  bytes.query = 2 * tokens * kHeads * kHeadDim * 2;
  bytes.index_query = c.indexer() ? 2 * tokens * kIndexHeads * kIndexHeadDim * 2 : 0;
  bytes.window = tokens * (kHeadDim * 2 + 584 * (step.counts.longest_entry == 1 ? 2 : 1));
  const bool chunk = step.counts.longest_entry > 1;
  for (const CompressorShape& s : c.compressors) {
    double completed = 0;
    for (std::int32_t t = 0; t < step.counts.tokens; ++t) completed += step.valid_mask[0][t];
    bytes.compress += completed * (double(s.pooled()) * s.dim * 8 + s.rows().row_bytes());
    bytes.state += (chunk ? double(s.pooled()) * step.counts.sequences : tokens) * s.width() * 16;
  }
  return bytes;
}

void check(const char* what, const std::byte* expected, const std::byte* actual, std::size_t begin, std::size_t end,
           std::string& report) {
  std::size_t different = 0;
  for (std::size_t i = begin; i < end; ++i) different += expected[i] != actual[i] ? 1 : 0;
  if (different > 0) {
    char text[96];
    std::snprintf(text, sizeof(text), " %s: %zu of %zu bytes differ", what, different, end - begin);
    report += text;
  }
}

// One result against the CPU; "" if every byte is equal.
std::string compare_with_cpu(const Case& c, const SetLayout& at, const StepView& step, std::vector<std::byte>& set,
                             Shared& shared, std::int32_t* const (&table)[2],
                             const std::function<std::vector<std::byte>()>& gpu_result) {
  static const cpu::ThreadTeam team(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  const Scratch none;
  cpu::CpuOps ops(team, none, cpu::detect_isa_level());
  require_ok(ops.write_kv(params_of(c, at, step, set.data(), shared.norm.data(), shared.ape.data(),
                                    shared.frequencies.data(), table, shared)));
  const std::vector<std::byte> actual = gpu_result();
  std::string report;
  check("q", set.data(), actual.data(), at.q, at.index_q, report);
  check("index_q", set.data(), actual.data(), at.index_q, at.kv, report);
  check("window", set.data(), actual.data(), at.staged, at.random_bytes, report);
  check("state", set.data(), actual.data(), at.random_bytes, at.floats_end, report);
  check("rows", set.data(), actual.data(), at.floats_end, at.bytes, report);
  return report;
}

struct Options {
  std::string only;  // part of the name
  bool singles = false;
  bool check = true;
};

struct Outcome {
  int measured = 0;
  bool right = true;
};

void run_case(const Case& c, const Options& options, const cuda::CudaDevice& device, cudaStream_t stream,
              Outcome& outcome) {
  if (c.name.find(options.only) == std::string::npos) return;
  ++outcome.measured;
  std::vector<std::int32_t> ratios;
  if (!c.compressors.empty()) ratios.push_back(c.compressors.front().ratio);
  const TestStep step(c.parts, 0, ratios);
  const StepView host_step = step.view();
  const std::int64_t tokens = step.tokens();
  const auto slots = static_cast<std::int64_t>(c.parts.size());
  Shared shared;
  fill_tables(c, slots, shared);
  const SetLayout at(c, tokens, slots);

  const std::int64_t sets = std::clamp<std::int64_t>(2 * kColdBytes / static_cast<std::int64_t>(at.bytes) + 1, 2, 2048);
  std::vector<std::byte> host_set = random_set(at);
  DeviceMemory memory(at.bytes * static_cast<std::size_t>(sets));
  copy_to_device(memory.data(), host_set.data(), at.bytes);
  for (std::int64_t s = 1; s < sets; ++s) {
    require_cuda(cudaMemcpy(memory.data() + static_cast<std::size_t>(s) * at.bytes, memory.data(), at.bytes,
                            cudaMemcpyDeviceToDevice),
                 "copy");
  }
  DeviceStep device_step(host_step, static_cast<int>(ratios.size()));
  DeviceCopy<bf16> norm(shared.norm);
  DeviceCopy<float> ape(shared.ape);
  DeviceCopy<float> frequencies(shared.frequencies);
  std::vector<std::unique_ptr<DeviceCopy<std::int32_t>>> tables;
  std::int32_t* table[2] = {};
  std::int32_t* host_table[2] = {};
  for (std::size_t i = 0; i < c.compressors.size(); ++i) {
    tables.push_back(std::make_unique<DeviceCopy<std::int32_t>>(shared.table[i]));
    table[i] = tables.back()->data();
    host_table[i] = shared.table[i].data();
  }
  cuda::Scratch scratch;
  cuda::CudaOps ops(device, stream, scratch);
  const auto params = [&](int i) {
    return params_of(c, at, device_step.view(), memory.data() + static_cast<std::size_t>(i % sets) * at.bytes,
                     norm.data(), ape.data(), frequencies.data(), table, shared);
  };

  const std::string report =
      options.check
          ? compare_with_cpu(c, at, host_step, host_set, shared, host_table,
                             [&] {
                               require_ok(ops.write_kv(params(0)));
                               require_cuda(cudaStreamSynchronize(stream), "write_kv");
                               std::vector<std::byte> actual(at.bytes);
                               require_cuda(cudaMemcpy(actual.data(), memory.data(), at.bytes, cudaMemcpyDeviceToHost),
                                            "download");
                               return actual;
                             })
          : " not checked";
  if (options.check && !report.empty()) outcome.right = false;

  const Traffic bytes = traffic_of(c, host_step);
  const int repetitions = static_cast<int>(std::clamp<std::int64_t>(sets, 4, 1024));
  const auto line = [&](const char* what, double traffic, const std::function<Status(int)>& work) {
    const GraphTime time = time_in_graph(stream, repetitions, 20, [&](int i) { require_ok(work(i)); });
    const double floor = floor_us(traffic, 0, kBf16FlopsPerSecond);
    std::printf("%-22s %-12s %3zu launch %9.2f us  floor %8.2f  x%.2f\n", c.name.c_str(), what, time.nodes,
                time.microseconds, floor, time.microseconds / floor);
  };
  line("write_kv", bytes.total(), [&](int i) { return ops.write_kv(params(i)); });
  if (options.singles) {
    line("query", bytes.query, [&](int i) { return ops.query(*params(i).query); });
    if (c.indexer()) {
      line("index_query", bytes.index_query, [&](int i) { return ops.index_query(*params(i).index_query); });
    }
    line("swa_kv", bytes.window, [&](int i) { return ops.swa_kv(params(i).window); });
    if (!c.compressors.empty()) {
      line("compress", bytes.compress, [&](int i) {
        const WriteKvParams p = params(i);
        return cuda::launch_rows(
            device, {.compress = &*p.compress, .index_compress = p.index_compress ? &*p.index_compress : nullptr},
            p.window.step.counts.tokens, stream);
      });
      line("state_store", bytes.state, [&](int i) {
        const WriteKvParams p = params(i);
        const auto store = [&](const CompressParams& one) { return ops.state_store({one.step, one.input, one.state}); };
        const Status status = store(*p.compress);
        return status.ok() && p.index_compress ? store(*p.index_compress) : status;
      });
    }
  }
  std::printf("%-22s %s\n", c.name.c_str(), report.empty() ? "equal to the CPU" : report.c_str());
  std::fflush(stdout);
}

// Single tokens of `count` sequences; every one completes its block, or as many as phases allow.
std::vector<Part> decode(std::int32_t count, std::int32_t ratio, bool all_complete) {
  std::vector<Part> parts;
  test::Random random(11);
  for (std::int32_t i = 0; i < count; ++i) {
    const auto block = static_cast<std::int32_t>(random.bits() % 60 + 2) * 128 / std::max(ratio, 1);
    const auto phase =
        all_complete ? ratio - 1 : static_cast<std::int32_t>(random.bits() % static_cast<unsigned>(ratio));
    parts.push_back({i, block * ratio + phase, 1});
  }
  return parts;
}

}  // namespace
}  // namespace dsv4rt::bench

int main(int argc, char** argv) {
  using namespace dsv4rt;
  using namespace dsv4rt::bench;
  CLI::App app("write_kv and its parts on the GPU");
  std::vector<std::int32_t> batches{1, 32, 128, 256};
  std::int32_t chunk = 8192;
  Options options;
  app.add_option("--batches", batches, "sequences of a decode step")->delimiter(',');
  app.add_option("--chunk", chunk, "tokens of a prefill chunk; 0: none");
  app.add_option("--only", options.only, "cases whose name contains this");
  app.add_flag("--singles", options.singles, "also the single operations");
  app.add_flag("!--no-check", options.check, "do not compare with the CPU");
  CLI11_PARSE(app, argc, argv);

  const Options plain{.only = options.only, .singles = false, .check = options.check};
  const auto device = cuda::CudaDevice::create(0);
  require_ok(device.status());
  cudaStream_t stream = nullptr;
  require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  Outcome outcome;
  for (const std::int32_t batch : batches) {
    const std::string b = std::to_string(batch);
    run_case({"SWA B=" + b, {}, decode(batch, 4, false)}, plain, **device, stream, outcome);
    run_case({"CSA B=" + b + " all", {kCsa, kIndex}, decode(batch, 4, true)}, options, **device, stream, outcome);
    run_case({"CSA B=" + b + " quarter", {kCsa, kIndex}, decode(batch, 4, false)}, plain, **device, stream, outcome);
    run_case({"HCA B=" + b + " all", {kHca}, decode(batch, 128, true)}, options, **device, stream, outcome);
    run_case({"HCA B=" + b + " few", {kHca}, decode(batch, 128, false)}, options, **device, stream, outcome);
  }
  if (chunk > 0) {
    run_case({"CSA chunk", {kCsa, kIndex}, {{0, 0, chunk}}}, options, **device, stream, outcome);
    run_case({"HCA chunk", {kHca}, {{0, 0, chunk}}}, options, **device, stream, outcome);
  }
  if (outcome.measured == 0) {
    std::fprintf(stderr, "--only: no case's name contains '%s'\n", options.only.c_str());
    return 2;
  }
  return outcome.right ? 0 : 1;
}
