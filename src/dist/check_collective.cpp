#include "dist/check_collective.h"

#include <string>

namespace dsv4rt {
namespace {

// Far more than a device has; sums of bytes stay far from what 64 bits hold.
constexpr std::int64_t kMostShareBytes = std::int64_t{1} << 50;

Status check_count(const char* call, const char* what, std::int64_t count) {
  if (count >= 0) return {};
  return {StatusCode::kInvalidArgument,
          std::string(call) + ": " + what + " = " + std::to_string(count) + "; accepted: 0 or more"};
}

Status null_argument(const char* call, const char* name) {
  return {StatusCode::kInvalidArgument, std::string(call) + ": " + name + " is null"};
}

Status check_rooted(const char* call, const void* data, std::int64_t bytes, std::int32_t root, std::int32_t size) {
  if (Status status = check_count(call, "bytes", bytes); !status.ok()) return status;
  if (root < 0 || root >= size) {
    return {StatusCode::kInvalidArgument,
            std::string(call) + ": root = " + std::to_string(root) + "; accepted: 0 to " + std::to_string(size - 1)};
  }
  return bytes > 0 && data == nullptr ? null_argument(call, "data") : Status{};
}

}  // namespace

Status check_deadline(const char* what, double seconds) {
  if (seconds > 0 && seconds <= kLongestDeadlineSeconds) return {};
  return {StatusCode::kInvalidArgument, std::string(what) + ": " + std::to_string(seconds) +
                                            "; accepted: above 0, at most " +
                                            std::to_string(static_cast<int>(kLongestDeadlineSeconds)) + " seconds"};
}

Status check_sum(const void* terms, ElementType terms_type, const void* sum, ElementType sum_type,
                 std::int64_t elements) {
  if (Status status = check_count("all_reduce_sum", "elements", elements); !status.ok()) return status;
  if (elements == 0) return {};
  if (terms == nullptr) return null_argument("all_reduce_sum", "terms");
  if (sum == nullptr) return null_argument("all_reduce_sum", "sum");
  if (terms == sum && terms_type != sum_type) {
    return {StatusCode::kInvalidArgument, "all_reduce_sum: terms and sum are one buffer of two types"};
  }
  return {};
}

Status check_gather(const void* part, const void* all, std::int64_t bytes) {
  if (Status status = check_count("all_gather", "bytes", bytes); !status.ok()) return status;
  if (bytes == 0) return {};
  if (part == nullptr) return null_argument("all_gather", "part");
  return all == nullptr ? null_argument("all_gather", "all") : Status{};
}

Status check_broadcast(const void* data, std::int64_t bytes, std::int32_t root, std::int32_t size) {
  return check_rooted("broadcast", data, bytes, root, size);
}

Status check_share(std::span<const SharedPart> parts, std::int32_t size) {
  std::int64_t all_bytes = 0;
  for (const SharedPart& part : parts) {
    if (Status status = check_rooted("begin_share", part.data, part.bytes, part.root, size); !status.ok())
      return status;
    if (part.bytes > kMostShareBytes - all_bytes) {
      return {StatusCode::kInvalidArgument, "begin_share: bytes = " + std::to_string(part.bytes) + " after " +
                                                std::to_string(all_bytes) +
                                                "; accepted: " + std::to_string(kMostShareBytes) + " together"};
    }
    all_bytes += part.bytes;
    if (part.readers == SharedPart::kEveryRank) continue;
    if (part.first_reader < 0 || part.first_reader >= size || part.readers < 0 || part.readers > size) {
      return {StatusCode::kInvalidArgument, "begin_share: readers = " + std::to_string(part.readers) + " from rank " +
                                                std::to_string(part.first_reader) + " on; accepted: 0 to " +
                                                std::to_string(size) + " of ranks 0 to " + std::to_string(size - 1)};
    }
  }
  return {};
}

}  // namespace dsv4rt
