// Linears over lane-packed weights, one by one.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/linear_dispatch.h"
#include "backend/cuda/scratch.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

class PortableLauncher {
 public:
  PortableLauncher(std::int32_t tokens, Scratch& scratch, cudaStream_t stream)
      : tokens_(tokens), scratch_(scratch), stream_(stream) {}

  // Consecutive calls on the same input round it once.
  Status run(const LinearCall& call, const LinearPlan& plan);

 private:
  std::int32_t tokens_;
  Scratch& scratch_;
  cudaStream_t stream_;
  const bf16* rounded_from_ = nullptr;  // the x whose rounded copy lies in scratch
  std::int64_t rounded_inputs_ = 0;
  bf16* rounded_ = nullptr;
};

}  // namespace dsv4rt::cuda
