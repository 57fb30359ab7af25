// The CUDA runtime on the host (host_runtime.cpp), under the stand-in for NCCL.
#pragma once

#include "gpu/nccl/stand_in/stand_in_nccl.h"

namespace dsv4rt::test {

// Tells the stand-in for NCCL how this runtime copies and waits. Before its first use.
void use_host_runtime();

bool is_stuck(const void* stream);

}  // namespace dsv4rt::test
