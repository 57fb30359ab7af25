// Boundary states on the GPU at V4-Flash shapes: restoring and saving one, keeping those inside a prefill chunk, and
// the block tables of a sequence that begins with blocks others hold.
//
// Repetitions use slots and states in turn, together more than the L2 cache. Results are compared with the CPU's.
// Floor: every byte read and written once.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "gpu_bench_support.h"
#include "unit/backend/boundary_fixture.h"

namespace dsv4rt::bench {
namespace {

using test::BoundaryMemory;
using test::RingKind;
using test::TableMemory;

constexpr std::int32_t kLayers = 43;
constexpr std::int32_t kOverlappingLayers = 21;
constexpr std::int32_t kDraftBudget = 3;
constexpr std::int32_t kSlots = 40;
constexpr std::int32_t kBoundary = 64 << 10;
constexpr int kRepetitions = 200;

class Bench {
 public:
  Bench(const cuda::CudaDevice& device, cudaStream_t stream) : stream_(stream), ops_(device, stream, scratch_) {}

  [[nodiscard]] bool all_equal() const { return all_equal_; }

  void copies() {
    std::vector<RingKind> kinds;
    std::int64_t bytes = 0;
    for (int i = 0; i < kLayers; ++i) kinds.push_back(test::window_ring(RowFormat::kFp8DsMla, 128, kDraftBudget));
    for (int i = 0; i < kOverlappingLayers; ++i) {
      kinds.push_back(test::state_ring(kHeadDim, kDraftBudget));
      kinds.push_back(test::state_ring(kIndexHeadDim, kDraftBudget));
    }
    for (const RingKind& kind : kinds) bytes += kind.state.scale_offset(kind.state.rows);
    BoundaryMemory memory(kinds, kSlots, kSlots);
    const DeviceCopy<std::byte> device(memory.bytes());
    const auto copy_of = [](int i) {
      return BoundaryCopy{.slot = i % kSlots, .state = i * 7 % kSlots, .boundary = kBoundary, .end = kBoundary};
    };
    for (const auto direction : {BoundaryDirection::kFromRings, BoundaryDirection::kToRings}) {
      const BoundaryCopy checked = copy_of(3);
      memory.copy_bytes(direction, std::span(&checked, 1));
      require_ok(memory.copy(ops_, device.data(), direction, std::span(&checked, 1)));
      check_equal(device.data(), memory.bytes());
    }
    for (const auto& [name, direction] : {std::pair("save a state", BoundaryDirection::kFromRings),
                                          std::pair("restore a state", BoundaryDirection::kToRings)}) {
      line(name, 2.0 * static_cast<double>(bytes), [&](int i) {
        const BoundaryCopy copy = copy_of(i);
        return memory.copy(ops_, device.data(), direction, std::span(&copy, 1));
      });
    }
  }

  // A CSA layer of a chunk of 8,192 tokens with a state every 2,048. Timed, not checked: boundary_gpu_test compares.
  void captures() {
    constexpr std::int32_t kTokens = 8192;
    constexpr std::int32_t kSets = 8;
    const BlockShape staged = block_shape(RowFormat::kFp8DsMla, kTokens);
    const RingKind window = test::window_ring(RowFormat::kFp8DsMla, 128, 0);
    const std::int64_t projection_bytes = std::int64_t{kTokens} * 2 * kHeadDim * 4;
    const std::int64_t set_bytes = (staged.block_bytes + 255) / 256 * 256 + 2 * projection_bytes;
    const DeviceMemory inputs(static_cast<std::size_t>(kSets * set_bytes));
    const DeviceMemory states(std::size_t{64} << 20);
    fill_on_device(inputs.data(), 0, static_cast<std::size_t>(kSets * set_bytes));
    std::vector<BoundaryCapture> captures;
    for (std::int32_t i = 0; i < 4; ++i) {
      captures.push_back({.first_token = 0, .start = kBoundary, .boundary = kBoundary + 2048 * (i + 1), .state = i});
    }
    const auto compressor = [&](std::byte* at, std::int32_t dim, std::int64_t offset) {
      const auto* const kv = reinterpret_cast<const float*>(at);
      const CompressorInput input{.kv = kv,
                                  .score = kv + projection_bytes / 4,
                                  .stride = 2 * dim,
                                  .ape = kv,
                                  .ratio = 4,
                                  .ratio_class = 0,
                                  .dim = dim,
                                  .overlap = true};
      BoundaryRows rows;
      rows.state_offset = offset;
      rows.state = test::state_ring(dim, 0).state;
      return KeepBoundaryParams::Compressor{.input = input, .rows = rows};
    };
    BoundaryRows window_rows;
    window_rows.state = window.state;
    const double bytes = 4.0 * (2.0 * 128 * window.state.row_bytes() + 5.0 * 4 * 2 * 4 * (kHeadDim + kIndexHeadDim));
    line("keep 4 in a CSA layer", bytes, [&](int i) {
      std::byte* const set = inputs.data() + i % kSets * set_bytes;
      std::byte* const projections = set + set_bytes - 2 * projection_bytes;
      return ops_.keep_boundary_rows({.captures = captures,
                                      .states = {states.data(), std::int64_t{8} << 20},
                                      .staged_shape = staged,
                                      .staged = set,
                                      .window = window_rows,
                                      .compressor = compressor(projections, kHeadDim, 1 << 20),
                                      .index_compressor = compressor(projections, kIndexHeadDim, 2 << 20)});
    });
  }

  void table_rows() {
    TableMemory memory(std::vector<std::int32_t>(62, 4100), std::vector<std::int32_t>(62, 12));
    const DeviceCopy<std::int32_t> device(memory.entries());
    memory.write_entries(1);
    require_ok(memory.write(ops_, device.data(), 1));
    check_equal(device.data(), memory.entries());
    line("write 62 table rows", 2.0 * 62 * 4100 * 4,
         [&](int i) { return memory.write(ops_, device.data(), i % TableMemory::kSlots); });
  }

 private:
  template <class T>
  void check_equal(const T* device, const std::vector<T>& expected) {
    std::vector<T> actual(expected.size());
    require_cuda(cudaStreamSynchronize(stream_), "synchronize");
    require_cuda(cudaMemcpy(actual.data(), device, actual.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
    if (actual == expected) return;
    std::printf("WRONG: bytes differ from the CPU's\n");
    all_equal_ = false;
  }
  void line(const char* name, double bytes, const std::function<Status(int)>& work) {
    const GraphTime time = time_in_graph(stream_, kRepetitions, 20, [&](int i) { require_ok(work(i)); });
    const double floor = floor_us(bytes, 0, kBf16FlopsPerSecond);
    std::printf("%-24s %zu launch %9.2f us  floor %6.2f  x%.2f\n", name, time.nodes, time.microseconds, floor,
                time.microseconds / floor);
    std::fflush(stdout);
  }

  cudaStream_t stream_;
  cuda::Scratch scratch_;
  cuda::CudaOps ops_;
  bool all_equal_ = true;
};

}  // namespace
}  // namespace dsv4rt::bench

int main() {
  using namespace dsv4rt;
  using namespace dsv4rt::bench;
  const auto device = cuda::CudaDevice::create(0);
  require_ok(device.status());
  cudaStream_t stream = nullptr;
  require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  Bench bench(**device, stream);
  bench.copies();
  bench.captures();
  bench.table_rows();
  return bench.all_equal() ? 0 : 1;
}
