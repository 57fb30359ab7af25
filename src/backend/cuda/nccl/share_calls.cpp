#include "backend/cuda/nccl/share_calls.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "dist/exchange_memory.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;          // where parts begin in the buffer
constexpr std::int64_t kShortBytes = 64 * 1024;  // longer parts go from where they lie

bool to_every_rank(std::span<const SharedPart> parts) {
  return std::ranges::all_of(parts, [](const SharedPart& part) { return part.readers == SharedPart::kEveryRank; });
}

bool went_on(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace

ShareCalls share_calls(std::span<const SharedPart> parts, std::int32_t rank, std::int32_t size, std::byte* buffer) {
  ShareCalls calls;
  if (buffer == nullptr || !to_every_rank(parts)) {
    calls.parts.assign(parts.begin(), parts.end());
    return calls;
  }
  std::vector<std::int64_t> used(static_cast<std::size_t>(size));
  for (const SharedPart& part : parts) {
    std::int64_t& root_bytes = used[static_cast<std::size_t>(part.root)];
    const std::int64_t at = root_bytes;
    if (part.bytes > kShortBytes || at + round_up(part.bytes, kAlignment) > kNcclShareBytes) {
      calls.parts.push_back(part);
      continue;
    }
    root_bytes += round_up(part.bytes, kAlignment);
    auto* const data = static_cast<std::byte*>(part.data);
    std::byte* const place = buffer + part.root * kNcclShareBytes + at;
    if (part.bytes == 0) continue;
    if (part.root == rank) {
      calls.packed.push_back({.to = place, .from = data, .bytes = part.bytes});
    } else {
      calls.unpacked.push_back({.to = data, .from = place, .bytes = part.bytes});
    }
  }
  for (std::int32_t root = 0; root < size; ++root) {
    const std::int64_t bytes = used[static_cast<std::size_t>(root)];
    if (bytes > 0) calls.parts.push_back({.data = buffer + root * kNcclShareBytes, .bytes = bytes, .root = root});
  }
  return calls;
}

// Broadcasts and messages are not mixed within a group.
ncclResult_t enqueue_share(const Nccl& nccl, std::span<const SharedPart> parts, std::int32_t rank, std::int32_t size,
                           ncclComm_t comm, cudaStream_t stream) {
  const bool to_all = to_every_rank(parts);
  if (const ncclResult_t started = nccl.ncclGroupStart(); started != ncclSuccess) return started;
  ncclResult_t result = ncclSuccess;
  for (const SharedPart& part : parts) {
    const auto bytes = static_cast<std::size_t>(part.bytes);
    if (bytes == 0) continue;
    if (to_all) {
      result = nccl.ncclBroadcast(part.data, part.data, bytes, ncclUint8, part.root, comm, stream);
    } else if (part.root != rank) {
      if (part.read_by(rank, size)) result = nccl.ncclRecv(part.data, bytes, ncclUint8, part.root, comm, stream);
    } else {
      for (std::int32_t reader = 0; reader < size && went_on(result); ++reader) {
        if (reader == rank || !part.read_by(reader, size)) continue;
        result = nccl.ncclSend(part.data, bytes, ncclUint8, reader, comm, stream);
      }
    }
    if (!went_on(result)) break;
  }
  const ncclResult_t ended = nccl.ncclGroupEnd();
  return went_on(result) ? ended : result;
}

}  // namespace dsv4rt::cuda
