// The device side of programmatic dependent launch (launch_pdl.h). Both are no-ops in a kernel launched
// without it.
#pragma once

namespace dsv4rt::cuda {

// Lets the next kernel of the stream start once every block of this one has called it or ended.
__device__ inline void allow_dependents() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

// Returns when all earlier work of the stream has ended and its writes are visible.
__device__ inline void wait_for_predecessors() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

}  // namespace dsv4rt::cuda
