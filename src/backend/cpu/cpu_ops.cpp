#include "backend/cpu/cpu_ops.h"

#include "backend/cpu/cpu_linear.h"

namespace dsv4rt::cpu {

CpuOps::CpuOps(const ThreadTeam& team, IsaLevel isa) : team_(team), isa_(isa) {}
CpuOps::~CpuOps() = default;

}  // namespace dsv4rt::cpu
