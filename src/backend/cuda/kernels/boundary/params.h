// What the kernels of boundary states take: copies and captures, with where every row lies, packed into kernel
// parameters, so that a launch needs no device copy of a host array.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/boundary_state.h"

namespace dsv4rt::cuda {

inline constexpr int kCopiesPerLaunch = 64;
inline constexpr int kRingsPerLaunch = 128;
inline constexpr int kShapesPerLaunch = 16;

// Layers of a kind have rings of one shape.
struct RingShape {
  std::int64_t slot_bytes = 0;
  std::int32_t ring_rows = 0;
  std::int32_t state_rows = 0;
  std::int32_t data_bytes = 0;  // bytes of a row, as in BlockShape
  std::int32_t scale_bytes = 0;
  bool operator==(const RingShape&) const = default;
};

inline constexpr std::int64_t kPlaceBytes = 256;

struct RingPlace {
  std::byte* rings = nullptr;
  std::uint32_t state_place = 0;  // BoundaryRows::state_offset / kPlaceBytes
  std::uint32_t shape = 0;        // index into RingChunk::shapes
};

struct RingChunk {
  RingPlace rings[kRingsPerLaunch];
  RingShape shapes[kShapesPerLaunch];
};

struct CopyChunk {
  BoundaryCopy copies[kCopiesPerLaunch];
  BoundaryStates states;
  BoundaryDirection direction = BoundaryDirection::kFromRings;
};

inline constexpr int kCapturesPerLaunch = 128;

// A compressor's rows in a state: FP32 [rows][2][width], `offset` bytes into it.
struct KeepProjections {
  CompressorInput input;
  std::int64_t offset = 0;
  std::int32_t rows = 0;
  std::int32_t width = 0;
};

struct KeepChunk {
  BoundaryCapture captures[kCapturesPerLaunch];
  BoundaryStates states;
  const std::byte* staged = nullptr;
  BlockShape staged_shape;
  std::int64_t window_offset = 0;
  BlockShape window;
  KeepProjections projections[2];
};

// Kernel parameters are 4 KiB on every toolkit and device that this code is built for.
static_assert(sizeof(CopyChunk) + sizeof(RingChunk) <= 4096 && sizeof(KeepChunk) <= 4096);

}  // namespace dsv4rt::cuda
