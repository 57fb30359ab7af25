// The part of the CUDA runtime that the communicator over NCCL calls, on the host: streams run what is enqueued at
// once. A stream that is stuck takes more work and completes none of it. One device, which is memory of the process.
#include "gpu/nccl/stand_in/host_runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "backend/cuda/device/kernel_image.h"
#include "backend/cuda/kernels/cache_moves/copy_regions.h"
#include "backend/cuda/nccl/sum_ranks.h"
#include "dist/check_collective.h"
#include "dist/sum_in_rank_order.h"

namespace dsv4rt::test {
namespace {

std::mutex mutex;
std::set<const void*> stuck_streams;
std::map<const void*, const void*> waits_for;  // the stream that was stuck when another began to wait for it

}  // namespace

void use_host_runtime() {
  StandInNccl& nccl = stand_in_nccl();
  nccl.copy = [](void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); };
  nccl.settle = [](void*) {};
  nccl.stick = [](void* stream, bool stuck) {
    const std::lock_guard lock(mutex);
    stuck ? static_cast<void>(stuck_streams.insert(stream)) : static_cast<void>(stuck_streams.erase(stream));
  };
}

void wait_for(const void* stream, const void* other) {
  const std::lock_guard lock(mutex);
  waits_for[stream] = other;
}

bool is_stuck(const void* stream) {
  const std::lock_guard lock(mutex);
  const auto found = waits_for.find(stream);
  return stuck_streams.contains(found == waits_for.end() ? stream : found->second);
}

}  // namespace dsv4rt::test

using dsv4rt::test::is_stuck;

namespace {

thread_local cudaError_t last_error = cudaSuccess;  // what the next launch would report

cudaError_t not_ready() {
  last_error = cudaErrorNotReady;
  return last_error;
}

}  // namespace

struct CUstream_st {};
struct CUevent_st {
  cudaStream_t behind = nullptr;  // the stream, if it was stuck when the event was recorded
};

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int*, const void*, const cudaLaunchConfig_t*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::calloc(1, std::max<size_t>(bytes, 1));
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (!is_stuck(stream)) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(dsv4rt::test::mutex);
    dsv4rt::test::stuck_streams.erase(stream);
    dsv4rt::test::waits_for.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return is_stuck(stream) ? not_ready() : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
// A stream that waits for one that is stuck is stuck as well, as long as that is.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->behind != nullptr && is_stuck(event->behind)) dsv4rt::test::wait_for(stream, event->behind);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->behind = is_stuck(stream) ? stream : nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->behind != nullptr && is_stuck(event->behind) ? not_ready() : cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "an error";
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaError";
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

}  // extern "C"

namespace dsv4rt::cuda {

Result<bool> runs_sm90a_code(DeviceDriver&) {
  return false;
}

Status RegionCopier::flush() {
  for (int i = 0; i < count_ && !is_stuck(stream_); ++i) {
    const CopyRegion& region = chunk_.regions[i];
    std::memcpy(region.to, region.from, static_cast<std::size_t>(region.bytes));
  }
  count_ = 0;
  return {};
}

Status launch_sum_ranks(const void* terms, std::int32_t ranks, ElementType terms_type, void* sum, ElementType sum_type,
                        std::int64_t elements, cudaStream_t) {
  const auto bytes = static_cast<std::size_t>(elements * element_bytes(terms_type));
  sum_in_rank_order(static_cast<const std::byte*>(terms), bytes, ranks, terms_type, sum, sum_type, elements);
  return {};
}

}  // namespace dsv4rt::cuda
