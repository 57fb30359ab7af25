#include "backend/cpu/cpu_ops.h"

#include <algorithm>

#include "backend/cpu/cpu_linear.h"

namespace dsv4rt::cpu {

CpuOps::CpuOps(const ThreadTeam& team, const Scratch& scratch, IsaLevel isa)
    : team_(team), scratch_(scratch), isa_(isa), linear_(std::make_unique<LinearExecutor>(team, scratch, isa)) {}
CpuOps::~CpuOps() = default;

std::int64_t CpuOps::scratch_bytes(const StepShapes& shapes, int threads) {
  std::int64_t bytes = std::max(indexer_topk_scratch_bytes(shapes, threads), attend_scratch_bytes(shapes, threads));
  for (const LinearGroupShape& linear : shapes.linears) {
    bytes = std::max(bytes, LinearExecutor::most_scratch_bytes(linear, shapes.max_tokens, threads));
  }
  return bytes;
}

}  // namespace dsv4rt::cpu
