// Linear layers of DeepSeek-V4 on the GPU against memory bandwidth and tensor-core rate.
//
// With --family the kernel families that it names run one by one instead, each checked for the same bytes, and --csv
// FILE gets a line for every problem, T and family; with --fp8 they multiply E4M3 (LinearPrecision::kFp8).
//
// Every problem runs with the exact products and with those of E4M3 where it has any, rounding of x included. Products
// of wo_a by E4M3 find their inputs encoded, as attention leaves them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "base/bfloat16.h"
#include "graph_timing.h"
#include "layout/codec_e4m3.h"
#include "layout/rounding.h"

namespace dsv4rt::bench {
namespace {

struct Part {
  std::int64_t out;
  std::int64_t in;
  WeightEncoding encoding;
  ActivationRounding activation;
  OutputType output;
  std::int64_t x_column;  // column of x where its input begins
};

struct Problem {
  std::string name;
  std::int64_t x_width;
  std::vector<Part> parts;
};

constexpr auto kFp8 = WeightEncoding::kFp8Block128;
constexpr auto kBf16 = WeightEncoding::kBf16;
constexpr auto kRounded = ActivationRounding::kFp8Block128;
constexpr auto kPlain = ActivationRounding::kNone;

struct Shape {
  const char* prefix;
  std::int64_t hidden;
  std::int64_t rank;  // rank of q
  std::int64_t heads;
  std::int64_t groups;  // groups of the output projection
};
constexpr Shape kFlash{"", 4096, 1024, 64, 8};
constexpr Shape kPro{"pro ", 7168, 1536, 128, 16};

std::vector<Problem> problems_of(const Shape& shape) {
  constexpr std::int64_t kHead = 512;
  constexpr std::int64_t kGroupRank = 1024;
  constexpr std::int64_t kIndex = 64 * 128;
  const std::int64_t hidden = shape.hidden;
  const std::string prefix = shape.prefix;
  std::vector<Problem> problems;
  const Part wq_a{shape.rank, hidden, kFp8, kRounded, OutputType::kBf16, 0};
  const Part wkv{kHead, hidden, kFp8, kRounded, OutputType::kBf16, 0};
  const auto plain = [&](std::int64_t out, OutputType output) { return Part{out, hidden, kBf16, kPlain, output, 0}; };
  const auto from_rank = [&](std::int64_t out) { return Part{out, shape.rank, kFp8, kRounded, OutputType::kBf16, 0}; };
  // Weights of compressors, beside the others or, where products are of E4M3, in a launch of their own.
  const std::vector<Part> csa{plain(1024, OutputType::kF32), plain(1024, OutputType::kF32),
                              plain(256, OutputType::kF32), plain(256, OutputType::kF32), plain(64, OutputType::kBf16)};
  const std::vector<Part> hca(2, plain(kHead, OutputType::kF32));
  const auto beside = [&](const std::vector<Part>& plain_parts) {
    std::vector<Part> parts{wq_a, wkv};
    parts.insert(parts.end(), plain_parts.begin(), plain_parts.end());
    return parts;
  };
  problems.push_back({prefix + "x CSA", hidden, beside(csa)});
  problems.push_back({prefix + "x HCA", hidden, beside(hca)});
  problems.push_back({prefix + "bf16 of x CSA", hidden, csa});
  problems.push_back({prefix + "bf16 of x HCA", hidden, hca});
  problems.push_back({prefix + "x SWA", hidden, {wq_a, wkv}});
  problems.push_back({prefix + "wq_b", shape.rank, {from_rank(shape.heads * kHead)}});
  problems.push_back({prefix + "wq_b + index", shape.rank, {from_rank(shape.heads * kHead), from_rank(kIndex)}});
  const std::int64_t group_inputs = shape.heads * kHead / shape.groups;
  Problem wo_a{prefix + "wo_a", shape.heads * kHead, {}};
  for (std::int64_t g = 0; g < shape.groups; ++g) {
    wo_a.parts.push_back({kGroupRank, group_inputs, kFp8, kPlain, OutputType::kBf16, g * group_inputs});
  }
  problems.push_back(wo_a);
  const std::int64_t group_outputs = shape.groups * kGroupRank;
  problems.push_back({prefix + "wo_b", group_outputs, {{hidden, group_outputs, kFp8, kRounded, OutputType::kBf16, 0}}});
  problems.push_back({prefix + "bf16 square", hidden, {{hidden, hidden, kBf16, kPlain, OutputType::kBf16, 0}}});
  return problems;
}

// The problems that have FP8 weights, with BF16 ones.
std::vector<Problem> bf16_problems_of(const Shape& shape) {
  std::vector<Problem> problems = problems_of(shape);
  std::erase_if(problems, [](const Problem& problem) {
    return std::ranges::none_of(problem.parts, [](const Part& part) { return part.encoding == kFp8; });
  });
  for (Problem& problem : problems) {
    problem.name.insert(std::strlen(shape.prefix), "bf16 ");
    for (Part& part : problem.parts) {
      part.encoding = kBf16;
      part.activation = kPlain;
    }
  }
  return problems;
}

// What runs a problem: a variant of a kernel family, or what a step would run.
struct Family {
  std::string name = "auto";
  std::optional<cuda::LinearVariant> forced;
};

std::vector<Family> all_families() {
  std::vector<Family> families(1);
  for (const cuda::LinearVariant variant : cuda::linear_variants()) families.push_back({name_of(variant), variant});
  return families;
}

std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Values of magnitude 0.03 to 2.
bf16 random_value(std::uint64_t& state) {
  const std::uint64_t bits = next_random(state);
  return {static_cast<std::uint16_t>((bits & 0x807f) | (122 + (bits >> 20) % 6) << 7)};
}

struct HostMatrix {
  std::vector<std::byte> weight;
  std::vector<std::byte> scale;
  HostLinear host;
};

void fill(HostMatrix& matrix, const Part& part, std::uint64_t& state) {
  const auto count = static_cast<std::size_t>(part.out * part.in);
  matrix.host = HostLinear();
  matrix.host.encoding = part.encoding;
  matrix.host.activation = part.activation;
  matrix.host.out_features = part.out;
  matrix.host.in_features = part.in;
  if (part.encoding == kBf16) {
    matrix.weight.resize(count * 2);
    for (std::size_t i = 0; i < count; ++i) {
      const bf16 value = random_value(state);
      std::memcpy(matrix.weight.data() + 2 * i, &value, 2);
    }
  } else {
    matrix.weight.resize(count);
    for (std::size_t i = 0; i < count; i += 8) {  // magnitudes below 2: never a NaN code
      const std::uint64_t bits = next_random(state) & 0xbfbfbfbfbfbfbfbfULL;
      std::memcpy(matrix.weight.data() + i, &bits, 8);
    }
    matrix.scale.resize(count / 128 / 128);
    for (std::byte& scale : matrix.scale) scale = static_cast<std::byte>(120 + next_random(state) % 4);
  }
  matrix.host.weight = matrix.weight;
  matrix.host.scale = matrix.scale;
}

double weight_value(const HostMatrix& matrix, std::int64_t n, std::int64_t k) {
  const std::int64_t in = matrix.host.in_features;
  const auto at = static_cast<std::size_t>(n * in + k);
  if (matrix.host.encoding == kBf16) {
    bf16 value;
    std::memcpy(&value, matrix.weight.data() + 2 * at, 2);
    return double{to_float(value)};
  }
  const auto scale = std::to_integer<int>(matrix.scale[static_cast<std::size_t>(n / 128 * (in / 128) + k / 128)]);
  return std::ldexp(double{decode_e4m3(std::to_integer<std::uint8_t>(matrix.weight[at]))}, scale - 127);
}

template <class T>
T* device_array(std::size_t count) {
  void* data = nullptr;
  require_cuda(cudaMalloc(&data, count * sizeof(T)), "allocate");
  return static_cast<T*>(data);
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

// A backend, the operations that it runs, and its copies of the weights.
struct Machine {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<const cuda::CudaDevice> device;
  cuda::Scratch scratch;
  std::unique_ptr<cuda::CudaOps> ops;
  std::vector<std::unique_ptr<PackedLinear>> weights;  // [set][part]
};

class LinearBench {
 public:
  LinearBench() {
    require_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    require_cuda(cudaMalloc(&scratch_memory_, kScratchBytes), "scratch");
    auto backend = create_cuda_backend({.device = 0, .stream = nullptr});
    if (!backend.ok()) fail(backend.status().to_string());
    prepare_machine(exact_, std::move(backend).value());
    auto products = create_cuda_backend({.device = 0, .linear_precision = LinearPrecision::kFp8});
    if (!products.ok()) fail(products.status().to_string());
    prepare_machine(fp8_, std::move(products).value());
  }

  void run(const Problem& problem, const std::vector<std::int32_t>& token_counts, const std::vector<Family>& families,
           bool fp8, std::FILE* csv) {
    prepare(problem, families.empty(), fp8);
    for (const std::int32_t tokens : token_counts) {
      if (families.empty()) {
        measure(problem, tokens);
      } else {
        compare(fp8 ? fp8_ : exact_, problem, tokens, families, csv);
      }
    }
    exact_.weights.clear();
    fp8_.weights.clear();
  }

  [[nodiscard]] bool failed() const { return failed_; }

 private:
  static constexpr std::size_t kScratchBytes = std::size_t{256} << 20;

  void prepare_machine(Machine& machine, std::unique_ptr<Backend> backend) {
    machine.backend = std::move(backend);
    machine.scratch = cuda::Scratch(static_cast<std::byte*>(scratch_memory_), kScratchBytes);
    auto device = cuda::CudaDevice::create(0);
    if (!device.ok()) fail(device.status().to_string());
    machine.device = std::move(device).value();
    machine.ops = std::make_unique<cuda::CudaOps>(*machine.device, stream_, machine.scratch);
  }

  // All machines' weights, or those of the one that families run on.
  void prepare(const Problem& problem, bool all, bool fp8) {
    matrices_ = std::vector<HostMatrix>(problem.parts.size());
    weight_bytes_ = 0;
    for (std::size_t i = 0; i < problem.parts.size(); ++i) {
      fill(matrices_[i], problem.parts[i], random_);
      weight_bytes_ += static_cast<double>(matrices_[i].weight.size());
    }
    sets_ = static_cast<int>(static_cast<double>(kColdBytes) / weight_bytes_) + 1;
    const auto begin = std::chrono::steady_clock::now();
    if (all || !fp8) pack_sets(exact_);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const bool multiplies_codes =
        std::ranges::any_of(problem.parts, [](const Part& part) { return part.encoding == kFp8; });
    if (all ? multiplies_codes : fp8) pack_sets(fp8_);
    std::printf("# %s: %.1f MB of weights, %d sets, packed at %.2f GB/s\n", problem.name.c_str(), weight_bytes_ * 1e-6,
                sets_, weight_bytes_ * sets_ * 1e-9 / seconds.count());
  }

  // x on the device, as it is and encoded.
  struct Inputs {
    bf16* x = nullptr;
    EncodedRows encoded = {};
  };
  Inputs upload_inputs(const Problem& problem, std::int32_t tokens, const std::vector<bf16>& x) {
    Inputs inputs{.x = device_array<bf16>(x.size())};
    copy_to_device(inputs.x, x.data(), x.size() * 2);
    EncodedRows& rows = inputs.encoded;
    rows.width = problem.x_width;
    rows.scale_stride = encoded_scale_stride(tokens);
    rows.codes = device_array<std::uint8_t>(x.size());
    rows.scales = device_array<float>(static_cast<std::size_t>(rows.width / kEncodedBlockValues * rows.scale_stride));
    const Status status =
        cuda::encode_input({.x = inputs.x, .x_stride = problem.x_width, .to = rows, .tokens = tokens}, 0, stream_);
    if (!status.ok()) fail(status.to_string());
    return inputs;
  }
  static void free_inputs(const Inputs& inputs) {
    require_cuda(cudaFree(inputs.x), "free");
    require_cuda(cudaFree(inputs.encoded.codes), "free");
    require_cuda(cudaFree(inputs.encoded.scales), "free");
  }

  void pack_sets(Machine& machine) {
    for (int set = 0; set < sets_; ++set) {
      for (const HostMatrix& matrix : matrices_) {
        auto packed = machine.backend->pack_linear(matrix.host);
        if (!packed.ok()) fail(packed.status().to_string());
        machine.weights.push_back(std::move(packed).value());
      }
    }
    if (const Status ready = machine.backend->synchronize(); !ready.ok()) fail(ready.to_string());
  }

  void measure(const Problem& problem, std::int32_t tokens) {
    const auto x_count = static_cast<std::size_t>(tokens * problem.x_width);
    std::vector<bf16> x(x_count);
    for (bf16& value : x) value = random_value(random_);
    const Inputs inputs = upload_inputs(problem, tokens, x);
    std::vector<void*> outputs;
    double flops = 0;
    double bytes = weight_bytes_ + static_cast<double>(x_count) * 2;
    double seconds_of_flops = 0;
    for (const Part& part : problem.parts) {
      outputs.push_back(device_array<std::byte>(output_bytes(part, tokens)));
      const double part_flops = 2.0 * tokens * static_cast<double>(part.out) * static_cast<double>(part.in);
      const bool fp8 = part.encoding == kFp8;
      seconds_of_flops += part_flops / (fp8 ? kFp8FlopsPerSecond : kBf16FlopsPerSecond);
      flops += part_flops;
      bytes += static_cast<double>(output_bytes(part, tokens));
    }
    const double floor = 1e6 * std::max(bytes / read_bytes_per_second(), seconds_of_flops);
    for (Machine* machine : {&exact_, &fp8_}) {
      if (machine->weights.empty()) continue;
      for (std::size_t p = 0; p < outputs.size(); ++p) {
        fill_on_device(outputs[p], 0xff, output_bytes(problem.parts[p], tokens));
      }
      const auto work = [&](int i) { enqueue(*machine, problem, tokens, i % sets_, inputs, outputs); };
      work(0);
      require_cuda(cudaStreamSynchronize(stream_), "linear");
      const double error = sampled_error(problem, x, outputs, tokens, machine == &fp8_);
      if (!(error < 1e-2)) failed_ = true;
      const GraphTime time = time_in_graph(stream_, tokens >= 2048 ? 4 : 2 * sets_, 20, work);
      std::printf(
          "%-15s %-8s T %5d  %9.2f us  floor %8.2f  ratio %5.2f  %6.0f GB/s  %6.0f TFLOP/s  nodes %zu  error %.1e%s\n",
          problem.name.c_str(), machine == &exact_ ? "exact" : "fp8", tokens, time.microseconds, floor,
          time.microseconds / floor, bytes * 1e-3 / time.microseconds, flops * 1e-6 / time.microseconds, time.nodes,
          error, error < 1e-2 ? "" : "  WRONG");
      std::fflush(stdout);
    }
    free_inputs(inputs);
    for (void* y : outputs) require_cuda(cudaFree(y), "free");
  }

  // Every family alone. Their outputs have the bytes of the first one's.
  void compare(Machine& machine, const Problem& problem, std::int32_t tokens, const std::vector<Family>& families,
               std::FILE* csv) {
    std::vector<bf16> x(static_cast<std::size_t>(tokens * problem.x_width));
    for (bf16& value : x) value = random_value(random_);
    const Inputs inputs = upload_inputs(problem, tokens, x);
    std::vector<void*> outputs;
    for (const Part& part : problem.parts) outputs.push_back(device_array<std::byte>(output_bytes(part, tokens)));
    std::vector<std::vector<std::byte>> expected;
    for (const Family& family : families) {
      for (std::size_t p = 0; p < outputs.size(); ++p) {
        fill_on_device(outputs[p], 0xff, output_bytes(problem.parts[p], tokens));
      }
      if (!enqueue_family(machine, family, problem, tokens, 0, inputs, outputs)) continue;
      require_cuda(cudaStreamSynchronize(stream_), family.name.c_str());
      std::vector<std::vector<std::byte>> found;
      for (std::size_t p = 0; p < outputs.size(); ++p) {
        found.emplace_back(output_bytes(problem.parts[p], tokens));
        require_cuda(cudaMemcpy(found[p].data(), outputs[p], found[p].size(), cudaMemcpyDeviceToHost), "download");
      }
      if (expected.empty()) {
        expected = found;
        const double error = sampled_error(problem, x, outputs, tokens, &machine == &fp8_);
        if (!(error < 1e-2)) failed_ = true;
        std::printf("%-15s T %5d  error of %s %.1e%s\n", problem.name.c_str(), tokens, family.name.c_str(), error,
                    error < 1e-2 ? "" : "  WRONG");
      }
      const bool same = found == expected;
      if (!same) {
        failed_ = true;
        for (std::size_t p = 0; p < found.size(); ++p) report_difference(problem.parts[p], found[p], expected[p]);
      }
      const GraphTime time = time_in_graph(stream_, 2 * sets_, 10, [&](int i) {
        enqueue_family(machine, family, problem, tokens, i % sets_, inputs, outputs);
      });
      std::printf("%-15s T %5d  %-12s %9.2f us  %s\n", problem.name.c_str(), tokens, family.name.c_str(),
                  time.microseconds, same ? "same bytes" : "OTHER BYTES");
      std::fflush(stdout);
      if (csv != nullptr) {
        std::fprintf(csv, "%s,%d,%s,%.3f,%d\n", problem.name.c_str(), tokens, family.name.c_str(), time.microseconds,
                     same ? 1 : 0);
        std::fflush(csv);
      }
    }
    free_inputs(inputs);
    for (void* y : outputs) require_cuda(cudaFree(y), "free");
  }

  // Where outputs differ: how many bytes, and the first and last of them.
  static void report_difference(const Part& part, const std::vector<std::byte>& found,
                                const std::vector<std::byte>& expected) {
    std::size_t count = 0;
    std::size_t first = 0;
    std::size_t last = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == expected[i]) continue;
      if (count++ == 0) first = i;
      last = i;
    }
    const std::size_t value_bytes = part.output == OutputType::kF32 ? 4 : 2;
    const std::size_t row_bytes = static_cast<std::size_t>(part.out) * value_bytes;
    if (count == 0) return;
    std::printf("  [%lld, %lld]: %zu bytes differ, from token %zu output %zu to token %zu output %zu\n",
                static_cast<long long>(part.out), static_cast<long long>(part.in), count, first / row_bytes,
                first % row_bytes / value_bytes, last / row_bytes, last % row_bytes / value_bytes);
  }

