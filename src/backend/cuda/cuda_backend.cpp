#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cuda_runtime_api.h>
#include <optional>
#include <string>

#include <nvtx3/nvToolsExt.h>

#include "backend/attend_weights.h"
#include "backend/cuda/cuda_devices.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/captured_graph.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/device/event_marks.h"
#include "backend/cuda/device/event_read_backs.h"
#include "backend/cuda/device/handles.h"
#include "backend/cuda/device/kernel_image.h"
#include "backend/cuda/device/step_upload.h"
#include "backend/cuda/device_ops.h"
#include "backend/cuda/kernels/attend/dense_splits.h"
#include "backend/cuda/kernels/attend/even_plan.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"
#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"
#include "backend/cuda/kernels/linear/linear_dispatch.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/step_shifts/device_step_shifts.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

using cuda::CapturedGraph;
using cuda::create_stream;
using cuda::CublasLtLinear;
using cuda::CudaDevice;
using cuda::CudaOps;
using cuda::CurrentDevice;
using cuda::DeviceOps;
using cuda::EventMarks;
using cuda::Scratch;
using cuda::StepUpload;
using cuda::Stream;

// Of the widest operation but products of cuBLASLt: they run one after the other. Decoded rows of prompts lie there
// where others have left them room.
std::int64_t operation_scratch_bytes(const StepShapes& shapes) {
  constexpr std::int64_t kScoreBytes = std::int64_t{256} << 20;
  constexpr std::int64_t kScannedRows = 1024;  // scans write whole tiles of at most so many rows
  std::int64_t bytes = 0;
  // Linears run one after the other: the rounded input of the widest.
  for (const LinearGroupShape& linear : shapes.linears) {
    bytes = std::max(bytes, shapes.max_tokens * linear.in_features * std::int64_t{sizeof(bf16)});
  }
  // Splits of attention over many rows, of as many tokens as fit.
  for (const CompressedRowsShape& rows : shapes.compressed) {
    const std::int64_t most_rows = shapes.window + shapes.max_context_tokens / rows.ratio;
    if (rows.index_heads > 0 || most_rows <= kMaximumRows) continue;
    const std::int64_t token_bytes =
        ceil_div<std::int64_t>(shapes.heads, 64) * cuda::DenseSplits::most(most_rows) * cuda::kSplitBytes;
    bytes = std::max(bytes, std::max(token_bytes, std::min(token_bytes * shapes.max_tokens, cuda::kMostDenseBytes)));
  }
  // What blocks hand on of selected rows' tokens, where there may be more of these than multiprocessors.
  for (const CompressedRowsShape& rows : shapes.compressed) {
    constexpr std::int64_t kMultiprocessors = 132;  // an H200's
    const std::int64_t items = shapes.max_tokens * ceil_div<std::int64_t>(shapes.heads, 64);
    if (rows.index_heads > 0 && items > kMultiprocessors) bytes = std::max(bytes, cuda::kMostHandedBytes);
  }
  // Index scores of as many tokens as fit, never of a whole prompt at a long context.
  for (const CompressedRowsShape& rows : shapes.compressed) {
    if (rows.index_heads == 0) continue;
    const std::int64_t token_bytes =
        (shapes.max_context_tokens / rows.ratio + kScannedRows) * std::int64_t{sizeof(float)};
    bytes = std::max(bytes, std::max(token_bytes, std::min(token_bytes * shapes.max_tokens, kScoreBytes)));
  }
  return bytes;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<const CudaDevice> device, Stream owned, cudaStream_t stream, LinearPrecision precision,
              std::unique_ptr<CublasLtLinear> library, std::function<void(std::string_view)> warn)
      : device_(std::move(device)),
        owned_stream_(std::move(owned)),
        stream_(stream),
        linear_precision_(cuda::served_precision(device_->has_sm90a(), library != nullptr, precision)),
        ops_(std::in_place, *device_, stream_, scratch_, std::move(library), std::move(warn)),
        device_ops_(*device_, *ops_) {}
  ~CudaBackend() override {
    const CurrentDevice current(*device_);
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaFree(scratch_memory_));
    ops_.reset();
    step_upload_.reset();
    owned_stream_ = Stream();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "cuda"; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return false; }

  [[nodiscard]] bool is_device_memory(const void* address) const noexcept override {
    return device_of(address).has_value();
  }
  [[nodiscard]] bool is_own_memory(const void* address) const noexcept override {
    return device_of(address) == device_->ordinal();
  }

  Result<Buffer> allocate(std::size_t bytes, std::string_view purpose) override {
    DSV4RT_ON_DEVICE(*device_);
    void* data = nullptr;
    if (bytes > 0) DSV4RT_RETURN_IF_ERROR(device_allocate(bytes, purpose, &data));
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }

  Status upload(void* target, const void* host_source, std::size_t bytes) override {
    DSV4RT_ON_DEVICE(*device_);
    DSV4RT_CUDA_TRY(cudaMemcpyAsync(target, host_source, bytes, cudaMemcpyHostToDevice, stream_));
    DSV4RT_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
  }

  Status download(void* host_target, const void* source, std::size_t bytes) override {
    DSV4RT_ON_DEVICE(*device_);
    DSV4RT_CUDA_TRY(cudaMemcpyAsync(host_target, source, bytes, cudaMemcpyDeviceToHost, stream_));
    DSV4RT_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
  }

  Status copy(void* target, const void* source, std::size_t bytes) override {
    DSV4RT_ON_DEVICE(*device_);
    DSV4RT_CUDA_TRY(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream_));
    return {};
  }

  Status synchronize() override {
    DSV4RT_ON_DEVICE(*device_);
    return DSV4RT_CUDA_STATUS(cudaStreamSynchronize(stream_));
  }

  Status reserve_step_upload(std::size_t bytes) override {
    DSV4RT_ON_DEVICE(*device_);
    return step_upload_->reserve(bytes, kStepUploads);
  }
  Status upload_step(void* target, const void* host_source, std::size_t bytes) override {
    DSV4RT_ON_DEVICE(*device_);
    return step_upload_->enqueue(target, host_source, bytes, stream_);
  }

  [[nodiscard]] void* native_stream() const noexcept override { return stream_; }

  [[nodiscard]] bool can_capture() const noexcept override { return true; }
  Status begin_capture() override {
    DSV4RT_ON_DEVICE(*device_);
    return cuda::begin_graph_capture(stream_);
  }
  Result<std::unique_ptr<CapturedWork>> end_capture() override {
    // The capture ends in every case; what it has recorded needs the device.
    const CurrentDevice current(*device_);
    auto captured = cuda::end_graph_capture(stream_);
    DSV4RT_RETURN_IF_ERROR(current.status());
    return captured;
  }
  [[nodiscard]] std::int64_t recorded_nodes() const noexcept override {
    const CurrentDevice current(*device_);
    return cuda::nodes_of_capture(stream_);
  }
  Status launch(const CapturedWork& work) override {
    DSV4RT_ON_DEVICE(*device_);
    return DSV4RT_CUDA_STATUS(cudaGraphLaunch(static_cast<const CapturedGraph&>(work).exec(), stream_));
  }

  void push_range(const char* name) noexcept override { nvtxRangePushA(name); }
  void pop_range() noexcept override { nvtxRangePop(); }
  Result<std::unique_ptr<TimeMarks>> create_time_marks() override {
    return std::unique_ptr<TimeMarks>(std::make_unique<EventMarks>(*device_, stream_));
  }

  Result<std::unique_ptr<ReadBacks>> create_read_backs(std::span<std::byte> memory, std::size_t places) override {
    DSV4RT_ON_DEVICE(*device_);
    return cuda::EventReadBacks::create(*device_, stream_, memory, places);
  }

  Result<std::unique_ptr<StepShifts>> create_step_shifts(std::span<std::int32_t> rejected,
                                                         const StepShiftLimits& limits) override {
    return std::unique_ptr<StepShifts>(std::make_unique<cuda::DeviceStepShifts>(*device_, stream_, rejected, limits));
  }

  [[nodiscard]] std::int64_t scratch_bytes(const StepShapes& shapes) const override {
    std::int64_t bytes = operation_scratch_bytes(shapes);
    if (holds_rows()) {
      for (const LinearGroupShape& linear : shapes.linears) {
        bytes = std::max(bytes, CublasLtLinear::scratch_bytes(shapes.max_tokens, linear.in_features));
      }
    }
    return cuda::with_states(bytes);
  }
  Status reserve_scratch(std::size_t bytes) override {
    DSV4RT_ON_DEVICE(*device_);
    DSV4RT_CUDA_TRY(cudaStreamSynchronize(stream_));
    DSV4RT_CUDA_TRY(cudaFree(scratch_memory_));
    scratch_memory_ = nullptr;
    scratch_ = Scratch();
    DSV4RT_RETURN_IF_ERROR(device_allocate(bytes, "kernel scratch", &scratch_memory_));
    // The last part is zero already, and stays so.
    auto* const data = static_cast<std::byte*>(scratch_memory_);
    const cuda::ScratchParts parts = cuda::scratch_parts(bytes);
    scratch_ = Scratch(data, parts.operation_bytes, {data + parts.operation_bytes, parts.zero_bytes});
    return {};
  }

  [[nodiscard]] std::int64_t packed_bytes(const HostLinear& weight) const override {
    return Backend::packed_bytes(weight) + (holds_rows() ? cuda::row_copy_bytes(weight) : 0);
  }
  Result<std::unique_ptr<PackedLinear>> pack_linear(const HostLinear& weight) override {
    DSV4RT_ON_DEVICE(*device_);
    return cuda::pack_linear(*this, *device_, weight, linear_precision_);
  }
  [[nodiscard]] LinearPrecision linear_precision() const noexcept override { return linear_precision_; }

  Ops& ops() noexcept override { return device_ops_; }
  RowOps& row_ops() noexcept override { return device_ops_; }

 private:
  // The device is current.
  Status device_allocate(std::size_t bytes, std::string_view purpose, void** data) {
    const cudaError_t error = cudaMalloc(data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // an allocation that does not fit leaves the context usable
      std::size_t free = 0;
      std::size_t total = 0;
      static_cast<void>(cudaMemGetInfo(&free, &total));
      return {StatusCode::kResourceExhausted, std::string(purpose) + ": " + std::to_string(bytes) +
                                                  " B of device memory; " + std::to_string(free) + " of " +
                                                  std::to_string(total) + " B are free"};
    }
    DSV4RT_RETURN_IF_ERROR(DSV4RT_CUDA_STATUS(error));
    return DSV4RT_CUDA_STATUS(cudaMemsetAsync(*data, 0, bytes, stream_));
  }

  // The ordinal of the device whose memory the address is in, if any.
  [[nodiscard]] std::optional<int> device_of(const void* address) const noexcept {
    const CurrentDevice current(*device_);
    cudaPointerAttributes attributes{};
    if (address == nullptr || !current.status().ok() || cudaPointerGetAttributes(&attributes, address) != cudaSuccess ||
        attributes.type != cudaMemoryTypeDevice) {
      return std::nullopt;
    }
    return attributes.device;
  }

  // Stream order makes the memory safe to free only when its last user ran; freeing waits for that.
  void release(std::byte* data, std::size_t) noexcept override {
    const CurrentDevice current(*device_);
    static_cast<void>(cudaFree(data));
  }

  // Of NVFP4 weights, for cuBLASLt.
  [[nodiscard]] bool holds_rows() const noexcept { return linear_precision_ == LinearPrecision::kNvfp4; }

  std::unique_ptr<const CudaDevice> device_;
  Stream owned_stream_;  // empty when the caller gave one
  cudaStream_t stream_;
  LinearPrecision linear_precision_;  // what is served
  std::optional<StepUpload> step_upload_{std::in_place};
  void* scratch_memory_ = nullptr;
  Scratch scratch_;
  std::optional<CudaOps> ops_;  // gone before the destructor gives the caller's device back
  DeviceOps device_ops_;
};

}  // namespace

