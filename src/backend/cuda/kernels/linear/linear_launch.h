// Linears over tile-packed weights: grouped into launches, each as linear_dispatch.h plans it.
#pragma once

#include <array>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <optional>
#include <span>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/linear/linear_dispatch.h"
#include "backend/cuda/scratch.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

class CudaPackedLinear;

// What a choice depends on of a call over a weight of this backend.
LinearShape shape_of(const LinearCall& call);

// Whether calls with so many tokens over the weight may come encoded (LinearCall::encoded).
bool takes_encoded_rows(std::int32_t tokens, const CudaPackedLinear& weight);

// What the driver says of kernels: only what launches with so many tokens may need.
Result<LinearDevice> linear_device(const CudaDevice& device, std::int32_t tokens);

// Collects calls and runs them together. Calls must stay valid until the flush that runs them.
class LinearLauncher {
 public:
  // forced: what every launch runs, instead of the best; kUnsupported where it cannot. For measurements and tests.
  LinearLauncher(const CudaDevice& device, std::int32_t tokens, Scratch& scratch, cudaStream_t stream,
                 std::optional<LinearVariant> forced = {})
      : device_(device), tokens_(tokens), scratch_(scratch), stream_(stream), forced_(forced) {}

  // Errors of check_input(); kUnsupported for weights packed in lanes. May run what was added before.
  Status add(const LinearCall& call);
  Status flush();
  // Whether add() and flush() encode the outputs of all of these calls: of products of codes that come encoded, of one
  // shape, where the kernel that they have anyway does so.
  [[nodiscard]] Result<bool> encodes_outputs(std::span<const LinearCall> calls) const;
  // Products of the rows that norm makes of its x, in as few launches as there can be; false where none can be spared.
  // Precondition: nothing is added; calls are over tile-packed weights of norm.width inputs, on norm.y.
  Result<bool> run_normed(const RmsNormParams& norm, std::span<const LinearCall> calls);

 private:
  // What the copy engine reads: rows of values or codes.
  struct Input {
    const void* data = nullptr;
    int value_bytes = 0;
    std::int64_t values = 0;  // a row has
    std::int64_t stride = 0;  // from row to row, in values
  };
  struct Inputs {
    std::array<Input, kMaxProblems> of;  // LinearProblem::input numbers them
    int count = 0;
  };

  // Most calls of a launch; products: whether one of them is of codes.
  [[nodiscard]] int most_launch_calls(bool products) const;
  Result<LinearPlan> plan(std::span<const LinearCall* const> calls, bool normed) const;
  Status run_gemv(std::span<const LinearCall*> calls, const LinearPlan& plan, const InputNorm& norm);
  Status run_added(const RmsNormParams* norm);  // null: none
  Status run_each(std::span<const LinearCall* const> calls);
  Status run_resident(const LinearParams& described, std::span<const LinearCall* const> calls, const Inputs& inputs,
                      const LinearPlan& plan);
  Result<Inputs> set_inputs(LinearParams& params, std::span<const LinearCall* const> calls, const LinearCall* rounded,
                            const RmsNormParams* norm, const LinearPlan& plan);
  Result<Input> encode(LinearParams& params, const LinearCall& call, const RmsNormParams* norm, const LinearPlan& plan);
  Result<Input> round(const LinearCall& call, const RmsNormParams* norm, const LinearPlan& plan);
  Status map_inputs(std::span<CUtensorMap> maps, const Inputs& inputs, int box_tokens) const;

  const CudaDevice& device_;
  std::int32_t tokens_;
  Scratch& scratch_;
  cudaStream_t stream_;
  std::optional<LinearVariant> forced_;
  std::array<const LinearCall*, kMaxProblems> calls_{};
  int count_ = 0;
  const LinearCall* rounded_ = nullptr;  // a call whose input is rounded for the next launch
  bool several_rounded_ = false;         // whether there are others, which a kernel has to round itself
};

}  // namespace dsv4rt::cuda
