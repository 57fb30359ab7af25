#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/boundary/kernel.cuh"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/move_checks.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Blocks of threads for the rows of a ring, each thread moving two units of 16 bytes. They run side by side with
// those of other rings.
unsigned shares_of(std::int64_t bytes) {
  constexpr std::int64_t kBytesPerShare = kBoundaryThreads * 16 * 2;
  constexpr std::int64_t kMaxShares = 64;
  return static_cast<unsigned>(std::clamp<std::int64_t>((bytes + kBytesPerShare - 1) / kBytesPerShare, 1, kMaxShares));
}

// Collects rings and launches all copies for them whenever the kernel parameters are full.
class RingCopier {
 public:
  RingCopier(BoundaryDirection direction, std::span<const BoundaryCopy> copies, const BoundaryStates& states,
             cudaStream_t stream)
      : copies_(copies), stream_(stream) {
    chunk_.states = states;
    chunk_.direction = direction;
  }

  Status add(const BoundaryRows& rows) {
    const RingShape shape{.slot_bytes = rows.slot_bytes,
                          .ring_rows = rows.ring.rows,
                          .state_rows = rows.state.rows,
                          .data_bytes = rows.state.data_bytes,
                          .scale_bytes = rows.state.scale_bytes};
    int kind = static_cast<int>(std::find(rings_.shapes, rings_.shapes + shapes_, shape) - rings_.shapes);
    if (count_ == kRingsPerLaunch || kind == kShapesPerLaunch) {
      DSV4RT_RETURN_IF_ERROR(flush());
      kind = 0;
    }
    if (kind == shapes_) rings_.shapes[shapes_++] = shape;
    rings_.rings[count_++] = {.rings = rows.rings,
                              .state_place = static_cast<std::uint32_t>(rows.state_offset / kPlaceBytes),
                              .shape = static_cast<std::uint32_t>(kind)};
    largest_bytes_ = std::max(largest_bytes_, rows.state.data_offset(rows.state.rows));
    return {};
  }

  Status flush() {
    for (std::size_t first = 0; count_ > 0 && first < copies_.size(); first += kCopiesPerLaunch) {
      const std::size_t copies = std::min<std::size_t>(kCopiesPerLaunch, copies_.size() - first);
      std::copy_n(copies_.begin() + static_cast<std::ptrdiff_t>(first), copies, chunk_.copies);
      const dim3 grid(shares_of(largest_bytes_), static_cast<unsigned>(count_), static_cast<unsigned>(copies));
      copy_boundary_kernel<<<grid, kBoundaryThreads, 0, stream_>>>(rings_, chunk_);
      DSV4RT_CUDA_TRY(cudaGetLastError());
    }
    count_ = shapes_ = 0;
    largest_bytes_ = 0;
    return {};
  }

 private:
  std::span<const BoundaryCopy> copies_;
  cudaStream_t stream_;
  CopyChunk chunk_;
  RingChunk rings_;
  int count_ = 0;
  int shapes_ = 0;
  std::int64_t largest_bytes_ = 0;
};

// Rows are moved in units of 16 bytes.
Status check_projections(const KeepBoundaryParams::Compressor& compressor) {
  constexpr const char* kName = "keep_boundary_rows";
  const CompressorInput& input = compressor.input;
  DSV4RT_RETURN_IF_ERROR(require(input.stride % 4 == 0, kName, "input.stride", input.stride, "multiples of 4"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.kv, 16, kName, "input.kv"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.score, 16, kName, "input.score"));
  return require_aligned(input.ape, 16, kName, "input.ape");
}

}  // namespace

Status CudaOps::copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                                   std::span<const BoundaryRows> rows, const BoundaryStates& states) {
  DSV4RT_RETURN_IF_ERROR(check_boundary_copies(direction, copies, rows, states));
  RingCopier copier(direction, copies, states, stream_);
  for (const BoundaryRows& one : rows) DSV4RT_RETURN_IF_ERROR(copier.add(one));
  return copier.flush();
}

Status CudaOps::keep_boundary_rows(const KeepBoundaryParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_keep_boundary(params));
  if (params.captures.empty()) return {};
  KeepChunk chunk;
  chunk.states = params.states;
  chunk.staged = params.staged;
  chunk.staged_shape = params.staged_shape;
  chunk.window_offset = params.window.state_offset;
  chunk.window = params.window.state;
  unsigned parts = 1;
  for (const auto& compressor : {params.compressor, params.index_compressor}) {
    if (!compressor) continue;
    DSV4RT_RETURN_IF_ERROR(require_aligned(params.states.states, 16, "keep_boundary_rows", "states.states"));
    DSV4RT_RETURN_IF_ERROR(check_projections(*compressor));
    chunk.projections[parts++ - 1] = {.input = compressor->input,
                                      .offset = compressor->rows.state_offset,
                                      .rows = compressor->rows.state.rows,
                                      .width = state_width(compressor->input)};
  }
  const unsigned shares = shares_of(chunk.window.data_offset(chunk.window.rows));
  for (std::size_t first = 0; first < params.captures.size(); first += kCapturesPerLaunch) {
    const std::size_t captures = std::min<std::size_t>(kCapturesPerLaunch, params.captures.size() - first);
    std::copy_n(params.captures.begin() + static_cast<std::ptrdiff_t>(first), captures, chunk.captures);
    const LaunchShape shape{.grid = dim3(shares, static_cast<unsigned>(captures), parts), .threads = kBoundaryThreads};
    DSV4RT_RETURN_IF_ERROR(launch_pdl(keep_boundary_kernel, shape, stream_, chunk));
  }
  return {};
}

}  // namespace dsv4rt::cuda
