// Launch with programmatic dependent launch: the kernel may start while the kernel before it in the stream
// still runs. What it does before wait_for_predecessors() (dependent_launch.cuh) overlaps with that kernel.
//
// Every thread of a kernel launched this way calls wait_for_predecessors() before it touches memory that
// earlier kernels of the stream read or write (but for what early_reads.cuh names), or learns from a thread of its
// block that has: it may write what these read, but not read what they wrote, when a stage has come that was asked for
// behind the wait. A block that always runs calls it even without such memory: a later kernel concludes from this
// kernel's end that everything before it has ended too.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <utility>

#include "backend/cuda/device/cuda_error.h"

namespace dsv4rt::cuda {

struct LaunchShape {
  dim3 grid = dim3(1);
  unsigned threads = 1;
  std::size_t shared_bytes = 0;  // dynamic
  unsigned cluster_blocks = 1;   // along x; divides grid.x
};

template <class... Params, class... Args>
Status launch_pdl(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster_blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = shape.cluster_blocks > 1 ? 2 : 1;
  return DSV4RT_CUDA_STATUS(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

}  // namespace dsv4rt::cuda
