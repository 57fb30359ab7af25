// The order of a sum: NCCL's depends on algorithm, protocol, number of elements and place in the buffer. The ranks'
// terms are gathered and added by a kernel in the order of the ranks, so that a token's bytes depend neither on its
// neighbours nor on the run. Long sums go in parts of kNcclPartElements, which changes nothing either.
//
// A lost rank: calls on the host poll against the deadline, work on the device is watched by a thread (DeadlineWatch).
// Whoever finds out first aborts the communicator, which ends its kernels, so that nobody waits on the stream for ever.
// Ranks whose shares differ are lost as well (ShareGuard): the watch finds out, or who asks for the state.
#include "backend/cuda/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/device/handles.h"
#include "backend/cuda/nccl/deadline_watch.h"
#include "backend/cuda/nccl/nccl_library.h"
#include "backend/cuda/nccl/share_calls.h"
#include "backend/cuda/nccl/share_guard.h"
#include "backend/cuda/nccl/sum_ranks.h"
#include "base/try.h"
#include "dist/check_collective.h"
#include "dist/exchange_memory.h"
#include "dist/lost_state.h"

namespace dsv4rt::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::microseconds(50);

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Nccl& nccl, std::unique_ptr<const CudaDevice> device, const NcclOptions& options)
      : nccl_(nccl), device_(std::move(device)), options_(options) {}
  ~NcclCommunicator() override;

  // Meets the other ranks.
  Status connect();

  [[nodiscard]] std::string_view transport() const noexcept override { return "nccl"; }
  [[nodiscard]] std::int32_t rank() const noexcept override { return options_.rank; }
  [[nodiscard]] std::int32_t size() const noexcept override { return options_.size; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return false; }

  [[nodiscard]] std::int64_t scratch_bytes(std::int64_t elements) const override {
    return nccl_exchange_bytes(elements, options_.size);
  }
  Status reserve(std::int64_t elements) override;

  Status all_reduce_sum(const void* terms, ElementType terms_type, void* sum, ElementType sum_type,
                        std::int64_t elements, void* stream) override;
  Status all_gather(const void* part, void* all, std::int64_t bytes, void* stream) override;
  Status broadcast(void* data, std::int64_t bytes, std::int32_t root, void* stream) override;
  Status begin_share(std::span<const SharedPart> parts, const SharePlace& place, void* stream) override;
  Status end_share(void* stream) override;
  Status all_gather_host(const void* part, void* all, std::int64_t bytes, double deadline_seconds) override;
  Status watch(void* stream) override;
  [[nodiscard]] Status state() const override;

 private:
  // Runs an NCCL call on the communicator and waits until it has been enqueued.
  Status enqueue(const char* call, const std::function<ncclResult_t()>& work);
  // Waits until what is under way on the host is done. The caller holds comm_mutex_.
  Status settle(const char* call, ncclResult_t result, double deadline_seconds);
  // scratch_bytes(elements) of device memory for `what`.
  Status allocate(const char* what, std::int64_t elements, void*& memory);
  Status lose(const std::string& why) const;
  // Ends the communicator in the background: it may wait for graphs that hold it, or for ranks. Then ended_ is ready.
  void end(decltype(Nccl::ncclCommAbort) how) const;
  // Gives the header of a share to the other ranks, on the stream of shares.
  Status exchange_header(const ShareHeader& header);

  const Nccl nccl_;
  const std::unique_ptr<const CudaDevice> device_;
  const NcclOptions options_;
  // Whoever asks for the state may be the one who finds out.
  mutable LostState lost_;
  mutable std::mutex comm_mutex_;  // the watch aborts what the engine's thread uses
  mutable ncclComm_t comm_ = nullptr;
  mutable std::future<void> ended_;  // once comm_ is being ended
  void* scratch_ = nullptr;
  std::int64_t scratch_elements_ = 0;
  void* packed_ = nullptr;  // [size, kNcclShareBytes], once it is reserved
  // Shares run on a stream of their own, beside the caller's work and before it where both wait for a multiprocessor.
  struct ShareStream {
    Stream stream;
    Event ready;  // what the caller had enqueued before begin_share
    Event done;
    std::unique_ptr<ShareGuard> guard;  // null: one rank
  };
  std::shared_ptr<ShareStream> share_;  // also of the thread that ends the communicator, which may use it
  bool sharing_ = false;                // between begin_share and end_share
  std::optional<DeadlineWatch> watch_;  // gone first
};

