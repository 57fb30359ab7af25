#include "backend/cuda/slow_path.h"

#include "backend/cuda/device/kernel_image.h"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/indexer_topk/tile_keys.h"

namespace dsv4rt::cuda {

std::string slow_path_text(SlowPath reason) {
  switch (reason) {
    case SlowPath::kNone:
    case SlowPath::kReasons:
      break;
    case SlowPath::kNoSm90a:
      return std::string("this build has code for ") + compiled_architectures() +
             ", not for 90a: linears, attention and selection run on their slow portable kernels "
             "(DSV4RT_CUDA_ARCHITECTURES with 90a-real has the fast ones)";
    case SlowPath::kAttendFormat:
      return "attend: cached rows in this format are read by the slow portable kernel; the one for Hopper reads "
             "fp8_ds_mla";
    case SlowPath::kAttendWindow:
      return "attend: this window takes the slow portable kernel; the one for Hopper takes windows of up to " +
             std::to_string(kMappedWindow) + " tokens";
    case SlowPath::kAttendBlockRows:
      return "attend: blocks of this many compressed rows take the slow portable kernel; the one for Hopper takes "
             "powers "
             "of two";
    case SlowPath::kAttendTopK:
      return "attend: this many selected rows take the slow portable kernel; the one for Hopper takes up to " +
             std::to_string(kMappedRows);
    case SlowPath::kSelectBlockRows:
      return "indexer_topk: blocks of this many index keys take the slow portable kernel; the ones for Hopper take "
             "multiples of " +
             std::to_string(kTileKeys);
  }
  return {};
}

SlowPath slow_path_without_sm90a(const DeviceFacts& facts) noexcept {
  return facts.compute_major == 9 && facts.compute_minor == 0 ? SlowPath::kNoSm90a : SlowPath::kNone;
}

}  // namespace dsv4rt::cuda
