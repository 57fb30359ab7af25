#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_linear.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/worker_threads.h"
#include "base/message_text.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, cpu::IsaLevel isa) : team_(threads), ops_(team_, scratch_, isa) {}

  [[nodiscard]] const cpu::ThreadTeam& team() const noexcept { return team_; }
  [[nodiscard]] std::string_view name() const noexcept override { return "cpu"; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return true; }

  Result<Buffer> allocate(std::size_t bytes, std::string_view purpose) override {
    if (bytes == 0) return Buffer();
    // Anonymous pages are zero, aligned, and cost nothing until a block in them is used.
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return Status(StatusCode::kResourceExhausted,
                    "no memory for " + std::string(purpose) + ": " + std::to_string(bytes) + " bytes asked");
    }
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }

  Status upload(void* target, const void* host_source, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(target, host_source, bytes);
    return {};
  }
  Status download(void* host_target, const void* source, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(host_target, source, bytes);
    return {};
  }

  Status copy(void* target, const void* source, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(target, source, bytes);
    return {};
  }

  [[nodiscard]] std::int64_t packed_bytes(const HostLinear& weight) const override {
    return cpu::cpu_packed_bytes(weight);
  }
  Result<std::unique_ptr<PackedLinear>> pack_linear(const HostLinear& weight) override {
    return cpu::pack_cpu_linear(weight);
  }

  [[nodiscard]] std::int64_t scratch_bytes(const StepShapes& shapes) const override {
    return cpu::CpuOps::scratch_bytes(shapes, team_.threads());
  }
  Status reserve_scratch(std::size_t bytes) override {
    scratch_ = Scratch();
    DSV4RT_ASSIGN_OR_RETURN(scratch_memory_, allocate(bytes, "scratch"));
    scratch_ = Scratch(scratch_memory_.data(), bytes);
    return {};
  }

  Ops& ops() noexcept override { return ops_; }
  RowOps& row_ops() noexcept override { return ops_; }

 private:
  void release(std::byte* data, std::size_t bytes) noexcept override { munmap(data, bytes); }

  cpu::ThreadTeam team_;
  Buffer scratch_memory_;
  Scratch scratch_;
  cpu::CpuOps ops_;
};

}  // namespace

Result<std::unique_ptr<Backend>> create_cpu_backend(const CpuBackendOptions& options) {
  if (options.threads < 0 || options.threads > kMaxCpuThreads) {
    return Status(StatusCode::kInvalidArgument, "threads is " + std::to_string(options.threads) +
                                                    "; accepted are 1 to 1024, or 0 for the machine's own number");
  }
  cpu::IsaLevel isa = cpu::detect_isa_level();
  if (!options.max_isa.empty()) {
    const auto wanted = cpu::isa_level_from_name(options.max_isa);
    if (!wanted) {
      return Status(StatusCode::kInvalidArgument,
                    "max_isa is '" + printable(options.max_isa) + "'; accepted are 'portable', 'avx2' and 'avx512'");
    }
    if (*wanted > isa) {
      return Status(StatusCode::kUnsupported, "max_isa is '" + printable(options.max_isa) +
                                                  "', but this processor offers '" +
                                                  std::string(cpu::isa_level_name(isa)) + "'");
    }
    isa = *wanted;
  }
  const int threads = options.threads == 0 ? std::min(cpu::usable_processors(), kMaxCpuThreads) : options.threads;
  try {
    auto backend = std::make_unique<CpuBackend>(threads, isa);
    const int running = backend->team().running_threads();
    if (running < threads && options.on_warning) {
      options.on_warning("the CPU backend works with " + std::to_string(running) + " of " + std::to_string(threads) +
                         " threads: the system refused to start more");
    }
    return std::unique_ptr<Backend>(std::move(backend));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "no memory for the CPU backend");
  }
}

}  // namespace dsv4rt
