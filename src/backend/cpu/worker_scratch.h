// Scratch memory of the CPU operations: grown at first need, then reused, so that a steady sequence of
// steps allocates nothing. Contents do not survive between operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt::cpu {

class WorkerScratch {
 public:
  explicit WorkerScratch(int workers) : parts_(static_cast<std::size_t>(workers) + 1) {}

  // Makes at least `values` floats available to every worker, and `shared_values` to all together.
  // Called by the thread that issues an operation, before the parallel part.
  // kResourceExhausted naming `purpose` and the bytes asked.
  Status reserve(std::int64_t values, std::int64_t shared_values, const char* purpose) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::int64_t wanted = i == 0 ? shared_values : values;
      if (parts_[i].values >= wanted) continue;
      const auto bytes = static_cast<std::size_t>(wanted) * sizeof(float);
      auto* data = static_cast<float*>(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow));
      if (data == nullptr) {
        return {StatusCode::kResourceExhausted,
                std::string(purpose) + ": no memory for " + std::to_string(bytes) + " bytes of scratch"};
      }
      // Kernels may read past the rows they were given, up to a tile: never uninitialized memory.
      for (std::int64_t v = 0; v < wanted; ++v) data[v] = 0.0f;
      parts_[i].data.reset(data);
      parts_[i].values = wanted;
    }
    return {};
  }

  [[nodiscard]] float* of_worker(int worker) const { return parts_[static_cast<std::size_t>(worker) + 1].data.get(); }
  [[nodiscard]] float* shared() const { return parts_[0].data.get(); }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(float* data) const { ::operator delete (data, std::align_val_t{kAlignment}); }
  };
  struct Part {
    std::unique_ptr<float, Free> data;
    std::int64_t values = 0;
  };
  std::vector<Part> parts_;  // [0] shared, then one per worker
};

}  // namespace dsv4rt::cpu
