#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <thread>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_linear.h"
#include "backend/cpu/cpu_ops.h"
#include "base/arithmetic.h"

namespace dsv4rt {
namespace {

constexpr int kMaxThreads = 1024;
constexpr std::size_t kBufferAlignmentBytes = 256;

// Aligned zeros by calloc, which clears large areas by not touching them: pages of a pool that no block
// uses take no memory. The pointer that calloc gave stands just before the area.
std::byte* allocate_zeros(std::size_t bytes) {
  void* whole = std::calloc(1, round_up(bytes, kBufferAlignmentBytes) + kBufferAlignmentBytes + sizeof(void*));
  if (whole == nullptr) return nullptr;
  const auto first = reinterpret_cast<std::uintptr_t>(whole) + sizeof(void*);
  auto* data = static_cast<std::byte*>(whole) + (round_up(first, std::uintptr_t{kBufferAlignmentBytes}) - first) +
               sizeof(void*);
  std::memcpy(data - sizeof(void*), &whole, sizeof(void*));
  return data;
}

void free_zeros(std::byte* data) {
  void* whole = nullptr;
  std::memcpy(&whole, data - sizeof(void*), sizeof(void*));
  std::free(whole);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, cpu::IsaLevel isa) : team_(threads), ops_(team_, isa) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "cpu"; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return true; }

  Result<Buffer> allocate(std::size_t bytes, std::string_view purpose) override {
    if (bytes == 0) return Buffer();
    std::byte* data = nullptr;
    if (bytes <= std::numeric_limits<std::size_t>::max() - 3 * kBufferAlignmentBytes) data = allocate_zeros(bytes);
    if (data == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    "no memory for " + std::string(purpose) + ": " + std::to_string(bytes) + " bytes asked");
    }
    return Buffer(this, data, bytes);
  }

  Status upload(void* target, const void* host_source, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(target, host_source, bytes);
    return {};
  }
  Status download(void* host_target, const void* source, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(host_target, source, bytes);
    return {};
  }

  Result<std::unique_ptr<PackedLinear>> pack_linear(const HostLinear& weight) override {
    return cpu::pack_cpu_linear(weight);
  }

  Ops& ops() noexcept override { return ops_; }

 private:
  void release(std::byte* data, std::size_t) noexcept override { free_zeros(data); }

  cpu::ThreadTeam team_;
  cpu::CpuOps ops_;
};

}  // namespace

Result<std::unique_ptr<Backend>> create_cpu_backend(const CpuBackendOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return Status(StatusCode::kInvalidArgument, "threads is " + std::to_string(options.threads) +
                                                    "; accepted are 1 to 1024, or 0 for the machine's own number");
  }
  cpu::IsaLevel isa = cpu::detect_isa_level();
  if (!options.max_isa.empty()) {
    const auto wanted = cpu::isa_level_from_name(options.max_isa);
    if (!wanted) {
      return Status(StatusCode::kInvalidArgument,
                    "max_isa is '" + options.max_isa + "'; accepted are 'portable', 'avx2' and 'avx512'");
    }
    if (*wanted > isa) {
      return Status(StatusCode::kUnsupported, "max_isa is '" + options.max_isa + "', but this processor offers '" +
                                                  std::string(cpu::isa_level_name(isa)) + "'");
    }
    isa = *wanted;
  }
  const int machine_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  try {
    return std::unique_ptr<Backend>(
        std::make_unique<CpuBackend>(options.threads == 0 ? machine_threads : options.threads, isa));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "no memory for the CPU backend");
  }
}

}  // namespace dsv4rt
