// A CUDA graph made by capturing a stream, ready to launch.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/device/handles.h"

namespace dsv4rt::cuda {

class CapturedGraph final : public CapturedWork {
 public:
  CapturedGraph(GraphExec exec, std::int64_t nodes) : exec_(std::move(exec)) { nodes_ = nodes; }
  [[nodiscard]] cudaGraphExec_t exec() const noexcept { return exec_.get(); }

 private:
  GraphExec exec_;
};

// Only the calling thread is held to what may be captured: others may allocate meanwhile.
Status begin_graph_capture(cudaStream_t stream);
// Ends the capture in every case. kFailedPrecondition when something enqueued cannot be captured.
Result<std::unique_ptr<CapturedWork>> end_graph_capture(cudaStream_t stream);
// Nodes of the capture under way; 0 when there is none.
std::int64_t nodes_of_capture(cudaStream_t stream) noexcept;

}  // namespace dsv4rt::cuda
