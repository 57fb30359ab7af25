// The device side of programmatic dependent launch (launch_pdl.h). allow_dependents() and wait_for_predecessors() are
// no-ops in a kernel launched without it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4rt::cuda {

// Lets the next kernel of the stream start once every block of this one has called it or ended.
__device__ inline void allow_dependents() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

// The value is computed by here. Arithmetic that leads to the first access behind a wait is moved behind it, too, as
// far as the compiler can see, and then every block of the kernel waits for that. A trap that depends on the value
// stays where it is; it takes two instructions, for a value that never is.
__device__ inline void have_ready(std::int32_t& value) {
  asm volatile("{\n.reg .pred never;\nsetp.eq.s32 never, %0, 0x80000001;\n@never trap;\n}\n" : "+r"(value));
}
template <class T>
__device__ inline void have_ready(T*& pointer) {  // to global memory, and known as such behind it
  std::size_t address = __cvta_generic_to_global(pointer);
  asm volatile("{\n.reg .pred never;\nsetp.eq.u64 never, %0, 0xfffffffffffffff1;\n@never trap;\n}\n" : "+l"(address));
  pointer = static_cast<T*>(__cvta_global_to_generic(address));
}

// Returns when all earlier work of the stream has ended and its writes are visible.
__device__ inline void wait_for_predecessors() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

}  // namespace dsv4rt::cuda
