#include "tools/lib/engines_bench.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "base/bfloat16.h"
#include "base/numbered_threads.h"
#include "base/try.h"
#include "checkpoint/synthetic_values.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int32_t kWarmUpSteps = 5;

// What `work` answers; what it throws is a failure too.
template <class Work>
Status guarded(const Work& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no host memory"};  // a text that takes none
  } catch (const std::exception& exception) {
    try {
      return {StatusCode::kInternal, std::string("engines bench: ") + exception.what()};
    } catch (...) {
      return {StatusCode::kInternal, "defect"};
    }
  } catch (...) {
    return {StatusCode::kInternal, "defect"};
  }
}

// The watch of several threads, one at a time.
class SharedWatch {
 public:
  explicit SharedWatch(WorkWatch* watch) : watch_(watch) {}
  Status check() {
    const std::lock_guard lock(mutex_);
    return check_watch(watch_);
  }

 private:
  WorkWatch* watch_;  // may be null
  std::mutex mutex_;
};

// One engine's sequences, and steps of them that leave everything as it was.
class DecodeSteps {
 public:
  DecodeSteps(Engine& engine, SharedWatch& watch) : engine_(engine), editor_(engine), watch_(watch) {}

  Status begin(const StepShape& shape, const StepBenchOptions& options) {
    DSV4RT_RETURN_IF_ERROR(editor_.fill_caches(options.seed));
    for (std::int32_t s = 0; s < shape.batch; ++s) {
      DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence());
      sequences_.push_back(sequence);
      entries_.push_back({sequence, 1});
    }
    none_accepted_.assign(sequences_.size(), 0);
    DSV4RT_RETURN_IF_ERROR(editor_.skip_contexts(sequences_, shape));
    const SyntheticStream stream(options.seed, "engines bench input");
    std::vector<bf16> x(static_cast<std::size_t>(shape.batch * engine_.config().hidden_size));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(stream.normal(i));
    DSV4RT_RETURN_IF_ERROR(editor_.backend().upload(engine_.input(), x.data(), x.size() * sizeof(bf16)));
    output_.resize(x.size());
    for (std::int32_t i = 0; i < kWarmUpSteps; ++i) DSV4RT_RETURN_IF_ERROR(step());
    return {};
  }

  Status step() {
    DSV4RT_RETURN_IF_ERROR(watch_.check());
    DSV4RT_ASSIGN_OR_RETURN(
        const Step step, engine_.prepare(entries_, {.pad_to_tokens = 0, .capture = editor_.backend().can_capture()}));
    // The layers' inputs stay what they are: the bench has no experts.
    DSV4RT_RETURN_IF_ERROR(engine_.step(step, engine_.input(), [](const LayerOutput&) { return Status{}; }));
    DSV4RT_RETURN_IF_ERROR(engine_.commit(step, none_accepted_));
    return engine_.synchronize();
  }

  Result<double> mean_ms(std::int32_t steps) {
    const Clock::time_point begin = Clock::now();
    for (std::int32_t i = 0; i < steps; ++i) DSV4RT_RETURN_IF_ERROR(step());
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / steps;
  }

  // The last layer's output of the latest step.
  Result<std::vector<bf16>> output() {
    DSV4RT_RETURN_IF_ERROR(
        editor_.backend().download(output_.data(), editor_.last_output(), output_.size() * sizeof(bf16)));
    return output_;
  }

  Status end() {
    for (const SequenceId sequence : std::exchange(sequences_, {})) DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
    return {};
  }

 private:
  Engine& engine_;
  EngineEditor editor_;
  SharedWatch& watch_;
  std::vector<SequenceId> sequences_;
  std::vector<StepEntry> entries_;
  std::vector<std::int32_t> none_accepted_;
  std::vector<bf16> output_;
};

// Engines that have begun, on threads of their own.
class EnginesBench {
 public:
  EnginesBench(std::vector<DecodeSteps> engines, std::unique_ptr<NumberedThreads> threads)
      : engines_(std::move(engines)), threads_(std::move(threads)), times_(engines_.size()) {}

