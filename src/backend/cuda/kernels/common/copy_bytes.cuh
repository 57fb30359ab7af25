// Copies of byte ranges by groups of threads, in the widest accesses that both ends allow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4rt::cuda {

template <class Unit, class Index>
__device__ inline void copy_units(std::byte* to, const std::byte* from, Index bytes, Index thread, Index threads) {
  for (Index i = thread; i < bytes / static_cast<Index>(sizeof(Unit)); i += threads) {
    reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(from)[i];
  }
}

// Thread `thread` of `threads` copies its share. Between blocks of one pool (addresses base + k * bytes) the
// width follows from base and bytes alone, so a thread moves the same bytes of every block.
template <class Index>
__device__ inline void copy_bytes(std::byte* to, const std::byte* from, Index bytes, Index thread, Index threads) {
  const std::uint64_t low = reinterpret_cast<std::uint64_t>(to) | reinterpret_cast<std::uint64_t>(from) |
                            static_cast<std::uint64_t>(bytes);
  if (low % 16 == 0) {
    copy_units<uint4>(to, from, bytes, thread, threads);
  } else if (low % 8 == 0) {
    copy_units<uint2>(to, from, bytes, thread, threads);
  } else if (low % 4 == 0) {
    copy_units<std::uint32_t>(to, from, bytes, thread, threads);
  } else {
    copy_units<std::uint8_t>(to, from, bytes, thread, threads);
  }
}

}  // namespace dsv4rt::cuda
