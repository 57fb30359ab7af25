// How an operation divides the scratch memory: a part that its workers share, then one part for each of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/scratch.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cpu {

// Floats of every part, cache-line aligned. Parts hold what earlier operations left: kernels may read whole tiles
// beyond the rows they were given, but nothing of what they read there reaches a result.
class WorkerScratch {
 public:
  static std::int64_t bytes(int workers, std::int64_t shared_values, std::int64_t worker_values) {
    return (padded(shared_values) + workers * padded(worker_values)) * static_cast<std::int64_t>(sizeof(float));
  }

  // kResourceExhausted naming the operation where the scratch memory is too small.
  static Result<WorkerScratch> take(const Scratch& scratch, int workers, std::int64_t shared_values,
                                    std::int64_t worker_values, const char* operation) {
    const auto wanted = static_cast<std::size_t>(bytes(workers, shared_values, worker_values));
    DSV4RT_ASSIGN_OR_RETURN(std::byte* const data, scratch.take(wanted, operation));
    return WorkerScratch(reinterpret_cast<float*>(data), padded(shared_values), padded(worker_values));
  }

  [[nodiscard]] float* shared() const { return shared_; }
  [[nodiscard]] float* of_worker(int worker) const { return workers_ + worker * worker_values_; }

 private:
  WorkerScratch(float* data, std::int64_t shared_values, std::int64_t worker_values)
      : shared_(data), workers_(data + shared_values), worker_values_(worker_values) {}

  static std::int64_t padded(std::int64_t values) {
    constexpr std::int64_t kLineFloats = 16;
    return round_up<std::int64_t>(values, kLineFloats);
  }

  float* shared_;
  float* workers_;
  std::int64_t worker_values_;
};

}  // namespace dsv4rt::cpu