  Result<std::vector<EngineTimes>> run(const StepShape& shape, const StepBenchOptions& options) {
    DSV4RT_RETURN_IF_ERROR(on_all([&](std::size_t i) { return engines_[i].begin(shape, options); }));
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      DSV4RT_RETURN_IF_ERROR(on_one(i, [&] { return time(i, options.steps, &EngineTimes::alone_ms); }));
    }
    DSV4RT_RETURN_IF_ERROR(check_outputs());
    std::barrier together(static_cast<std::ptrdiff_t>(engines_.size()));
    std::atomic<std::size_t> timed{0};
    DSV4RT_RETURN_IF_ERROR(on_all([&](std::size_t i) -> Status {
      together.arrive_and_wait();
      Status status = guarded([&] { return time(i, options.steps, &EngineTimes::together_ms); });
      ++timed;  // failed or not: the others wait for it
      // Engines that are still being timed keep their company.
      while (status.ok() && timed < engines_.size()) status = engines_[i].step();
      return status;
    }));
    DSV4RT_RETURN_IF_ERROR(check_outputs());
    DSV4RT_RETURN_IF_ERROR(on_all([&](std::size_t i) { return engines_[i].end(); }));
    return times_;
  }

 private:
  // The first failure, by engine, when all have returned. Threads refer to what is here, and may wait for each other:
  // from the first start to the end of all, nothing takes memory and nothing is thrown.
  template <class Work>
  Status on_all(const Work& work) {
    std::vector<Status> statuses(engines_.size());
    std::vector<std::function<void()>> parts;
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      parts.emplace_back([&statuses, &work, i] { statuses[i] = guarded([&] { return work(i); }); });
    }
    for (std::size_t i = 0; i < engines_.size(); ++i) threads_->start(i, std::move(parts[i]));
    threads_->wait();
    for (const Status& status : statuses) DSV4RT_RETURN_IF_ERROR(status);
    return {};
  }
  template <class Work>
  Status on_one(std::size_t i, const Work& work) {
    Status status;
    threads_->start(i, [&] { status = guarded(work); });
    threads_->wait();
    return status;
  }

  Status time(std::size_t i, std::int32_t steps, double EngineTimes::*ms) {
    DSV4RT_ASSIGN_OR_RETURN(times_[i].*ms, engines_[i].mean_ms(steps));
    return {};
  }

  Status check_outputs() {
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      DSV4RT_ASSIGN_OR_RETURN(const std::vector<bf16> output, engines_[i].output());
      std::vector<std::uint16_t> bits;
      for (const bf16 value : output) bits.push_back(value.bits);
      if (expected_.empty()) expected_ = bits;
      if (bits == expected_) continue;
      return {StatusCode::kMismatch,
              "the last layer's output of engine " + std::to_string(i) + " differs from the first one's"};
    }
    return {};
  }

  std::vector<DecodeSteps> engines_;
  std::unique_ptr<NumberedThreads> threads_;
  std::vector<EngineTimes> times_;
  std::vector<std::uint16_t> expected_;  // the first engine's output, alone
};

Status require_positive(const char* name, std::int64_t value) {
  if (value > 0) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + ": " + std::to_string(value) + "; accepted: 1 or more"};
}

}  // namespace

CacheLimits engines_bench_limits(std::span<const StepShape> shapes) {
  CacheLimits limits{.max_sequences = 0, .max_context_tokens = 0, .max_step_tokens = 0, .pool_tokens = 0};
  for (const StepShape& shape : shapes) {
    const std::int64_t context = shape.context_tokens + 1;
    limits.max_sequences = std::max(limits.max_sequences, shape.batch);
    limits.max_step_tokens = std::max(limits.max_step_tokens, shape.batch);
    limits.max_context_tokens = std::max(limits.max_context_tokens, context);
    limits.pool_tokens = std::max(limits.pool_tokens, cached_tokens(shape) + shape.batch);
  }
  return limits;
}

Result<std::vector<EngineTimes>> bench_engines(std::span<const std::unique_ptr<Engine>> engines, const StepShape& shape,
                                               const StepBenchOptions& options, WorkWatch* watch) {
  DSV4RT_RETURN_IF_ERROR(require_positive("engines", static_cast<std::int64_t>(engines.size())));
  DSV4RT_RETURN_IF_ERROR(check_step_shape(shape));
  DSV4RT_RETURN_IF_ERROR(require_positive("steps", options.steps));
  SharedWatch shared(watch);
  std::vector<DecodeSteps> steps;
  for (const std::unique_ptr<Engine>& engine : engines) steps.emplace_back(*engine, shared);
  DSV4RT_ASSIGN_OR_RETURN(auto threads, NumberedThreads::create(engines.size()));
  return EnginesBench(std::move(steps), std::move(threads)).run(shape, options);
}

}  // namespace dsv4rt
