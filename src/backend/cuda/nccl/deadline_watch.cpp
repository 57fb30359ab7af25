#include "backend/cuda/nccl/deadline_watch.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/current_device.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(2);

}  // namespace

DeadlineWatch::DeadlineWatch(const CudaDevice& device, double deadline_seconds, std::function<std::string()> failure,
                             std::function<void(std::string)> give_up)
    : device_(device),
      deadline_seconds_(deadline_seconds),
      failure_(std::move(failure)),
      give_up_(std::move(give_up)),
      last_passed_(Clock::now()),
      thread_([this] { run(); }) {}

DeadlineWatch::~DeadlineWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Status DeadlineWatch::mark(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  Event event;
  if (unused_.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(event, create_event(/*timing=*/false));
  } else {
    event = std::move(unused_.back());
    unused_.pop_back();
  }
  DSV4RT_CUDA_TRY(cudaEventRecord(event.get(), stream));
  marks_.push_back({std::move(event), Clock::now()});
  if (marks_.size() == 1) wake_.notify_all();
  return {};
}

std::string DeadlineWatch::look() {
  while (!marks_.empty()) {
    const cudaError_t passed = cudaEventQuery(marks_.front().event.get());
    if (under_way(passed)) break;
    // A device that has failed says so to whoever uses it.
    unused_.push_back(std::move(marks_.front().event));
    marks_.pop_front();
    last_passed_ = Clock::now();
  }
  if (marks_.empty()) return {};
  if (std::string wrong = failure_(); !wrong.empty()) return wrong;
  // Work that waits for earlier work of its own stream is not late yet.
  const auto begin = std::max(marks_.front().enqueued, last_passed_);
  const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
  if (waited <= deadline_seconds_) return {};
  return "work on the device did not end within " + std::to_string(deadline_seconds_) + " s";
}

void DeadlineWatch::run() {
  const CurrentDevice current(device_);
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (marks_.empty()) {
      wake_.wait(lock, [this] { return ending_ || !marks_.empty(); });
      continue;
    }
    if (std::string why = look(); !why.empty()) {
      lock.unlock();
      give_up_(std::move(why));
      return;
    }
    wake_.wait_for(lock, kLookEvery, [this] { return ending_; });
  }
}

}  // namespace dsv4rt::cuda
