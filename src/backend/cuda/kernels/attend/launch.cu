// Attention: what the host checks, which kernels serve, and how many blocks share a token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "backend/attend_weights.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/decode_rows_launch.h"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/kernel.cuh"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/attend/prompt_launch.h"
#include "backend/cuda/kernels/attend/run_launch.h"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr const char* kName = "attend";
// Up to so many tokens outputs are encoded by as many blocks as there are multiprocessors, so that the products behind
// may begin to fetch their weights.
constexpr std::int32_t kFewTokens = 64;

// Groups of heads that a block takes.
int head_groups(const AttendParams& p) {
  return (p.heads + kTileHeads - 1) / kTileHeads;
}

Status check_encoded(const AttendParams& p) {
  const std::int64_t width = std::int64_t{p.heads} * kHeadDim;
  DSV4RT_RETURN_IF_ERROR(require(p.encoded->width == width, kName, "encoded.width", p.encoded->width, "heads * 512"));
  return check_encoded_rows(*p.encoded, 0, width, p.step.counts.tokens, kName, "encoded");
}

Status check(const AttendParams& p) {
  DSV4RT_RETURN_IF_ERROR(require(p.heads >= 1, kName, "heads", p.heads, "at least 1"));
  DSV4RT_RETURN_IF_ERROR(require(p.ratio >= 0, kName, "ratio", p.ratio, "0 (no compressed rows) or more"));
  DSV4RT_RETURN_IF_ERROR(
      require(p.window >= 1 && p.window <= p.ring.shape.rows, kName, "window", p.window, "1 to the ring's rows"));
  DSV4RT_RETURN_IF_ERROR(require(p.staged_shape.rows >= p.step.counts.tokens, kName, "staged_shape.rows",
                                 p.staged_shape.rows, "a row per token"));
  // Rows, queries and outputs move 16 bytes at a time.
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.q, 16, kName, "q"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.o, 16, kName, "o"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.ring.base, 16, kName, "ring.base"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.staged, 16, kName, "staged"));
  DSV4RT_RETURN_IF_ERROR(
      require(p.ring.slot_bytes % 16 == 0, kName, "ring.slot_bytes", p.ring.slot_bytes, "multiples of 16"));
  DSV4RT_RETURN_IF_ERROR(require_shape(p.ring.shape, p.ring.format, kName, "ring.shape"));
  DSV4RT_RETURN_IF_ERROR(require_shape(p.staged_shape, p.ring.format, kName, "staged_shape"));
  if (p.encoded) DSV4RT_RETURN_IF_ERROR(check_encoded(p));
  if (p.ratio == 0) return {};
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.rows.blocks, 16, kName, "rows.blocks"));
  DSV4RT_RETURN_IF_ERROR(require(p.rows.shape.block_bytes % 16 == 0, kName, "rows.shape.block_bytes",
                                 p.rows.shape.block_bytes, "multiples of 16"));
  return require_shape(p.rows.shape, p.row_format, kName, "rows.shape");
}

template <int kHeadTiles>
Status launch(const CudaDevice& device, const AttendParams& p, const PortablePlan& plan, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(AttendShared<kHeadTiles>);
  const auto kernel = attend_kernel<kHeadTiles>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, kSharedBytes));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(plan.cluster_blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.step.counts.tokens * plan.cluster_blocks),
                        static_cast<unsigned>((p.heads + 16 * kHeadTiles - 1) / (16 * kHeadTiles)));
  config.blockDim = dim3(kAttendThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return DSV4RT_CUDA_STATUS(cudaLaunchKernelEx(&config, kernel, p, plan.cluster_blocks));
}

// Rows of the longest token, or more.
std::int64_t most_rows_of(const AttendParams& p) {
  const std::int64_t context = p.step.counts.context_end;
  const std::int64_t window = std::min<std::int64_t>(p.window, context);
  return p.ratio == 0 ? window : window + std::min(most_compressed_rows(p), context / p.ratio);
}

Status launch_portable(const CudaDevice& device, const AttendParams& p, const PortablePlan& plan, cudaStream_t stream) {
  if (plan.head_tiles == 4) return launch<4>(device, p, plan, stream);
  if (plan.head_tiles == 2) return launch<2>(device, p, plan, stream);
  return launch<1>(device, p, plan, stream);
}

