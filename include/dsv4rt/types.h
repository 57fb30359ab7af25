// The small vocabulary of the public contract: ids, positions and format names.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>  // std::hash, for a fraction of <functional>

namespace dsv4rt {

// An integer that cannot be mistaken for another kind of integer.
template <class Tag, class Rep>
struct StrongId {
  Rep value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

using LayerId = StrongId<struct LayerIdTag, std::int32_t>;          // 0-based layer of the model
using BlockId = StrongId<struct BlockIdTag, std::int32_t>;          // block of one pool; 0 is never handed out
using StateSlotId = StrongId<struct StateSlotIdTag, std::int32_t>;  // per-sequence state slot, 0-based

// A live sequence. The generation changes when its index is reused, so an old id is refused
// (StatusCode::kStaleHandle) instead of touching somebody else's cache.
struct SequenceId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // 0 is never live: a default-constructed id is stale
  friend constexpr auto operator<=>(const SequenceId&, const SequenceId&) = default;
};

// Bytes of one compressed or window row (512 values: 448 "nope" + 64 "rope"). docs/formats.md.
enum class RowFormat : std::uint8_t {
  kFp8DsMla,  // "fp8_ds_mla": 448 E4M3 + 64 BF16 + 7 UE8M0 + 1 zero byte = 584
  kFp8Row,    // "fp8_row":    448 E4M3 + 64 BF16 + one FP32 inv_scale = 580
  kNvfp4,     // "nvfp4":      224 B E2M1 + 28 E4M3 + 64 BF16 = 380, padded to 384
  kBf16,      // "bf16":       512 BF16 = 1024
};

// Bytes of one index key (128 values).
enum class IndexKeyFormat : std::uint8_t {
  kMxfp4,  // "mxfp4": 64 B E2M1 + 4 E8M0 = 68
  kNvfp4,  // "nvfp4": 64 B E2M1 + 8 E4M3 = 72
  kFp8,    // "fp8":   128 E4M3 + one FP32 scale = 132
  kBf16,   // "bf16":  128 BF16 = 256
};

// What a cache region holds. docs/formats.md has the table of roles.
enum class CacheRole : std::uint8_t {
  kSwaKv,       // window rows: a ring per sequence, every layer
  kCsaKv,       // compressed rows of CSA layers: paged, one per ratio tokens
  kIndexK,      // indexer keys of CSA layers: paged, one per ratio tokens
  kHcaKv,       // compressed rows of HCA layers: paged, one per ratio tokens
  kCsaState,    // compressor ring of CSA layers, per sequence
  kIndexState,  // indexer compressor ring, per sequence
  kHcaState,    // compressor ring of HCA layers, per sequence
};
inline constexpr int kCacheRoleCount = 7;

}  // namespace dsv4rt

template <>
struct std::hash<dsv4rt::SequenceId> {
  std::size_t operator()(const dsv4rt::SequenceId& id) const noexcept {
    return std::hash<std::uint64_t>{}((std::uint64_t{id.generation} << 32) | id.index);
  }
};