  // False where the family has no variant for the problem.
  bool enqueue_family(Machine& machine, const Family& family, const Problem& problem, std::int32_t tokens, int set,
                      const Inputs& inputs, const std::vector<void*>& outputs) {
    const std::vector<LinearCall> calls = calls_of(machine, problem, tokens, set, inputs, outputs);
    cuda::LinearLauncher launcher(*machine.device, tokens, machine.scratch, stream_, family.forced);
    Status status;
    for (const LinearCall& call : calls) {
      if (status.ok()) status = launcher.add(call);
    }
    if (status.ok()) status = launcher.flush();
    if (status.ok()) return true;
    if (status.code() != StatusCode::kUnsupported) fail(status.to_string());
    return false;
  }

  void enqueue(Machine& machine, const Problem& problem, std::int32_t tokens, int set, const Inputs& inputs,
               const std::vector<void*>& outputs) {
    const Status status = machine.ops->linear(tokens, calls_of(machine, problem, tokens, set, inputs, outputs));
    if (!status.ok()) fail(status.to_string());
  }

  // Weights whose own rule does not round inputs have these encoded where they take them so.
  static std::vector<LinearCall> calls_of(const Machine& machine, const Problem& problem, std::int32_t tokens, int set,
                                          const Inputs& inputs, const std::vector<void*>& outputs) {
    std::vector<LinearCall> calls;
    for (std::size_t p = 0; p < problem.parts.size(); ++p) {
      const Part& part = problem.parts[p];
      const PackedLinear& weight = *machine.weights[static_cast<std::size_t>(set) * problem.parts.size() + p];
      calls.push_back({inputs.x + part.x_column, problem.x_width, &weight, outputs[p], part.out, part.output});
      if (part.activation == kPlain && machine.ops->takes_encoded_rows(tokens, weight)) {
        calls.back().encoded = inputs.encoded;
        calls.back().encoded_column = part.x_column;
      }
    }
    return calls;
  }

