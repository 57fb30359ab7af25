// What ranks of device memory compare of their shares: NCCL would wait for ever, or bring the wrong rows, where they
// differ. Headers go from rank to rank on the stream before the parts, and the host looks at them when they have come:
// nothing waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/device/handles.h"
#include "dist/share_header.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

class ShareGuard {
 public:
  // The device is current.
  static Result<std::unique_ptr<ShareGuard>> create(std::int32_t rank, std::int32_t ranks);
  ~ShareGuard();
  ShareGuard(const ShareGuard&) = delete;
  ShareGuard& operator=(const ShareGuard&) = delete;

  // Whether there is a place for another header: not while as many shares as there are places have yet to run.
  [[nodiscard]] bool has_place();
  // Enqueues the exchange of a header; has_place(). `gather` enqueues an all-gather of sizeof(ShareHeader) bytes of
  // device memory on the stream.
  using Gather = std::function<Status(const void* own, void* all)>;
  Status exchange(const ShareHeader& own, const Gather& gather, cudaStream_t stream);

  // In what the first share differed of those whose headers have come; empty if none did. Any thread.
  [[nodiscard]] std::string difference();

 private:
  ShareGuard(std::int32_t rank, std::int32_t ranks) : rank_(rank), ranks_(static_cast<std::size_t>(ranks)) {}
  [[nodiscard]] ShareHeader* place(std::size_t number) const { return host_ + number % kPlaces * (ranks_ + 1); }

  // Shares of eight steps of 64 layers, rows and outputs.
  static constexpr std::size_t kPlaces = 1024;
  const std::int32_t rank_;
  const std::size_t ranks_;
  ShareHeader* host_ = nullptr;    // [kPlaces, ranks + 1]: those of all ranks, and what this rank gives
  ShareHeader* device_ = nullptr;  // [ranks + 1]
  std::mutex mutex_;
  std::vector<Event> come_;  // [kPlaces]
  std::size_t begun_ = 0;    // exchanges since the beginning
  std::size_t looked_at_ = 0;
  std::string difference_;
};

}  // namespace dsv4rt::cuda
