#include "backend/cpu/cpu_ops.h"

#include "backend/cpu/cpu_linear.h"
#include "backend/cpu/worker_scratch.h"

namespace dsv4rt::cpu {

CpuOps::CpuOps(const ThreadTeam& team, IsaLevel isa)
    : team_(team),
      isa_(isa),
      linear_(std::make_unique<LinearExecutor>(team, isa)),
      scratch_(std::make_unique<WorkerScratch>(team.threads())) {}
CpuOps::~CpuOps() = default;

}  // namespace dsv4rt::cpu
