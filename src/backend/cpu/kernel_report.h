// Tells which kernels of the CPU backend serve on this machine.
#pragma once

#include <vector>

#include "backend/cpu/cpu_features.h"
#include "backend/kernel_use.h"

namespace dsv4rt {

// Every model and every size of step is served alike.
std::vector<KernelUse> cpu_kernel_uses(cpu::IsaLevel isa);

}  // namespace dsv4rt
