#include "backend/cuda/kernels/common/encode_fragments.cuh"
#include "gpu/support/encode_rows.h"

namespace dsv4rt::test {
namespace {

constexpr int kRows = 16;  // rows of a warp

__global__ void __launch_bounds__(32)
    encode_rows_kernel(const std::uint32_t* values, std::uint8_t* codes, std::uint8_t* scale_codes) {
  __shared__ __align__(1024) std::uint8_t staged[kRows * cuda::kCodeRowBytes];
  const int lane = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) * kRows;
  cuda::BlockPairs pairs;
  for (int i = 0; i < 2; ++i) {
    for (int tile = 0; tile < cuda::kBlockTiles; ++tile) {
      pairs[i][tile] = values[(first + lane / 4 + 8 * i) * (kEncodedBlockValues / 2) + tile * 4 + lane % 4];
    }
  }
  const cuda::BlockScales scales(pairs);
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(staged));
  cuda::stage_codes(pairs, scales, cuda::code_address(to, 0, lane));
  __syncwarp();
  for (int row = 0; row < kRows; ++row) {
    for (int i = lane; i < cuda::kCodeRowBytes; i += 32) {
      codes[(first + row) * cuda::kCodeRowBytes + i] =
          staged[row * cuda::kCodeRowBytes + ((i / 16) ^ (row % 8)) * 16 + i % 16];
    }
  }
  if (lane % 4 != 0) return;
  for (int i = 0; i < 2; ++i) scale_codes[first + lane / 4 + 8 * i] = scales.code[i];
}

}  // namespace

cudaError_t encode_rows(const bf16* values, std::int32_t rows, std::uint8_t* codes, std::uint8_t* scale_codes) {
  encode_rows_kernel<<<static_cast<unsigned>(rows / kRows), 32>>>(reinterpret_cast<const std::uint32_t*>(values), codes,
                                                                  scale_codes);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return cudaDeviceSynchronize();
}

}  // namespace dsv4rt::test
