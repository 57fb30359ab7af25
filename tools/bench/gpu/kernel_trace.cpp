// Times of every kernel that a program runs, replays of captured graphs included: a library that the CUDA driver loads
// into the program (CUDA_INJECTION64_PATH) and that writes what CUPTI recorded to the file that DSV4RT_KERNEL_TRACE
// names, when the program ends; processes take a file each. A line a kernel, separated by tabs:
//   correlation  number of the launch; the kernels of one replay of a graph share it
//   graph        number of the graph, 0 without one
//   start, end   ns
//   name         with its template arguments and parameters
// scripts/gpu/kernel_times.py makes tables of it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cupti.h>
#include <cxxabi.h>
#include <memory>
#include <mutex>
#include <utility>

namespace {

// What CUPTI records of a kernel, in this toolkit's version.
#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
#else
using KernelRecord = CUpti_ActivityKernel9;
#endif

constexpr std::size_t kBufferBytes = std::size_t{8} << 20U;
constexpr std::size_t kBufferAlignment = 8;

std::FILE* trace = nullptr;
std::mutex trace_mutex;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// What `name` is in C++; `name` itself where it is no name of C++.
std::unique_ptr<char, Free> demangled(const char* name) {
  return std::unique_ptr<char, Free>(abi::__cxa_demangle(name, nullptr, nullptr, nullptr));
}

void complain(const char* what, CUptiResult result) {
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "kernel_trace: %s: %s\n", what, text != nullptr ? text : "unknown error");
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  constexpr std::size_t kNoLimit = 0;
  *most_records = kNoLimit;
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t /*size*/,
                          std::size_t valid) {
  {
    const std::lock_guard lock(trace_mutex);
    CUpti_Activity* record = nullptr;
    while (trace != nullptr && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
      if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
      const auto* kernel = reinterpret_cast<const KernelRecord*>(record);
      const std::unique_ptr<char, Free> name = demangled(kernel->name);
      std::fprintf(trace, "%u\t%u\t%llu\t%llu\t%s\n", kernel->correlationId, kernel->graphId,
                   static_cast<unsigned long long>(kernel->start), static_cast<unsigned long long>(kernel->end),
                   name != nullptr ? name.get() : kernel->name);
    }
    std::size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped > 0) {
      std::fprintf(stderr, "kernel_trace: %zu kernels are missing\n", dropped);
    }
  }
  std::free(buffer);
}

void finish() {
  if (const CUptiResult result = cuptiActivityFlushAll(1); result != CUPTI_SUCCESS) complain("flush", result);
  const std::lock_guard lock(trace_mutex);
  // Buffers may come later still, from threads that go on.
  if (std::fclose(std::exchange(trace, nullptr)) != 0) std::perror("kernel_trace: DSV4RT_KERNEL_TRACE");
}

}  // namespace

// Called by the driver when the program first uses it; 1 is success.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("DSV4RT_KERNEL_TRACE");
  if (path == nullptr) {
    std::fprintf(stderr, "kernel_trace: DSV4RT_KERNEL_TRACE names no file\n");
    return 0;
  }
  trace = std::fopen(path, "w");
  if (trace == nullptr) {
    std::perror(path);
    return 0;
  }
  if (const CUptiResult result = cuptiActivityRegisterCallbacks(give_buffer, take_buffer); result != CUPTI_SUCCESS) {
    complain("callbacks", result);
    return 0;
  }
  if (const CUptiResult result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); result != CUPTI_SUCCESS) {
    complain("kernels", result);
    return 0;
  }
  return std::atexit(finish) == 0 ? 1 : 0;
}
