#include "backend/cuda/nccl/share_calls.h"

#include <algorithm>

namespace dsv4rt::cuda {
namespace {

bool went_on(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace

// Broadcasts and messages are not mixed within a group.
ncclResult_t enqueue_share(const Nccl& nccl, std::span<const SharedPart> parts, std::int32_t rank, std::int32_t size,
                           ncclComm_t comm, cudaStream_t stream) {
  const bool to_all =
      std::ranges::all_of(parts, [](const SharedPart& part) { return part.readers == SharedPart::kEveryRank; });
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
