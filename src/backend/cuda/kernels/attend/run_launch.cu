#include <algorithm>
#include <cstddef>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/attend/run_kernel.cuh"
#include "backend/cuda/kernels/attend/run_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

static_assert(kRunHeads == kTileHeads && kRunWindow == kMappedWindow);

template <bool kCompresses, bool kNorms, bool kEncodes>
Status launch(const CudaDevice& device, const AttendParams& p, const RunPlan& plan, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(RunShared<kCompresses>);
  const auto kernel = attend_run_kernel<kCompresses, kNorms, kEncodes>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, kSharedBytes));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(p, queries));
  return launch_pdl(
      kernel, {.grid = dim3(static_cast<unsigned>(plan.blocks)), .threads = kRunThreads, .shared_bytes = kSharedBytes},
      stream, p, queries,
      RunPass{.tokens = p.step.counts.tokens, .block_tokens = plan.block_tokens, .groups = plan.groups});
}

}  // namespace

std::optional<RunPlan> plan_runs(int multiprocessors, const AttendParams& p, std::int64_t most_rows) {
  const bool fits = p.topk_indices == nullptr && p.window == kRunWindow && p.heads % kRunHeads == 0 &&
                    (p.ratio == 0 || (p.ratio >= kRunWindow && most_rows <= kRunWindow + kRunCompressedRows));
  const StepHeader& counts = p.step.counts;
  RunPlan plan{.groups = p.heads / kRunHeads};
  if (!fits || counts.tokens <= multiprocessors / plan.groups) return std::nullopt;
  const std::int64_t tokens = counts.tokens;
  const std::int64_t at_once = std::max(multiprocessors / plan.groups, 1);
  plan.block_tokens = static_cast<std::int32_t>((tokens + at_once - 1) / at_once);
  plan.blocks = (tokens + plan.block_tokens - 1) / plan.block_tokens * plan.groups;
  const std::int64_t sequences = counts.sequences;
  const bool alike =
      sequences * kFewestRunTokens <= tokens && sequences * counts.longest_entry <= kLongestRunShare * tokens;
  const bool few = sequences * kTokensOfStart <= plan.block_tokens;
  return alike || few ? std::optional(plan) : std::nullopt;
}

Status launch_runs(const CudaDevice& device, const AttendParams& params, const RunPlan& plan, cudaStream_t stream) {
  const auto run = [&]<bool kCompresses, bool kNorms>() {
    return params.encoded ? launch<kCompresses, kNorms, true>(device, params, plan, stream)
                          : launch<kCompresses, kNorms, false>(device, params, plan, stream);
  };
  if (params.ratio > 0) {
    return params.query_eps ? run.template operator()<true, true>() : run.template operator()<true, false>();
  }
  return params.query_eps ? run.template operator()<false, true>() : run.template operator()<false, false>();
}

}  // namespace dsv4rt::cuda
