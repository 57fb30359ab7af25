// What this library knows of one device. A backend makes one object and gives it to everything that launches; no other
// code asks the driver about devices, and nothing known of a device outlives its backend.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "backend/cuda/device/device_driver.h"
#include "backend/cuda/device/device_facts.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

class CudaDevice {
 public:
  // Asks the driver for the facts; the calling thread's current device stays as it was. The driver outlives the object.
  static Result<std::unique_ptr<CudaDevice>> create(int ordinal, DeviceDriver& driver = runtime_driver());
  // create() makes them of what the driver says.
  CudaDevice(const DeviceFacts& facts, DeviceDriver& driver) : facts_(facts), driver_(driver) {}

  [[nodiscard]] const DeviceFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] DeviceDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] int ordinal() const noexcept { return facts_.ordinal; }
  [[nodiscard]] int multiprocessors() const noexcept { return facts_.multiprocessors; }
  [[nodiscard]] int block_shared_bytes() const noexcept { return facts_.block_shared_bytes; }
  [[nodiscard]] bool has_sm90a() const noexcept { return facts_.has_sm90a; }

  // The functions below expect the device to be current (CurrentDevice). They may be called from any thread and
  // allocate nothing. What the driver has answered is kept, failures are not.

  // Lets blocks of `kernel` have so much dynamic shared memory; the driver is told once. Every caller names the same
  // number for a kernel, its largest: another backend on the device may have set it since. kUnsupported beyond
  // block_shared_bytes().
  Status prepare(const void* kernel, std::size_t dynamic_shared_bytes) const;
  template <class... Params>
  Status prepare(void (*kernel)(Params...), std::size_t dynamic_shared_bytes) const {
    return prepare(reinterpret_cast<const void*>(kernel), dynamic_shared_bytes);
  }

  // Clusters of so many blocks that the device runs at once, each block with so many threads and so much dynamic shared
  // memory; 0 where it runs none. Multiprocessors come in groups that clusters do not cross, so this is less than
  // multiprocessors() / cluster_blocks. Prepares the kernel.
  [[nodiscard]] Result<int> clusters_at_once(const void* kernel, int cluster_blocks, int threads,
                                             std::size_t shared_bytes) const;
  template <class... Params>
  [[nodiscard]] Result<int> clusters_at_once(void (*kernel)(Params...), int cluster_blocks, int threads,
                                             std::size_t shared_bytes) const {
    return clusters_at_once(reinterpret_cast<const void*>(kernel), cluster_blocks, threads, shared_bytes);
  }

 private:
  struct Prepared {
    const void* kernel = nullptr;
    std::size_t bytes = 0;
  };
  struct Clusters {
    const void* kernel = nullptr;
    int blocks = 0;
    int threads = 0;
    std::size_t shared_bytes = 0;
    int at_once = 0;
  };
  // More than there are kernels and shapes of them. Beyond these the driver is asked every time.
  static constexpr std::size_t kMostKept = 128;

  Status prepare_locked(const void* kernel, std::size_t bytes) const;

  DeviceFacts facts_;
  DeviceDriver& driver_;
  mutable std::mutex mutex_;
  mutable std::array<Prepared, kMostKept> prepared_;
  mutable std::size_t prepared_count_ = 0;
  mutable std::array<Clusters, kMostKept> clusters_;
  mutable std::size_t clusters_count_ = 0;
};

}  // namespace dsv4rt::cuda
