#include "backend/cuda/device/captured_graph.h"

#include <string>

#include "base/try.h"

namespace dsv4rt::cuda {

Status begin_graph_capture(cudaStream_t stream) {
  return DSV4RT_CUDA_STATUS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

Result<std::unique_ptr<CapturedWork>> end_graph_capture(cudaStream_t stream) {
  cudaGraph_t captured = nullptr;
  if (const cudaError_t error = cudaStreamEndCapture(stream, &captured); error != cudaSuccess) {
    // The device did nothing: the engine stays usable.
    static_cast<void>(cudaGetLastError());
    return Status{StatusCode::kFailedPrecondition,
                  std::string("graph capture failed: ") + cudaGetErrorString(error) +
                      "; a hook of a captured step may only enqueue work on the engine's stream, without waiting, "
                      "allocating or copying pageable memory"};
  }
  const Graph graph(captured);
  std::size_t nodes = 0;
  DSV4RT_CUDA_TRY(cudaGraphGetNodes(graph.get(), nullptr, &nodes));
  cudaGraphExec_t instantiated = nullptr;
  DSV4RT_CUDA_TRY(cudaGraphInstantiate(&instantiated, graph.get(), 0));
  GraphExec exec(instantiated);
  return std::unique_ptr<CapturedWork>(
      std::make_unique<CapturedGraph>(std::move(exec), static_cast<std::int64_t>(nodes)));
}

std::int64_t nodes_of_capture(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  std::size_t nodes = 0;
  const bool counted = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph) == cudaSuccess &&
                       status == cudaStreamCaptureStatusActive &&
                       cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess;
  return counted ? static_cast<std::int64_t>(nodes) : 0;
}

}  // namespace dsv4rt::cuda
