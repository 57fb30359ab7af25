// What this machine can do at best: the yardsticks that benchmarks are compared with. One thread is
// measured in processor time, several in wall time.
#pragma once

#include <cstddef>

namespace dsv4rt::bench {

// Bytes per second of `threads` threads that only read memory, each its part of `bytes`.
double measure_read_bandwidth(int threads, std::size_t bytes);

// FP32 operations per second of `threads` threads that run independent multiply-adds on registers:
// the better of fused FP32 operations and, where there is one, the BF16 dot-product instruction.
double measure_peak_flops(int threads);

}  // namespace dsv4rt::bench