NcclCommunicator::~NcclCommunicator() {
  watch_.reset();
  const CurrentDevice current(*device_);
  static_cast<void>(cudaFree(scratch_));
  static_cast<void>(cudaFree(packed_));
  const std::lock_guard lock(comm_mutex_);
  if (comm_ != nullptr) end(nccl_.ncclCommDestroy);
  // Ranks end together; one that does not is not waited for. What NCCL holds of a lost communicator is given back too
  // before the caller goes on: its graphs are gone by now.
  if (ended_.valid()) static_cast<void>(ended_.wait_until(after(options_.deadline_seconds)));
  share_.reset();  // while the device is current
}

void NcclCommunicator::end(decltype(Nccl::ncclCommAbort) how) const {
  std::promise<void> ended;
  ended_ = ended.get_future();
  std::thread([how, comm = std::exchange(comm_, nullptr), ordinal = device_->ordinal(), share = share_,
               promise = std::move(ended)]() mutable {
    static_cast<void>(cudaSetDevice(ordinal));
    static_cast<void>(how(comm));
    share.reset();
    promise.set_value();
  }).detach();
}

Status NcclCommunicator::connect() {
  DSV4RT_ON_DEVICE(*device_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  share_ = std::make_shared<ShareStream>();
  DSV4RT_ASSIGN_OR_RETURN(share_->stream, create_first_stream());
  DSV4RT_ASSIGN_OR_RETURN(share_->ready, create_event(/*timing=*/false));
  DSV4RT_ASSIGN_OR_RETURN(share_->done, create_event(/*timing=*/false));
  if (options_.size > 1) {
    DSV4RT_ASSIGN_OR_RETURN(share_->guard, ShareGuard::create(options_.rank, options_.size));
  }
  ncclUniqueId id;
  static_assert(sizeof(id) == sizeof(options_.id));
  std::memcpy(&id, options_.id.data(), sizeof(id));
  const std::lock_guard lock(comm_mutex_);
  const ncclResult_t result = nccl_.ncclCommInitRankConfig(&comm_, options_.size, id, options_.rank, &config);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) {
    return {StatusCode::kInvalidArgument, std::string("nccl: ncclCommInitRankConfig: ") +
                                              nccl_.ncclGetErrorString(result) + ": " +
                                              nccl_.ncclGetLastError(nullptr)};
  }
  DSV4RT_RETURN_IF_ERROR(settle("ncclCommInitRankConfig", result, options_.deadline_seconds));
  watch_.emplace(
      *device_, options_.deadline_seconds,
      [this]() -> std::string {
        if (share_->guard != nullptr) {
          if (std::string difference = share_->guard->difference(); !difference.empty()) return difference;
        }
        const std::lock_guard held(comm_mutex_);
        if (comm_ == nullptr) return {};
        ncclResult_t state = ncclSuccess;
        if (nccl_.ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return {};
        if (state == ncclSuccess || state == ncclInProgress) return {};
        return std::string(nccl_.ncclGetErrorString(state)) + ": " + nccl_.ncclGetLastError(comm_);
      },
      [this](const std::string& why) {
        const std::lock_guard held(comm_mutex_);
        static_cast<void>(lose(why));
      });
  return {};
}

Status NcclCommunicator::lose(const std::string& why) const {
  Status status =
      lost_.lose("rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.size) + " (nccl): " + why);
  if (comm_ != nullptr) end(nccl_.ncclCommAbort);
  return status;
}

Status NcclCommunicator::settle(const char* call, ncclResult_t result, double deadline_seconds) {
  const Clock::time_point end_of_wait = after(deadline_seconds);
  while (result == ncclInProgress) {
    if (Clock::now() >= end_of_wait) {
      return lose(std::string(call) + ": not every rank took part within " + std::to_string(deadline_seconds) + " s");
    }
    std::this_thread::sleep_for(kPause);
    if (const ncclResult_t asked = nccl_.ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return {};
  return lose(std::string(call) + ": " + nccl_.ncclGetErrorString(result) + ": " + nccl_.ncclGetLastError(comm_));
}

Status NcclCommunicator::enqueue(const char* call, const std::function<ncclResult_t()>& work) {
  const std::lock_guard lock(comm_mutex_);
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  return settle(call, work(), options_.deadline_seconds);
}

Status NcclCommunicator::reserve(std::int64_t elements) {
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  DSV4RT_ON_DEVICE(*device_);
  const std::int64_t wanted = std::min(elements, kNcclPartElements);
  if (wanted == 0) return options_.size == 1 || packed_ != nullptr ? Status{} : allocate("shares", 0, packed_);
  if (wanted <= scratch_elements_) return {};
  DSV4RT_CUDA_TRY(cudaFree(scratch_));
  scratch_ = nullptr;
  scratch_elements_ = 0;
  DSV4RT_RETURN_IF_ERROR(allocate("sums", wanted, scratch_));
  scratch_elements_ = wanted;
  return {};
}

Status NcclCommunicator::allocate(const char* what, std::int64_t elements, void*& memory) {
  const std::int64_t bytes = scratch_bytes(elements);
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (error != cudaErrorMemoryAllocation) return DSV4RT_CUDA_STATUS(error);
  static_cast<void>(cudaGetLastError());
  memory = nullptr;
  return {StatusCode::kResourceExhausted,
          std::string(what) + " of ranks: " + std::to_string(bytes) + " B of device memory that are not there"};
}

Status NcclCommunicator::all_reduce_sum(const void* terms, ElementType terms_type, void* sum, ElementType sum_type,
                                        std::int64_t elements, void* stream) {
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  DSV4RT_RETURN_IF_ERROR(check_sum(terms, terms_type, sum, sum_type, elements));
  if (scratch_elements_ < std::min(elements, kNcclPartElements)) {
    return {StatusCode::kFailedPrecondition, "all_reduce_sum: " + std::to_string(elements) +
                                                 " elements, but memory for " + std::to_string(scratch_elements_) +
                                                 " was reserved"};
  }
  DSV4RT_ON_DEVICE(*device_);
  const auto enqueued_on = static_cast<cudaStream_t>(stream);
  const ncclDataType_t type = terms_type == ElementType::kF32 ? ncclFloat32 : ncclBfloat16;
  for (std::int64_t first = 0; first < elements; first += kNcclPartElements) {
    const std::int64_t count = std::min(kNcclPartElements, elements - first);
    const auto* part = static_cast<const std::byte*>(terms) + first * element_bytes(terms_type);
    DSV4RT_RETURN_IF_ERROR(enqueue("all_reduce_sum", [&] {
      return nccl_.ncclAllGather(part, scratch_, static_cast<std::size_t>(count), type, comm_, enqueued_on);
    }));
    DSV4RT_RETURN_IF_ERROR(launch_sum_ranks(scratch_, options_.size, terms_type,
                                            static_cast<std::byte*>(sum) + first * element_bytes(sum_type), sum_type,
                                            count, enqueued_on));
  }
  return {};
}

Status NcclCommunicator::all_gather(const void* part, void* all, std::int64_t bytes, void* stream) {
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  DSV4RT_RETURN_IF_ERROR(check_gather(part, all, bytes));
  DSV4RT_ON_DEVICE(*device_);
  return enqueue("all_gather", [&] {
    return nccl_.ncclAllGather(part, all, static_cast<std::size_t>(bytes), ncclUint8, comm_,
                               static_cast<cudaStream_t>(stream));
  });
}

Status NcclCommunicator::broadcast(void* data, std::int64_t bytes, std::int32_t root, void* stream) {
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  DSV4RT_RETURN_IF_ERROR(check_broadcast(data, bytes, root, options_.size));
  DSV4RT_ON_DEVICE(*device_);
  return enqueue("broadcast", [&] {
    return nccl_.ncclBroadcast(data, data, static_cast<std::size_t>(bytes), ncclUint8, root, comm_,
                               static_cast<cudaStream_t>(stream));
  });
}

Status NcclCommunicator::state() const {
  if (lost_.lost() || share_ == nullptr || share_->guard == nullptr) return lost_.status();
  const std::string difference = share_->guard->difference();
  if (difference.empty()) return lost_.status();
  const std::lock_guard lock(comm_mutex_);
  return lose(difference);
}

Status NcclCommunicator::exchange_header(const ShareHeader& header) {
  if (share_->guard == nullptr) return {};
  // The watch sees to it that this ends.
  while (!share_->guard->has_place()) {
    DSV4RT_RETURN_IF_ERROR(state());
    std::this_thread::sleep_for(kPause);
  }
  const cudaStream_t beside = share_->stream.get();
  const auto gather = [&](const void* own, void* all) {
    return enqueue("begin_share",
                   [&] { return nccl_.ncclAllGather(own, all, sizeof(ShareHeader), ncclUint8, comm_, beside); });
  };
  return share_->guard->exchange(header, gather, beside);
}

// Parts in as few launches as NCCL allows. The caller's stream goes on, and waits for them where it needs them.
Status NcclCommunicator::begin_share(std::span<const SharedPart> parts, const SharePlace& place, void* stream) {
  DSV4RT_RETURN_IF_ERROR(state());
  if (sharing_) {
    return {StatusCode::kFailedPrecondition, "nccl: begin_share was called; accepted now: end_share"};
  }
  DSV4RT_RETURN_IF_ERROR(check_share(parts, options_.size));
  DSV4RT_ON_DEVICE(*device_);
  const cudaStream_t beside = share_->stream.get();
  // Memory first: what fails then has told the others nothing.
  const ShareCalls calls = share_calls(parts, options_.rank, options_.size, static_cast<std::byte*>(packed_));
  ShareHeader header = share_header(parts, place);
  if (packed_ == nullptr) header.parts = ~header.parts;  // ranks pack, or they do not
  DSV4RT_RETURN_IF_ERROR(exchange_header(header));
  DSV4RT_CUDA_TRY(cudaEventRecord(share_->ready.get(), static_cast<cudaStream_t>(stream)));
  DSV4RT_CUDA_TRY(cudaStreamWaitEvent(beside, share_->ready.get()));
  DSV4RT_RETURN_IF_ERROR(copy_regions(calls.packed, beside));
  // Groups end where they do on every rank.
  const std::size_t most = share_group_parts(options_.size);
  for (std::span<const SharedPart> left(calls.parts); !left.empty(); left = left.subspan(std::min(most, left.size()))) {
    DSV4RT_RETURN_IF_ERROR(enqueue("begin_share", [&] {
      return enqueue_share(nccl_, left.first(std::min(most, left.size())), options_.rank, options_.size, comm_, beside);
    }));
  }
  DSV4RT_RETURN_IF_ERROR(copy_regions(calls.unpacked, beside));
  DSV4RT_CUDA_TRY(cudaEventRecord(share_->done.get(), beside));
  sharing_ = true;
  return {};
}

Status NcclCommunicator::end_share(void* stream) {
  DSV4RT_ON_DEVICE(*device_);
  if (std::exchange(sharing_, false)) {
    DSV4RT_CUDA_TRY(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), share_->done.get()));
  }
  return state();
}

Status NcclCommunicator::all_gather_host(const void* part, void* all, std::int64_t bytes, double deadline_seconds) {
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  DSV4RT_RETURN_IF_ERROR(check_deadline("all_gather_host: deadline_seconds", deadline_seconds));
  DSV4RT_RETURN_IF_ERROR(check_gather(part, all, bytes));
  if (bytes == 0) return {};
  DSV4RT_ON_DEVICE(*device_);
  DSV4RT_ASSIGN_OR_RETURN(const Stream stream, create_stream());
  const auto part_bytes = static_cast<std::size_t>(bytes);
  const std::size_t all_bytes = part_bytes * static_cast<std::size_t>(options_.size);
  void* staging = nullptr;  // [size, bytes], then the part
  DSV4RT_CUDA_TRY(cudaMalloc(&staging, all_bytes + part_bytes));
  void* own = static_cast<std::byte*>(staging) + all_bytes;
  const auto exchange = [&]() -> Status {
    DSV4RT_CUDA_TRY(cudaMemcpyAsync(own, part, part_bytes, cudaMemcpyHostToDevice, stream.get()));
    DSV4RT_RETURN_IF_ERROR(enqueue("all_gather_host", [&] {
      return nccl_.ncclAllGather(own, staging, part_bytes, ncclUint8, comm_, stream.get());
    }));
    const Clock::time_point end_of_wait = after(deadline_seconds);
    cudaError_t ready = cudaErrorNotReady;
    while (under_way(ready = cudaStreamQuery(stream.get()))) {
      if (Clock::now() >= end_of_wait) {
        const std::lock_guard lock(comm_mutex_);
        return lose("all_gather_host: not every rank took part within " + std::to_string(deadline_seconds) + " s");
      }
      std::this_thread::sleep_for(kPause);
    }
    DSV4RT_RETURN_IF_ERROR(DSV4RT_CUDA_STATUS(ready));
    DSV4RT_CUDA_TRY(cudaMemcpyAsync(all, staging, all_bytes, cudaMemcpyDeviceToHost, stream.get()));
    return DSV4RT_CUDA_STATUS(cudaStreamSynchronize(stream.get()));
  };
  Status status = exchange();
  // Given up work may still run: its memory stays where it is.
  if (status.code() != StatusCode::kBackendLost) static_cast<void>(cudaFree(staging));
  return status;
}

Status NcclCommunicator::watch(void* stream) {
  DSV4RT_RETURN_IF_ERROR(lost_.status());
  DSV4RT_ON_DEVICE(*device_);
  return watch_->mark(static_cast<cudaStream_t>(stream));
}

Status check_options(const NcclOptions& options) {
  DSV4RT_RETURN_IF_ERROR(check_deadline("nccl: deadline_seconds", options.deadline_seconds));
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return {StatusCode::kInvalidArgument, "nccl: rank " + std::to_string(options.rank) + " of " +
                                              std::to_string(options.size) +
                                              "; accepted: 0 up to the number of ranks, which is 1 or more"};
  }
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return {StatusCode::kUnsupported, std::string("nccl: no usable CUDA device: ") + cudaGetErrorString(error)};
  }
  if (options.device >= 0 && options.device < devices) return {};
  return {StatusCode::kInvalidArgument, "nccl: device " + std::to_string(options.device) +
                                            "; this machine has devices 0 to " + std::to_string(devices - 1) +
                                            ", one for each rank on it"};
}

}  // namespace