// Tokens by themselves. decoded: null, or the step's rows.
Status launch_tokens(const CudaDevice& device, const AttendParams& p, const WarpgroupPlan& plan,
                     const DecodedRows* decoded, cudaStream_t stream) {
  if (decoded != nullptr && plan.cluster_blocks == 1) return launch_prompt(device, p, plan, *decoded, stream);
  return launch_warpgroup(device, p, plan, stream);
}

// Splits, then what no split is of, so that it does not delay them, then outputs. Tokens in turn if there is little
// scratch. The first `used` bytes of scratch are taken; decoded: null, or the step's rows.
Status launch_dense(const CudaDevice& device, const AttendParams& p, const AttendPlan& plan, const DecodedRows* decoded,
                    std::int64_t used, const Scratch& scratch, cudaStream_t stream) {
  const std::int64_t tokens = p.step.counts.tokens;
  const std::int64_t token_bytes = plan.dense->token_bytes();
  const std::int64_t at_once =
      std::clamp<std::int64_t>((static_cast<std::int64_t>(scratch.size()) - used) / token_bytes, 1, tokens);
  DSV4RT_ASSIGN_OR_RETURN(std::byte * memory,
                          scratch.take(static_cast<std::size_t>(used + at_once * token_bytes), kName));
  for (std::int64_t first = 0; first < tokens; first += at_once) {
    const std::int64_t parts = at_once * plan.dense->groups * plan.dense->parts();
    auto* sums = reinterpret_cast<float4*>(memory + used);
    DenseRunsPass pass;
    pass.first_token = static_cast<std::int32_t>(first);
    pass.tokens = static_cast<std::int32_t>(std::min(at_once, tokens - first));
    pass.groups = plan.dense->groups;
    pass.parts = plan.dense->parts();
    pass.run = plan.dense->run;
    pass.sums = sums;
    pass.states = reinterpret_cast<float2*>(sums + parts * kSplitQuads);
    DSV4RT_RETURN_IF_ERROR(launch_dense_splits(device, p, pass, decoded, stream));
    if (first == 0) DSV4RT_RETURN_IF_ERROR(launch_tokens(device, p, *plan.warpgroup, decoded, stream));
    DSV4RT_RETURN_IF_ERROR(launch_dense_outputs(p, pass, stream));
  }
  return {};
}

// All Hopper kernels but those of runs.
Status launch_hopper(const CudaDevice& device, const AttendParams& p, const AttendPlan& plan, const Scratch& scratch,
                     cudaStream_t stream) {
  std::optional<DecodedRows> decoded;
  if (plan.decoded) {
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch.take(static_cast<std::size_t>(plan.decoded->bytes()), kName));
    decoded = DecodedRows{.rows = reinterpret_cast<bf16*>(memory), .shape = *plan.decoded};
    DSV4RT_RETURN_IF_ERROR(launch_decode_rows(device, p, *decoded, stream));
  }
  const DecodedRows* rows = decoded ? &*decoded : nullptr;
  if (plan.warpgroup->even) {
    const auto bytes = static_cast<std::size_t>(plan.warpgroup->even->bytes());
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch.take(bytes, kName));
    return launch_even_blocks(device, p, *plan.warpgroup, memory, scratch.zeros().data(), stream);
  }
  if (!plan.dense) return launch_tokens(device, p, *plan.warpgroup, rows, stream);
  return launch_dense(device, p, plan, rows, decoded ? plan.decoded->bytes() : 0, scratch, stream);
}

Status launch_plan(const CudaDevice& device, const AttendParams& p, const AttendPlan& plan, const Scratch& scratch,
                   cudaStream_t stream) {
  if (plan.runs) return launch_runs(device, p, *plan.runs, stream);
  if (plan.portable) return launch_portable(device, p, *plan.portable, stream);
  return launch_hopper(device, p, plan, scratch, stream);
}

}  // namespace

