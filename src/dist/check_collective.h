// What all communicators refuse.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4rt/communicator.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Longest deadline: what clocks of nanoseconds and people agree on.
inline constexpr double kLongestDeadlineSeconds = 86400;

// kInvalidArgument naming `what` for a deadline that is NaN, not above 0 or beyond the longest.
Status check_deadline(const char* what, double seconds);

// kInvalidArgument for null pointers, negative counts and a root that is no rank.
Status check_sum(const void* terms, ElementType terms_type, const void* sum, ElementType sum_type,
                 std::int64_t elements);
Status check_gather(const void* part, const void* all, std::int64_t bytes);
Status check_broadcast(const void* data, std::int64_t bytes, std::int32_t root, std::int32_t size);
Status check_share(std::span<const SharedPart> parts, std::int32_t size);

inline std::int64_t element_bytes(ElementType type) noexcept {
  return type == ElementType::kBf16 ? 2 : 4;
}

}  // namespace dsv4rt
