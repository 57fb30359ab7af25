// Host values in backend memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

// A copy of host values in backend memory. The backend outlives it.
template <class T>
class BackendArray {
 public:
  BackendArray() = default;
  BackendArray(Backend& backend, std::span<const T> values) : backend_(&backend), count_(values.size()) {
    auto buffer = backend.allocate(values.size_bytes(), "test array");
    EXPECT_OK(buffer);
    memory_ = std::move(buffer).value();
    EXPECT_OK(backend.upload(memory_.data(), values.data(), values.size_bytes()));
  }
  BackendArray(Backend& backend, const std::vector<T>& values) : BackendArray(backend, std::span<const T>(values)) {}
  // `count` zeros.
  BackendArray(Backend& backend, std::size_t count) : BackendArray(backend, std::vector<T>(count)) {}

  [[nodiscard]] T* data() const { return memory_.template as<T>(); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::vector<T> download() const {
    std::vector<T> values(count_);
    EXPECT_OK(backend_->download(values.data(), memory_.data(), count_ * sizeof(T)));
    return values;
  }

 private:
  Backend* backend_ = nullptr;
  std::size_t count_ = 0;
  Buffer memory_;
};

}  // namespace dsv4rt::test