SlowPath attend_slow_path(const DeviceFacts& facts, const AttendParams& p) {
  constexpr RowFormat kFormat = RowFormat::kFp8DsMla;
  if (!facts.has_sm90a) return slow_path_without_sm90a(facts);
  if (p.ring.format != kFormat || (p.ratio > 0 && p.row_format != kFormat)) return SlowPath::kAttendFormat;
  const std::int32_t block_rows = p.rows.shape.rows;
  if (p.ratio > 0 && (block_rows & (block_rows - 1)) != 0) return SlowPath::kAttendBlockRows;
  if (p.topk_indices != nullptr && p.topk_stride > kMappedRows) return SlowPath::kAttendTopK;
  return p.window > kMappedWindow ? SlowPath::kAttendWindow : SlowPath::kNone;
}

std::optional<DecodedRowsShape> plan_decoded_rows(const AttendParams& p, std::int64_t most_rows,
                                                  std::int64_t most_bytes) {
  // On an H200 a row that a block reads takes 0.05 ns less of the whole device where it lies decoded (0.24 for 0.29, of
  // splits; others 0.22), decoding one 0.4 ns, the launch 4 us. What is saved must be twice that.
  constexpr std::int64_t kReadsOfRow = 16;
  constexpr std::int64_t kReadsOfLaunch = 160'000;
  const StepHeader& counts = p.step.counts;
  const std::int64_t paged = p.rows.table_stride * p.rows.shape.rows;
  const std::int64_t compressed = p.ratio == 0 ? 0 : std::min<std::int64_t>(counts.context_end / p.ratio, paged);
  const DecodedRowsShape shape{.sequences = counts.sequences,
                               .staged = p.staged_shape.rows,
                               .ring = p.ring.shape.rows,
                               .compressed = static_cast<std::int32_t>(compressed)};
  // Sequences that are only bounded, as in a captured step, count as many as tokens; the kernel needs their number.
  if (counts.sequences >= counts.tokens) return std::nullopt;
  const std::int64_t reads = counts.tokens * most_rows * head_groups(p);
  if (reads < kReadsOfLaunch + kReadsOfRow * (counts.tokens + shape.cached())) return std::nullopt;
  return shape.bytes() <= most_bytes ? std::optional(shape) : std::nullopt;
}

std::optional<EvenShares> plan_even(int multiprocessors, std::int64_t items, std::int64_t most_rows) {
  // What is saved are tiles of the part of a round that nobody has any more; a head and a tail take an H200 as long as
  // some eight, what is written and read in between among it.
  constexpr std::int64_t kHandedTiles = 8;
  const std::int64_t tiles = (most_rows + kTileRows - 1) / kTileRows;
  if (items <= multiprocessors || items % multiprocessors == 0) return std::nullopt;
  const auto shares = EvenShares::of(static_cast<std::int32_t>(items), multiprocessors);
  const std::int64_t saved = (2 * multiprocessors - shares.rest) * tiles / multiprocessors;
  return saved >= kHandedTiles ? std::optional(shares) : std::nullopt;
}

DensePlan plan_dense(int multiprocessors, const AttendParams& p, std::int64_t most_rows) {
  DensePlan plan{.groups = head_groups(p), .splits = DenseSplits::most(most_rows)};
  // Whole runs, where they keep as many blocks busy: a split whose sums are kept and read again takes as long as one
  // and a quarter that adds its own.
  const auto rounds = [&](std::int64_t parts) {
    const std::int64_t units = p.step.counts.tokens * plan.groups * parts;
    return (units + multiprocessors - 1) / multiprocessors;
  };
  const int run = DenseSplits::longest_run(plan.splits);
  if (4 * run * rounds(DenseSplits::most_runs(plan.splits)) <= 5 * rounds(plan.splits)) plan.run = run;
  return plan;
}

PortablePlan plan_portable(const DeviceFacts& facts, const AttendParams& p, std::int64_t most_rows) {
  const std::int64_t tokens = p.step.counts.tokens;
  const std::int64_t most_chunks = (most_rows + kChunkRows - 1) / kChunkRows;
  PortablePlan plan;
  plan.cluster_blocks = static_cast<int>(std::clamp<std::int64_t>(most_chunks, 1, kMostKvSplits));
  // Heads share a block as long as the blocks still fill the machine: fewer rows are decoded twice. The
  // number of heads changes no result. Of the multiprocessors, whole clusters of the largest size count.
  const std::int64_t full_machine = facts.multiprocessors / kMostKvSplits * kMostKvSplits;
  const auto fills = [&](std::int64_t heads, std::size_t shared_bytes) {
    return shared_bytes <= static_cast<std::size_t>(facts.block_shared_bytes) && p.heads > heads / 2 &&
           tokens * plan.cluster_blocks * ((p.heads + heads - 1) / heads) >= full_machine;
  };
  if (fills(32, sizeof(AttendShared<2>))) plan.head_tiles = 2;
  if (fills(64, sizeof(AttendShared<4>))) plan.head_tiles = 4;
  return plan;
}

