// Unaligned little-endian access to the multi-byte fields of cache rows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace dsv4rt {

static_assert(std::endian::native == std::endian::little, "cache rows are little-endian and used in place");

template <class T>
void store_bytes(std::byte* at, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(at, &value, sizeof(T));
}

template <class T>
T load_bytes(const std::byte* at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace dsv4rt