std::int64_t cuda_scratch_bytes(const StepShapes& shapes) {
  return cuda::with_states(operation_scratch_bytes(shapes));
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaBackendOptions& options) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return Status{StatusCode::kUnsupported, std::string("backend cuda: no usable CUDA device: ") +
                                                cudaGetErrorString(error) + "; use the cpu backend"};
  }
  if (options.device < 0 || options.device >= devices) {
    return Status{StatusCode::kInvalidArgument, "backend cuda: device " + std::to_string(options.device) +
                                                    "; this machine has devices 0 to " + std::to_string(devices - 1)};
  }
  cudaDeviceProp properties{};
  DSV4RT_CUDA_TRY(cudaGetDeviceProperties(&properties, options.device));
  const auto usable = [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(check_compute_capability(properties.name, properties.major, properties.minor));
    return cuda::check_kernel_image(options.device);
  }();
  if (!usable.ok()) return Status{usable.code(), "backend cuda: " + usable.message()};
  DSV4RT_ASSIGN_OR_RETURN(std::unique_ptr<const CudaDevice> device, CudaDevice::create(options.device));
  DSV4RT_ON_DEVICE(*device);
  Stream owned;
  auto* stream = static_cast<cudaStream_t>(options.stream);
  if (stream == nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(owned, create_stream());
    stream = owned.get();
  }
  std::unique_ptr<CublasLtLinear> library;
  if (options.linear_precision == LinearPrecision::kNvfp4) {
    auto created = CublasLtLinear::create(device->facts().compute_major);
    if (!created.ok()) {
      return Status{created.status().code(), "backend cuda: linear_precision nvfp4: " + created.status().message()};
    }
    library = std::move(created).value();
  }
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(
      std::move(device), std::move(owned), stream, options.linear_precision, std::move(library), options.on_warning));
}

}  // namespace dsv4rt
