// Structs that begin with struct_size: reading what an older or newer caller passes, and answering it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "dsv4rt/c_api.h"
#include "dsv4rt/engine.h"

namespace dsv4rt::c_api {

// Larger than any struct will become: a struct_size beyond it is an uninitialised field.
inline constexpr std::size_t kMaxStructBytes = 4096;

// Bytes of each struct in the version that brought it: no caller has a shorter one. A struct that grew more than
// once has a version in between.
template <class T>
inline constexpr std::size_t kFirstBytes = 0;
template <>
inline constexpr std::size_t kFirstBytes<dsv4rt_engine_options> = 104;
template <>
inline constexpr std::size_t kFirstBytes<dsv4rt_memory> = 88;
template <>
inline constexpr std::size_t kFirstBytes<dsv4rt_memory_region> = 56;
template <>
inline constexpr std::size_t kFirstBytes<dsv4rt_step_options> = 16;
template <>
inline constexpr std::size_t kFirstBytes<dsv4rt_graph_stats> = 48;

template <class T>
inline constexpr std::size_t kBetweenBytes = kFirstBytes<T>;
template <>
inline constexpr std::size_t kBetweenBytes<dsv4rt_engine_options> = 128;

template <class T>
Status check_struct_size(std::size_t struct_bytes, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  static_assert(kFirstBytes<T> > 0 && sizeof(T) >= kFirstBytes<T> && sizeof(T) <= kMaxStructBytes);
  const bool older = struct_bytes == kFirstBytes<T> || struct_bytes == kBetweenBytes<T>;
  if (older || (struct_bytes >= sizeof(T) && struct_bytes <= kMaxStructBytes)) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + ".struct_size: " + std::to_string(struct_bytes) +
                                            "; accepted: sizeof(" + name + "), here " + std::to_string(sizeof(T))};
}

// Overwrites the fields of `known` (defaults) that the caller's struct has.
template <class T>
Status read_struct(const T* given, const char* name, T& known) {
  std::size_t struct_bytes = 0;
  std::memcpy(&struct_bytes, given, sizeof(struct_bytes));
  if (Status status = check_struct_size<T>(struct_bytes, name); !status.ok()) return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (std::any_of(bytes + std::min(sizeof(T), struct_bytes), bytes + struct_bytes,
                  [](unsigned char byte) { return byte != 0; })) {
    return {StatusCode::kUnsupported, std::string(name) + ": a field after byte " + std::to_string(sizeof(T)) +
                                          " is set, which this version of the library does not know"};
  }
  std::memcpy(static_cast<void*>(&known), given, std::min(sizeof(T), struct_bytes));
  return {};
}

// Fills the caller's struct_bytes bytes at `target`; fields that only the caller knows become 0.
template <class T>
Status write_struct(T* target, std::size_t struct_bytes, const char* name, T values) {
  if (Status status = check_struct_size<T>(struct_bytes, name); !status.ok()) return status;
  values.struct_size = struct_bytes;
  std::memset(static_cast<void*>(target), 0, struct_bytes);
  std::memcpy(static_cast<void*>(target), &values, std::min(sizeof(T), struct_bytes));
  return {};
}

// The defaults of EngineOptions as a C struct; struct_size is that of this library.
dsv4rt_engine_options default_engine_options();

// The engine's options; errors name the field.
Result<EngineOptions> read_engine_options(const dsv4rt_engine_options* given);

}  // namespace dsv4rt::c_api
