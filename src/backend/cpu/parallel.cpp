#include "backend/cpu/parallel.h"

#include <algorithm>

#if defined(DSV4RT_PARALLEL_STD_THREADS)
#include <thread>
#include <vector>
#endif

namespace dsv4rt::cpu {
namespace {

// First item of worker `worker`: contiguous ranges whose sizes differ by at most one.
std::int64_t range_begin(std::int64_t items, std::int64_t workers, std::int64_t worker) {
  return items / workers * worker + std::min(items % workers, worker);
}

}  // namespace

void ThreadTeam::run(std::int64_t items, Trampoline trampoline, const void* body) const {
  if (items <= 0) return;
  const auto workers = static_cast<int>(std::min<std::int64_t>(threads_, items));
  if (workers == 1) {
    trampoline(body, 0, items, 0);
    return;
  }
  const auto work = [&](int worker) {
    trampoline(body, range_begin(items, workers, worker), range_begin(items, workers, worker + 1), worker);
  };
#if defined(DSV4RT_PARALLEL_STD_THREADS)
  // ThreadSanitizer does not see libgomp's barriers; plain threads keep its reports meaningful.
  std::vector<std::thread> team;
  for (int worker = 1; worker < workers; ++worker) team.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : team) thread.join();
#else
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (int worker = 0; worker < workers; ++worker) work(worker);
#endif
}

}  // namespace dsv4rt::cpu
