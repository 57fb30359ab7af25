// Bytes to the device for work on any stream. cudaMemcpy from ordinary memory returns once the host's memory may
// change, cudaMemset at once, and what is left of them is on a stream that the engine's does not wait for: with other
// work on the device it comes late.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

namespace dsv4rt::test {

inline void copy_to_device(void* to, const void* from, std::size_t bytes) {
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

inline void fill_on_device(void* to, int byte, std::size_t bytes) {
  EXPECT_EQ(cudaMemset(to, byte, bytes), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

}  // namespace dsv4rt::test