  static std::size_t output_bytes(const Part& part, std::int32_t tokens) {
    return static_cast<std::size_t>(tokens * part.out) * (part.output == OutputType::kF32 ? 4 : 2);
  }

  // Relative L2 of outputs sampled over rows, columns and parts, against FP64. fp8: products of E4M3, which round the
  // inputs of every FP8 weight.
  double sampled_error(const Problem& problem, const std::vector<bf16>& x, const std::vector<void*>& outputs,
                       std::int32_t tokens, bool fp8) {
    double error = 0;
    double norm = 0;
    for (std::size_t p = 0; p < problem.parts.size(); ++p) {
      const Part& part = problem.parts[p];
      const bool is_float = part.output == OutputType::kF32;
      std::vector<std::byte> y(output_bytes(part, tokens));
      require_cuda(cudaMemcpy(y.data(), outputs[p], y.size(), cudaMemcpyDeviceToHost), "download");
      for (int sample = 0; sample < 24; ++sample) {
        const auto t = static_cast<std::int64_t>(next_random(random_) % static_cast<std::uint64_t>(tokens));
        const auto n = static_cast<std::int64_t>(next_random(random_) % static_cast<std::uint64_t>(part.out));
        std::vector<float> row(static_cast<std::size_t>(part.in));
        for (std::size_t k = 0; k < row.size(); ++k) {
          row[k] = to_float(x[static_cast<std::size_t>(t * problem.x_width + part.x_column) + k]);
        }
        const bool rounds = part.activation == kRounded || (fp8 && part.encoding == kFp8);
        if (rounds) round_activation_fp8(row.data(), row.size());
        double reference = 0;
        for (std::int64_t k = 0; k < part.in; ++k) {
          reference += weight_value(matrices_[p], n, k) * double{row[static_cast<std::size_t>(k)]};
        }
        const auto at = static_cast<std::size_t>(t * part.out + n);
        double value = 0;
        if (is_float) {
          float stored = 0;
          std::memcpy(&stored, y.data() + 4 * at, 4);
          value = double{stored};
        } else {
          bf16 stored;
          std::memcpy(&stored, y.data() + 2 * at, 2);
          value = double{to_float(stored)};
        }
        error += (value - reference) * (value - reference);
        norm += reference * reference;
      }
    }
    return std::sqrt(error / norm);
  }

