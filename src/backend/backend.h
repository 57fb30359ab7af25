// Backend: where cache bytes and weights live and who computes on them.
//
// A backend owns memory and one in-order stream of work. All Ops calls of one backend are issued
// from one thread; they are enqueued in order and may return before they ran (the CPU backend runs
// them at once). download() waits for everything enqueued before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backend/host_time_marks.h"
#include "backend/ops.h"
#include "backend/read_backs.h"
#include "backend/step_shapes.h"
#include "backend/step_shifts.h"
#include "checkpoint/host_linear.h"
#include "dsv4rt/linear_precision.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

class Backend;
class RowOps;

// Step uploads that may be under way at once: how far the host may run ahead.
inline constexpr int kStepUploads = 8;

// Owner of backend memory, 256-byte aligned. Movable; frees on destruction. The backend outlives it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, std::byte* data, std::size_t bytes) : backend_(backend), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Backend* backend_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Work that was recorded once and runs again with the same pointers. Made by Backend::end_capture;
// the backend outlives it.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  [[nodiscard]] std::int64_t nodes() const noexcept { return nodes_; }  // kernels, copies, ...

 protected:
  std::int64_t nodes_ = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // Whether backend memory is host memory.
  [[nodiscard]] virtual bool uses_host_memory() const noexcept = 0;
  // What the addresses of a caller's rows are multiples of: devices read 16 bytes at a time.
  [[nodiscard]] virtual std::size_t row_alignment() const noexcept { return uses_host_memory() ? alignof(bf16) : 16; }

  // Whether the host cannot read at this address, which may be any, since it is memory of a device.
  [[nodiscard]] virtual bool is_device_memory(const void* address) const noexcept {
    static_cast<void>(address);
    return false;
  }

  // Whether this backend's kernels may read at this address: not the memory of another device. With host memory nobody
  // can tell.
  [[nodiscard]] virtual bool is_own_memory(const void* address) const noexcept { return address != nullptr; }

  // Zero-filled memory. kResourceExhausted naming `purpose` and the bytes asked. Only at start.
  virtual Result<Buffer> allocate(std::size_t bytes, std::string_view purpose) = 0;
  // Both wait for what was enqueued before and for the copy: the host's memory may be freed or reused on return, also
  // where a device reads it by itself (page-locked memory, and platforms on which a device reads every page of the
  // host).
  virtual Status upload(void* target, const void* host_source, std::size_t bytes) = 0;
  virtual Status download(void* host_target, const void* source, std::size_t bytes) = 0;
  // Copies within backend memory, in order; can be captured. The ranges do not overlap.
  virtual Status copy(void* target, const void* source, std::size_t bytes) = 0;
  // Waits for everything enqueued and reports what failed in it.
  virtual Status synchronize() { return {}; }

  // Upload of what changes with every step, at most as many bytes as were reserved at start. The source
  // may be reused on return. Does not wait for earlier work, unless kStepUploads uploads are still to run.
  virtual Status reserve_step_upload(std::size_t bytes) {
    static_cast<void>(bytes);
    return {};
  }
  virtual Status upload_step(void* target, const void* host_source, std::size_t bytes) {
    return upload(target, host_source, bytes);
  }

  // The in-order stream as the platform's own handle (cudaStream_t); null where there is none.
  [[nodiscard]] virtual void* native_stream() const noexcept { return nullptr; }

  // Recording: what is enqueued between begin_capture and end_capture does not run, it becomes the
  // captured work. upload, download and synchronize are not possible in between. end_capture is called
  // in every case; it fails (kFailedPrecondition) when something was enqueued that cannot be captured.
  [[nodiscard]] virtual bool can_capture() const noexcept { return false; }
  virtual Status begin_capture() { return no_capture(); }
  virtual Result<std::unique_ptr<CapturedWork>> end_capture() { return no_capture(); }
  // Nodes recorded since begin_capture; 0 outside a capture.
  [[nodiscard]] virtual std::int64_t recorded_nodes() const noexcept { return 0; }
  virtual Status launch(const CapturedWork& work) {
    static_cast<void>(work);
    return no_capture();
  }

  // `memory` lies in memory of this backend and outlives the object, which takes all it needs now.
  virtual Result<std::unique_ptr<ReadBacks>> create_read_backs(std::span<std::byte> memory, std::size_t places) {
    return std::unique_ptr<ReadBacks>(std::make_unique<HostReadBacks>(memory, places));
  }

  // `rejected`, a number for every slot, lies in memory of this backend and outlives the object.
  virtual Result<std::unique_ptr<StepShifts>> create_step_shifts(std::span<std::int32_t> rejected,
                                                                 const StepShiftLimits& limits) {
    return std::unique_ptr<StepShifts>(std::make_unique<HostStepShifts>(rejected, limits));
  }

  // What is enqueued until the matching pop belongs to a range of this name, which profilers show. Ranges nest.
  virtual void push_range(const char* name) noexcept { static_cast<void>(name); }
  virtual void pop_range() noexcept {}
  virtual Result<std::unique_ptr<TimeMarks>> create_time_marks() {
    return std::unique_ptr<TimeMarks>(std::make_unique<HostTimeMarks>());
  }

  // Memory that pack_linear takes for a matrix.
  [[nodiscard]] virtual std::int64_t packed_bytes(const HostLinear& weight) const {
    return static_cast<std::int64_t>(weight.weight.size() + weight.scale.size());
  }
  // Repacks a checkpoint matrix for this backend; keeps its precision (FP8 stays FP8). The source
  // may be unmapped afterwards. Errors: kUnsupported/kBadInput naming the tensor.
  virtual Result<std::unique_ptr<PackedLinear>> pack_linear(const HostLinear& weight) = 0;
  // How FP8 weights with rounded inputs are multiplied here, whatever was asked for.
  [[nodiscard]] virtual LinearPrecision linear_precision() const noexcept { return LinearPrecision::kExact; }

  // What the largest operation of such steps takes of the memory below.
  [[nodiscard]] virtual std::int64_t scratch_bytes(const StepShapes& shapes) const = 0;
  // Memory for intermediates of single operations. Only at start: an operation that needs more fails with
  // kResourceExhausted, none takes memory by itself.
  virtual Status reserve_scratch(std::size_t bytes) = 0;

  virtual Ops& ops() noexcept = 0;
  // The same object with the parts of its operations; not for layers.
  virtual RowOps& row_ops() noexcept = 0;

 private:
  friend class Buffer;
  [[nodiscard]] Status no_capture() const {
    return {StatusCode::kUnsupported, "backend " + std::string(name()) + ": work cannot be captured"};
  }
  virtual void release(std::byte* data, std::size_t bytes) noexcept = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) backend_->release(data_, bytes_);
}

}  // namespace dsv4rt
