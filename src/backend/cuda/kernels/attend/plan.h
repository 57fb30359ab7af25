// Decides which kernels serve an attention, from the device and the operation's parameters alone. Nothing here
// launches; the addresses of the parameters are not looked at, but whether `topk_indices` is null.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backend/cuda/device/device_facts.h"
#include "backend/cuda/kernels/attend/decoded_rows_shape.h"
#include "backend/cuda/kernels/attend/dense_splits.h"
#include "backend/cuda/kernels/attend/even_plan.h"
#include "backend/cuda/slow_path.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

class CudaDevice;

// The Hopper kernels: a cluster's blocks share a token, four and eight in one way, a pair in another, or a block takes
// 64 heads of one alone.
struct WarpgroupPlan {
  std::int64_t tokens = 0;
  int cluster_blocks = 1;  // blocks that share a token: 1 (alone), 2, 4 or 8
  int group_heads = 0;     // heads that a cluster takes
  int groups = 0;          // groups that a token's heads form
  // The grid.
  std::int64_t blocks = 0;
  int grid_groups = 1;
  bool dense = false;                             // whether tokens of the dense kernel may be among them
  std::optional<EvenShares> even = std::nullopt;  // how blocks alone hand tokens on, where they do
  bool operator==(const WarpgroupPlan&) const = default;
};

// The Hopper kernels of tokens with many rows, none of them selected (TokenRows::is_dense); the other takes the rest.
struct DensePlan {
  int groups = 0;  // groups of 64 heads
  int splits = 0;  // most splits of a token's rows
  int run = 1;     // splits, at most, that a block takes in a row and adds up
  bool operator==(const DensePlan&) const = default;
  // Most parts of a token's rows that have sums of their own.
  [[nodiscard]] int parts() const { return run == 1 ? splits : DenseSplits::most_runs(splits); }
  // Scratch for a token.
  [[nodiscard]] std::int64_t token_bytes() const { return std::int64_t{groups} * parts() * kSplitBytes; }
};

// The Hopper kernel of runs of tokens, which share decoded rows.
struct RunPlan {
  std::int32_t block_tokens = 0;  // tokens that a block takes 64 heads of
  std::int64_t blocks = 0;
  int groups = 0;  // groups of 64 heads
  bool operator==(const RunPlan&) const = default;
};

// The kernel that every device runs.
struct PortablePlan {
  int head_tiles = 1;      // tiles of 16 heads that share a block: 1, 2 or 4
  int cluster_blocks = 1;  // blocks that share a token
  bool operator==(const PortablePlan&) const = default;
};

// One of runs, warpgroup and portable; dense beside warpgroup. Blocks alone and splits may find the step's
// rows decoded.
struct AttendPlan {
  std::optional<RunPlan> runs;
  std::optional<WarpgroupPlan> warpgroup;
  std::optional<DensePlan> dense;
  std::optional<DecodedRowsShape> decoded;
  std::optional<PortablePlan> portable;
  SlowPath slow = SlowPath::kNone;  // why there is a portable plan, where there could be none
  // Whether its kernels take queries as they are projected (AttendParams::query_eps): those of runs and of blocks alone
  // do, splits among them.
  [[nodiscard]] bool norms_queries() const;
  // Whether its kernels encode outputs (AttendParams::encoded); otherwise that takes another kernel.
  [[nodiscard]] bool encodes_outputs() const;
};

// Precondition: 1 token and more, and parameters that CudaOps::attend takes. `scratch_bytes`, `zero_bytes`: scratch
// memory there is, and of it that is zero between operations. Errors: of the driver.
Result<AttendPlan> plan_attend(const CudaDevice& device, const AttendParams& params, std::size_t scratch_bytes,
                               std::size_t zero_bytes);

// Parts of it. The first is why the Hopper kernel takes none of the tokens: kNone where it serves, or where the device
// has no such kernel.
SlowPath attend_slow_path(const DeviceFacts& facts, const AttendParams& params);
Result<WarpgroupPlan> plan_warpgroup(const CudaDevice& device, const AttendParams& params, std::int64_t most_rows);
// Nothing where tokens do not come in runs, or too few of them for all multiprocessors.
std::optional<RunPlan> plan_runs(int multiprocessors, const AttendParams& params, std::int64_t most_rows);
// Nothing where tokens read each row too few times for its decoding, or `most_bytes` are too few.
std::optional<DecodedRowsShape> plan_decoded_rows(const AttendParams& params, std::int64_t most_rows,
                                                  std::int64_t most_bytes);
// Nothing where the last round of blocks alone is full, or nearly, or rows are few.
std::optional<EvenShares> plan_even(int multiprocessors, std::int64_t items, std::int64_t most_rows);
DensePlan plan_dense(int multiprocessors, const AttendParams& params, std::int64_t most_rows);
PortablePlan plan_portable(const DeviceFacts& facts, const AttendParams& params, std::int64_t most_rows);

}  // namespace dsv4rt::cuda