  bool failed_ = false;
  cudaStream_t stream_ = nullptr;
  void* scratch_memory_ = nullptr;
  Machine exact_;
  Machine fp8_;
  std::vector<HostMatrix> matrices_;
  double weight_bytes_ = 0;
  int sets_ = 1;
  std::uint64_t random_ = 0x9e3779b97f4a7c15ULL;
};

}  // namespace
}  // namespace dsv4rt::bench

int main(int argc, char** argv) {
  using namespace dsv4rt::bench;
  CLI::App app("Linears of V4-Flash and V4-Pro on the GPU: exact and of E4M3, or family by family");
  std::vector<std::int32_t> tokens{1, 8, 32, 64, 128, 256, 512, 2048, 8192};
  std::string only;
  std::vector<std::string> names;
  std::string csv_path;
  bool pro = false;
  bool fp8 = false;
  bool bf16 = false;
  app.add_option("--tokens", tokens, "tokens T of each call")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--only", only, "problems whose name contains this");
  app.add_option("--family", names, "families whose name begins with one of these; auto is what a step runs")
      ->delimiter(',');
  app.add_option("--csv", csv_path, "with --family: a file for problem,tokens,family,microseconds,same_bytes");
  CLI::Option* const of_fp8 = app.add_flag("--fp8", fp8, "with --family: products of E4M3");
  app.add_flag("--bf16", bf16, "the linears that have FP8 weights, with BF16 ones")->excludes(of_fp8);
  app.add_flag("--pro", pro, "the linears of V4-Pro instead of V4-Flash");
  CLI11_PARSE(app, argc, argv);
  std::vector<Problem> problems = bf16 ? bf16_problems_of(pro ? kPro : kFlash) : problems_of(pro ? kPro : kFlash);
  std::erase_if(problems, [&](const Problem& problem) { return problem.name.find(only) == std::string::npos; });
  if (problems.empty()) {
    std::fprintf(stderr, "--only: no problem's name contains '%s'\n", only.c_str());
    return 2;
  }
  std::vector<Family> families;
  for (const Family& family : all_families()) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return family.name.starts_with(name); })) {
      families.push_back(family);
    }
  }
  if (families.empty() && !names.empty()) {
    std::fprintf(stderr, "--family: no family's name begins like this\n");
    return 2;
  }
  std::FILE* csv = nullptr;
  if (!csv_path.empty()) {
    csv = std::fopen(csv_path.c_str(), "w");
    if (csv == nullptr) {
      std::fprintf(stderr, "--csv: cannot write %s\n", csv_path.c_str());
      return 2;
    }
    std::fprintf(csv, "problem,tokens,family,microseconds,same_bytes\n");
  }
  LinearBench bench;
  for (const Problem& problem : problems) bench.run(problem, tokens, families, fp8, csv);
  if (csv != nullptr) std::fclose(csv);
  return bench.failed() ? 1 : 0;
}
