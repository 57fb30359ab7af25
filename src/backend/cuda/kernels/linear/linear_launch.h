// Linears over tile-packed weights: grouped into launches of the tile kernel.
#pragma once

#include <array>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "backend/cuda/kernels/linear/gemv/gemv_launch.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "backend/cuda/scratch.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// What a launch is to run instead of what the costs say: for measurements. Zeros leave the choice open.
struct ForcedFamily {
  enum class Family : std::uint8_t { kAny, kSegment, kTile, kPrefill };
  Family family = Family::kAny;
  int tokens = 0;     // of an item
  int row_tiles = 0;  // of a block
  int split = 0;      // segments of a block of the split-K kernel; blocks of a cluster of the tile kernel
};

// Collects calls and runs them together. Calls must stay valid until the flush that runs them.
class LinearLauncher {
 public:
  LinearLauncher(std::int32_t tokens, Scratch& scratch, cudaStream_t stream, const ForcedFamily& forced = {})
      : tokens_(tokens), scratch_(scratch), stream_(stream), forced_(forced) {}

  // kUnsupported for inputs that are not 16-byte aligned. May run what was added before.
  Status add(const LinearCall& call);
  Status flush();
  // Products of the rows that norm makes of its x, in as few launches as there can be; false where none can be spared.
  // Precondition: nothing is added; calls are over tile-packed weights of norm.width inputs, on norm.y.
  Result<bool> run_normed(const RmsNormParams& norm, std::span<const LinearCall> calls);

 private:
  Status run_gemv(std::span<const LinearCall*> calls, const GemvPlan& plan, const InputNorm& norm);
  Status run_added(const RmsNormParams* norm);  // null: none
  Status set_maps(LinearParams& params, std::span<const LinearCall* const> calls, const LinearCall* rounded,
                  const RmsNormParams* norm, int box_tokens);

  std::int32_t tokens_;
  Scratch& scratch_;
  cudaStream_t stream_;
  ForcedFamily forced_;
  std::array<const LinearCall*, kMaxProblems> calls_{};
  int count_ = 0;
  const LinearCall* rounded_ = nullptr;  // a call whose input is rounded for the next launch
};

}  // namespace dsv4rt::cuda
