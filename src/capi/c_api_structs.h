// Structs that begin with struct_size: reading what an older or newer caller passes, and answering it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "dsv4rt/c_api.h"
#include "dsv4rt/engine.h"

namespace dsv4rt::c_api {

// Larger than any struct will become: a struct_size beyond it is an uninitialised field.
inline constexpr std::size_t kMaxStructBytes = 4096;

// Bytes of each struct in every version that changed it, the present one last: a caller has one of these or a later
// one.
template <class T>
inline constexpr std::array<std::size_t, 0> kVersionBytes{};
template <>
inline constexpr std::array<std::size_t, 8> kVersionBytes<dsv4rt_engine_options>{104, 128, 136, 144,
                                                                                 152, 168, 176, 184};
template <>
inline constexpr std::array<std::size_t, 3> kVersionBytes<dsv4rt_memory>{88, 104, 136};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_memory_region>{56};
template <>
inline constexpr std::array<std::size_t, 4> kVersionBytes<dsv4rt_step_options>{16, 32, 40, 56};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_graph_stats>{48};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_prefix_policy>{24};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_prefix_options>{48};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_parallel_options>{64};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_sequence_options>{40};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_prefix_stats>{120};
template <>
inline constexpr std::array<std::size_t, 2> kVersionBytes<dsv4rt_snapshot_options>{24, 32};

template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_tensor>{64};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_engine_state>{32};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_role_state>{64};
template <>
inline constexpr std::array<std::size_t, 3> kVersionBytes<dsv4rt_sequence_state>{96, 104, 112};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_block_shortage>{40};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_config>{144};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_layer_info>{40};
template <>
inline constexpr std::array<std::size_t, 1> kVersionBytes<dsv4rt_cache_view>{80};

template <class T>
Status check_struct_size(std::size_t struct_bytes, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  // Tail padding would make struct_size ambiguous: the list names the end of the last field.
  static_assert(kVersionBytes<T>.back() == sizeof(T) && sizeof(T) <= kMaxStructBytes);
  const bool known =
      std::find(kVersionBytes<T>.begin(), kVersionBytes<T>.end(), struct_bytes) != kVersionBytes<T>.end();
  if (known || (struct_bytes > sizeof(T) && struct_bytes <= kMaxStructBytes)) return {};
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

struct GivenOptions {
  EngineOptions engine;
  const dsv4rt_parallel_options* ranks = nullptr;  // the caller's, unread; null: one rank
};
// Errors name the field. A null checkpoint stays empty.
Result<GivenOptions> read_engine_options(const dsv4rt_engine_options* given);

// The defaults of PrefixPolicy and of the prefix cache as C structs.
dsv4rt_prefix_policy default_prefix_policy();
dsv4rt_prefix_options default_prefix_options();

// Null gives the defaults; errors name the field.
Result<PrefixPolicy> read_prefix_policy(const dsv4rt_prefix_policy* given);
// What engine options say of the prefix cache, but for the callback's wall: c_api_prefix.cpp.
Status read_prefix_options(const dsv4rt_prefix_options& given, EngineOptions& options);

// What engine options say of several ranks: meets the others. Everything that this rank alone may be refused for is
// checked before, since the others would wait for it. Errors name the field, or are those of create_mpi_communicator
// and create_nccl_communicator.
Status meet_ranks(const dsv4rt_parallel_options& given, EngineOptions& options);

}  // namespace dsv4rt::c_api