Result<AttendPlan> plan_attend(const CudaDevice& device, const AttendParams& params, std::size_t scratch_bytes,
                               std::size_t zero_bytes) {
  const std::int64_t most_rows = most_rows_of(params);
  AttendPlan plan{.slow = attend_slow_path(device.facts(), params)};
  if (device.has_sm90a() && plan.slow == SlowPath::kNone) {
    plan.runs = plan_runs(device.multiprocessors(), params, most_rows);
    if (plan.runs) return plan;
    const bool dense = params.topk_indices == nullptr && most_rows > kMaximumRows;
    if (dense) plan.dense = plan_dense(device.multiprocessors(), params, most_rows);
    DSV4RT_ASSIGN_OR_RETURN(plan.warpgroup, plan_warpgroup(device, params, dense ? kMaximumRows : most_rows));
    plan.warpgroup->dense = dense;
    auto most_bytes = static_cast<std::int64_t>(scratch_bytes);
    // Splits of more tokens at once are worth more than decoded rows: they have half of the scratch, or what one needs.
    if (dense) most_bytes = std::min(most_bytes / 2, most_bytes - plan.dense->token_bytes());
    const bool alone = plan.warpgroup->cluster_blocks == 1;
    if (dense || alone) plan.decoded = plan_decoded_rows(params, most_rows, most_bytes);
    if (!dense && alone && !plan.decoded) {
      const auto even = plan_even(device.multiprocessors(), params.step.counts.tokens * head_groups(params), most_rows);
      if (even && even->bytes() <= most_bytes && even->zero_bytes() <= static_cast<std::int64_t>(zero_bytes)) {
        plan.warpgroup->even = even;
      }
    }
    return plan;
  }
  plan.portable = plan_portable(device.facts(), params, most_rows);
  return plan;
}

bool AttendPlan::norms_queries() const {
  return runs || (warpgroup && warpgroup->cluster_blocks == 1);
}

bool AttendPlan::encodes_outputs() const {
  return runs || (warpgroup && !dense && !warpgroup->even && warpgroup->cluster_blocks <= 2);
}

Result<bool> CudaOps::norms_queries(const AttendParams& params) {
  if (params.step.counts.tokens == 0) return false;
  DSV4RT_RETURN_IF_ERROR(check(params));
  DSV4RT_ASSIGN_OR_RETURN(const AttendPlan plan,
                          plan_attend(device_, params, scratch_.size(), scratch_.zeros().size()));
  return plan.norms_queries();
}

Status CudaOps::attend(const AttendParams& params) {
  if (params.step.counts.tokens == 0) return {};
  DSV4RT_RETURN_IF_ERROR(check(params));
  DSV4RT_ASSIGN_OR_RETURN(const AttendPlan plan,
                          plan_attend(device_, params, scratch_.size(), scratch_.zeros().size()));
  DSV4RT_RETURN_IF_ERROR(require(!params.query_eps || plan.norms_queries(), kName, "step.counts.tokens",
                                 params.step.counts.tokens, "a step whose queries norms_queries() leaves to attend"));
  slow_paths_.tell(plan.slow);
  if (!params.encoded || plan.encodes_outputs()) return launch_plan(device_, params, plan, scratch_, stream_);
  AttendParams values = params;
  values.encoded.reset();
  DSV4RT_RETURN_IF_ERROR(launch_plan(device_, values, plan, scratch_, stream_));
  const auto most_blocks = params.step.counts.tokens <= kFewTokens ? device_.multiprocessors() : 0;
  return encode_input(
      {.x = params.o, .x_stride = params.encoded->width, .to = *params.encoded, .tokens = params.step.counts.tokens},
      most_blocks, stream_);
}

}  // namespace dsv4rt::cuda
