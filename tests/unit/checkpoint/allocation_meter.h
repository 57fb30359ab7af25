// Measures heap use of a piece of code: this program's operator new counts the bytes it hands out.
#pragma once

#include <cstddef>

namespace dsv4rt {

class AllocationMeter {
 public:
  AllocationMeter();
  // Most bytes that were live at one time since construction, beyond those live at construction.
  [[nodiscard]] std::size_t peak_bytes() const;

 private:
  std::size_t base_bytes_;
};

// While alive, every allocation of more than `limit_bytes` fails with std::bad_alloc.
class AllocationLimit {
 public:
  explicit AllocationLimit(std::size_t limit_bytes);
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;
  ~AllocationLimit();
};

}  // namespace dsv4rt
