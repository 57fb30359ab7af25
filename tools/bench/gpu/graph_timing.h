// Time of GPU work as a serving step sees it: many launches captured in one CUDA graph, replayed between
// events; the median over replays.
//
// The work of repetition i should use input set i % sets, the sets together larger than the L2 cache
// (kColdBytes), so that every repetition reads device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <vector>

namespace dsv4rt::bench {

inline constexpr std::int64_t kColdBytes = std::int64_t{256} << 20;

// Measured ceilings of an H200's and an H100's matrix units (docs/performance.md); floors are computed from them and
// from read_bytes_per_second().
inline constexpr double kBf16FlopsPerSecond = 800e12;
inline constexpr double kFp8FlopsPerSecond = 1480e12;

// A benchmark that met a CUDA error has no result to report.
inline void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Bytes to the device for work on any stream: cudaMemcpy from ordinary memory returns once the host's memory may
// change, cudaMemset at once, and streams that measure do not wait for what is left of them.
inline void copy_to_device(void* to, const void* from, std::size_t bytes) {
  require_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload");
  require_cuda(cudaStreamSynchronize(nullptr), "upload");
}
inline void fill_on_device(void* to, int byte, std::size_t bytes) {
  require_cuda(cudaMemset(to, byte, bytes), "fill");
  require_cuda(cudaStreamSynchronize(nullptr), "fill");
}

// Bytes a second of this device's memory: of the fastest of several copies within it, bytes read and written. Measured
// at the first call, which prints it.
inline double read_bytes_per_second() {
  static const double measured = [] {
    constexpr std::size_t kBytes = std::size_t{1} << 30;
    void* from = nullptr;
    void* to = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    require_cuda(cudaMalloc(&from, kBytes), "memory for copies");
    require_cuda(cudaMalloc(&to, kBytes), "memory for copies");
    require_cuda(cudaMemset(from, 0x5a, kBytes), "memset");
    require_cuda(cudaEventCreate(&begin), "event");
    require_cuda(cudaEventCreate(&end), "event");
    float best_ms = 0;
    for (int i = 0; i < 8; ++i) {
      require_cuda(cudaEventRecord(begin), "record");
      require_cuda(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice), "copy");
      require_cuda(cudaEventRecord(end), "record");
      require_cuda(cudaEventSynchronize(end), "synchronize");
      float ms = 0;
      require_cuda(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      best_ms = i == 0 ? ms : std::min(best_ms, ms);
    }
    require_cuda(cudaEventDestroy(begin), "event");
    require_cuda(cudaEventDestroy(end), "event");
    require_cuda(cudaFree(from), "free");
    require_cuda(cudaFree(to), "free");
    const double rate = 2.0 * kBytes / (best_ms * 1e-3);
    std::printf("memory: %.0f GB/s\n", rate / 1e9);
    return rate;
  }();
  return measured;
}

struct GraphTime {
  double microseconds = 0;  // median, per repetition
  std::size_t nodes = 0;    // nodes of the captured graph, per repetition
};

// Captures work(0) .. work(repetitions - 1) on `stream` and times `replays` replays after two warm-ups.
template <class Work>
GraphTime time_in_graph(cudaStream_t stream, int repetitions, int replays, const Work& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < repetitions; ++i) work(i);
  require_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
  GraphTime time;
  require_cuda(cudaGraphGetNodes(graph, nullptr, &time.nodes), "graph nodes");
  time.nodes /= static_cast<std::size_t>(repetitions);
  require_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  require_cuda(cudaEventCreate(&begin), "event");
  require_cuda(cudaEventCreate(&end), "event");
  std::vector<float> milliseconds;
  for (int r = -2; r < replays; ++r) {
    require_cuda(cudaEventRecord(begin, stream), "record");
    require_cuda(cudaGraphLaunch(exec, stream), "launch");
    require_cuda(cudaEventRecord(end, stream), "record");
    require_cuda(cudaEventSynchronize(end), "synchronize");
    float ms = 0;
    require_cuda(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (r >= 0) milliseconds.push_back(ms);
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + replays / 2, milliseconds.end());
  time.microseconds = 1e3 * milliseconds[static_cast<std::size_t>(replays / 2)] / repetitions;
  require_cuda(cudaEventDestroy(begin), "event");
  require_cuda(cudaEventDestroy(end), "event");
  require_cuda(cudaGraphExecDestroy(exec), "graph");
  require_cuda(cudaGraphDestroy(graph), "graph");
  return time;
}

// The larger of the two floors of a stage, in microseconds.
inline double floor_us(double bytes, double flops, double flops_per_second) {
  return 1e6 * std::max(bytes / read_bytes_per_second(), flops / flops_per_second);
}

}  // namespace dsv4rt::bench
