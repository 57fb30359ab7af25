#pragma once
namespace dsv4rt::cpu {
class LinearExecutor {};
}  // namespace dsv4rt::cpu
