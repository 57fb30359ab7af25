// Decides which kernels serve an attention, from the device and the operation's parameters alone. Nothing here
// launches; the addresses of the parameters are not looked at, but whether `topk_indices` is null.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/slow_path.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// The Hopper kernel.
struct WarpgroupPlan {
  int cluster_blocks = 1;  // blocks that share a token: 1, 2, 4 or 8
  int group_heads = 0;     // heads that a cluster takes
  int groups = 0;          // groups that a token's heads form
  // The grid. One block that takes a token alone goes on to others, and to their groups of heads.
  std::int64_t blocks = 0;
  int grid_groups = 1;
  bool operator==(const WarpgroupPlan&) const = default;
};

// The kernel that every device runs.
struct PortablePlan {
  int head_tiles = 1;      // tiles of 16 heads that share a block: 1, 2 or 4
  int cluster_blocks = 1;  // blocks that share a token
  int more_than_rows = 0;  // tokens with fewer rows are left to the other kernel
  bool operator==(const PortablePlan&) const = default;
};

struct AttendPlan {
  std::optional<WarpgroupPlan> warpgroup;
  std::optional<PortablePlan> portable;
  SlowPath slow = SlowPath::kNone;  // why there is a portable plan, where there could be none
};

// Precondition: 1 token and more, and parameters that CudaOps::attend takes. Errors: of the driver.
Result<AttendPlan> plan_attend(const CudaDevice& device, const AttendParams& params);

// Parts of it. The first is why the Hopper kernel takes none of the tokens: kNone where it serves, or where the device
// has no such kernel.
SlowPath attend_slow_path(const DeviceFacts& facts, const AttendParams& params);
Result<WarpgroupPlan> plan_warpgroup(const CudaDevice& device, const AttendParams& params, std::int64_t most_rows);
PortablePlan plan_portable(const DeviceFacts& facts, const AttendParams& params, std::int64_t most_rows);

}  // namespace dsv4rt::cuda
