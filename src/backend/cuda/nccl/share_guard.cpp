#include "backend/cuda/nccl/share_guard.h"

#include <span>
#include <utility>

#include "backend/cuda/device/cuda_error.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Result<std::unique_ptr<ShareGuard>> ShareGuard::create(std::int32_t rank, std::int32_t ranks) {
  std::unique_ptr<ShareGuard> guard(new ShareGuard(rank, ranks));
  const std::size_t bytes = (guard->ranks_ + 1) * sizeof(ShareHeader);
  DSV4RT_CUDA_TRY(cudaHostAlloc(reinterpret_cast<void**>(&guard->host_), kPlaces * bytes, cudaHostAllocDefault));
  DSV4RT_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&guard->device_), bytes));
  guard->come_.reserve(kPlaces);
  for (std::size_t i = 0; i < kPlaces; ++i) {
    DSV4RT_ASSIGN_OR_RETURN(Event event, create_event(/*timing=*/false));
    guard->come_.push_back(std::move(event));
  }
  return guard;
}

ShareGuard::~ShareGuard() {
  static_cast<void>(cudaFree(device_));
  static_cast<void>(cudaFreeHost(host_));
}

bool ShareGuard::has_place() {
  static_cast<void>(difference());
  const std::lock_guard lock(mutex_);
  return begun_ - looked_at_ < kPlaces;
}

Status ShareGuard::exchange(const ShareHeader& own, const Gather& gather, cudaStream_t stream) {
  ShareHeader* const headers = place(begun_);
  headers[ranks_] = own;
  DSV4RT_CUDA_TRY(
      cudaMemcpyAsync(device_ + ranks_, headers + ranks_, sizeof(ShareHeader), cudaMemcpyHostToDevice, stream));
  DSV4RT_RETURN_IF_ERROR(gather(device_ + ranks_, device_));
  DSV4RT_CUDA_TRY(cudaMemcpyAsync(headers, device_, ranks_ * sizeof(ShareHeader), cudaMemcpyDeviceToHost, stream));
  DSV4RT_CUDA_TRY(cudaEventRecord(come_[begun_ % kPlaces].get(), stream));
  const std::lock_guard lock(mutex_);
  ++begun_;
  return {};
}

std::string ShareGuard::difference() {
  const std::lock_guard lock(mutex_);
  for (; difference_.empty() && looked_at_ < begun_; ++looked_at_) {
    const cudaError_t come = cudaEventQuery(come_[looked_at_ % kPlaces].get());
    if (under_way(come)) break;
    // A device that has failed says so to whoever uses it.
    if (come != cudaSuccess) continue;
    difference_ = share_difference(std::span<const ShareHeader>(place(looked_at_), ranks_), rank_);
  }
  return difference_;
}

}  // namespace dsv4rt::cuda
