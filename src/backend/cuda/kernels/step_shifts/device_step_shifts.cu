#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/kernels/common/early_reads.cuh"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/step_shifts/device_step_shifts.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kShiftThreads = 256;

// One block: every slot first, then those of the step.
__global__ void __launch_bounds__(kShiftThreads)
    note_rejected_kernel(const StepView step, const std::int32_t* accepted, std::int32_t most_rejected,
                         std::int32_t* rejected, std::int32_t slots) {
  for (std::int32_t slot = static_cast<std::int32_t>(threadIdx.x); slot < slots; slot += kShiftThreads) {
    rejected[slot] = 0;
  }
  __syncthreads();
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < step.counts.sequences; i += kShiftThreads) {
    const std::int32_t tokens = step.sequence_first_token[i + 1] - step.sequence_first_token[i];
    rejected[step.sequence_slot[i]] = rejected_tokens(accepted[i], tokens, most_rejected);
  }
}

struct ShiftParams {
  const std::int32_t* rejected = nullptr;        // [slots]
  const std::int32_t* token_sequence = nullptr;  // these as in StepView
  const std::int32_t* sequence_slot = nullptr;
  std::int32_t* sequence_start = nullptr;
  std::int32_t* token_position = nullptr;
  std::uint8_t* valid_mask[kMaxRatioClasses] = {};
  std::int32_t* row_index[kMaxRatioClasses] = {};
  std::int32_t ratio[kMaxRatioClasses] = {};  // 0: no such class
  std::int32_t tokens = 0;
  std::int32_t sequences = 0;
};

// Thread i has token i and sequence i. Nobody reads what another thread writes.
__global__ void __launch_bounds__(kShiftThreads) shift_step_kernel(const ShiftParams p) {
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) * kShiftThreads + static_cast<std::int32_t>(threadIdx.x);
  if (i < p.sequences) p.sequence_start[i] -= p.rejected[p.sequence_slot[i]];
  const std::int32_t sequence = i < p.tokens ? p.token_sequence[i] : -1;
  const std::int32_t back = sequence < 0 ? 0 : p.rejected[p.sequence_slot[sequence]];
  if (back > 0) {
    const std::int32_t position = p.token_position[i] - back;
    p.token_position[i] = position;
    for (int c = 0; c < kMaxRatioClasses; ++c) {
      if (p.ratio[c] == 0) continue;
      const bool ends_block = (position + 1) % p.ratio[c] == 0;
      p.valid_mask[c][i] = ends_block ? 1 : 0;
      p.row_index[c][i] = ends_block ? position / p.ratio[c] : -1;
    }
  }
  publish_to_early_readers();
}

}  // namespace

DeviceStepShifts::DeviceStepShifts(const CudaDevice& device, cudaStream_t stream, std::span<std::int32_t> rejected,
                                   const StepShiftLimits& limits)
    : device_(device), stream_(stream), rejected_(rejected), most_rejected_(limits.most_rejected) {
  std::copy_n(limits.ratios.begin(), std::min(limits.ratios.size(), ratios_.size()), ratios_.begin());
}

Status DeviceStepShifts::note(const StepView& step, const std::int32_t* accepted) {
  DSV4RT_RETURN_IF_ERROR(require_aligned(accepted, alignof(std::int32_t), "note", "accepted"));
  DSV4RT_ON_DEVICE(device_);
  note_rejected_kernel<<<1, kShiftThreads, 0, stream_>>>(step, accepted, most_rejected_, rejected_.data(),
                                                         static_cast<std::int32_t>(rejected_.size()));
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

Status DeviceStepShifts::shift(std::byte* metadata, const StepOffsets& offsets, const StepHeader& counts) {
  DSV4RT_ON_DEVICE(device_);
  const auto numbers = [metadata](std::size_t offset) { return reinterpret_cast<std::int32_t*>(metadata + offset); };
  ShiftParams params{.rejected = rejected_.data(),
                     .token_sequence = numbers(offsets.token_sequence),
                     .sequence_slot = numbers(offsets.sequence_slot),
                     .sequence_start = numbers(offsets.sequence_start),
                     .token_position = numbers(offsets.token_position),
                     .tokens = counts.tokens,
                     .sequences = counts.sequences};
  for (std::size_t c = 0; c < ratios_.size(); ++c) {
    params.ratio[c] = ratios_[c];
    params.valid_mask[c] = reinterpret_cast<std::uint8_t*>(metadata + offsets.valid_mask[c]);
    params.row_index[c] = numbers(offsets.row_index[c]);
  }
  const std::int32_t threads = std::max(counts.tokens, counts.sequences);
  if (threads == 0) return {};
  const auto blocks = static_cast<unsigned>((threads + kShiftThreads - 1) / kShiftThreads);
  shift_step_kernel<<<blocks, kShiftThreads, 0, stream_>>>(params);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
