// The unit in which the Hopper kernels of the selection take index keys.
#pragma once

namespace dsv4rt::cuda {

inline constexpr int kTileKeys = 64;  // rows of the instruction

}  // namespace dsv4rt::cuda
