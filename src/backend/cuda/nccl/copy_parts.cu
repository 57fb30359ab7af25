#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/nccl/copy_parts.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostCopies = 128;          // a launch: parameters of a kernel are 4 KiB
constexpr std::int64_t kMostBlocks = 16;  // for a run

struct Copies {
  PartCopy parts[kMostCopies];
};
static_assert(sizeof(Copies) <= 4096);

// Block (x, y) copies its share of run y, in words of 16 bytes where both ends are aligned so and of 4 or 1 otherwise.
template <class Word>
__device__ void copy_words(const PartCopy& part) {
  const std::int64_t words = part.bytes / std::int64_t{sizeof(Word)};
  const auto* from = reinterpret_cast<const Word*>(part.from);
  auto* to = reinterpret_cast<Word*>(part.to);
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = first; i < words; i += stride) to[i] = from[i];
  for (std::int64_t i = words * std::int64_t{sizeof(Word)} + first; i < part.bytes; i += stride)
    part.to[i] = part.from[i];
}

__global__ void __launch_bounds__(kThreads) copy_parts_kernel(const __grid_constant__ Copies copies) {
  const PartCopy part = copies.parts[blockIdx.y];
  const auto ends = reinterpret_cast<std::uintptr_t>(part.from) | reinterpret_cast<std::uintptr_t>(part.to);
  if (ends % sizeof(uint4) == 0) {
    copy_words<uint4>(part);
  } else if (ends % sizeof(std::uint32_t) == 0) {
    copy_words<std::uint32_t>(part);
  } else {
    copy_words<std::byte>(part);
  }
}

}  // namespace

Status launch_copy_parts(std::span<const PartCopy> copies, cudaStream_t stream) {
  while (!copies.empty()) {
    const std::size_t count = std::min<std::size_t>(copies.size(), kMostCopies);
    Copies table{};
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      table.parts[i] = copies[i];
      longest = std::max(longest, copies[i].bytes);
    }
    constexpr std::int64_t kBlockBytes = kThreads * std::int64_t{sizeof(uint4)};
    const std::int64_t blocks = std::clamp<std::int64_t>((longest + kBlockBytes - 1) / kBlockBytes, 1, kMostBlocks);
    copy_parts_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)), kThreads, 0, stream>>>(
        table);
    if (Status launched = DSV4RT_CUDA_STATUS(cudaGetLastError()); !launched.ok()) return launched;
    copies = copies.subspan(count);
  }
  return {};
}

}  // namespace dsv4rt::cuda