Result<NcclUniqueId> make_nccl_unique_id() {
  DSV4RT_ASSIGN_OR_RETURN(const Nccl nccl, load_nccl());
  ncclUniqueId id;
  if (const ncclResult_t result = nccl.ncclGetUniqueId(&id); result != ncclSuccess) {
    return Status{StatusCode::kFaulted, std::string("nccl: ncclGetUniqueId: ") + nccl.ncclGetErrorString(result) +
                                            ": " + nccl.ncclGetLastError(nullptr)};
  }
  NcclUniqueId bytes;
  std::memcpy(bytes.data(), &id, bytes.size());
  return bytes;
}

Result<std::shared_ptr<Communicator>> make_nccl_communicator(const NcclOptions& options) {
  DSV4RT_ASSIGN_OR_RETURN(const Nccl nccl, load_nccl());
  DSV4RT_RETURN_IF_ERROR(check_options(options));
  DSV4RT_ASSIGN_OR_RETURN(std::unique_ptr<const CudaDevice> device, CudaDevice::create(options.device));
  auto made = std::make_shared<NcclCommunicator>(nccl, std::move(device), options);
  DSV4RT_RETURN_IF_ERROR(made->connect());
  return std::shared_ptr<Communicator>(std::move(made));
}

}  // namespace dsv4rt::cuda
