// The CPU backend made to capture, to refuse and to count: what an engine does with a backend that can, without a GPU.
//
// While capturing, operations are noted with their parameters and not run; a launch runs them with the counts that the
// uploaded metadata has, as kernels read them on a device.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/boundary_state.h"
#include "engine/engine_impl.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {

// Notes operations while `recording`, otherwise runs them. `fail`, if set, is asked before each with its name.
class CapturingOps final : public Ops {
 public:
  explicit CapturingOps(Ops& inner) : inner_(inner) {}

  bool recording = false;
  bool spoiled = false;  // something was enqueued that cannot be captured
  std::vector<std::function<Status(const StepHeader&)>> recorded;
  std::function<Status(std::string_view operation)> fail;

  Status linear(std::int32_t tokens, std::span<const LinearCall> calls) override {
    return run("linear", [this, tokens, copy = std::vector<LinearCall>(calls.begin(), calls.end())](const StepHeader*) {
      return inner_.linear(tokens, copy);
    });
  }
  Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) override {
    return run("normed_linear", [this, norm, copy = std::vector<LinearCall>(calls.begin(), calls.end())](
                                    const StepHeader*) { return inner_.normed_linear(norm, copy); });
  }
  Status swa_cache_write(const SwaCacheWriteParams& p) override {
    return run_step("swa_cache_write", p, &Ops::swa_cache_write);
  }
  Status indexer_topk(const IndexerTopkParams& p) override { return run_step("indexer_topk", p, &Ops::indexer_topk); }
  Status attend(const AttendParams& p) override { return run_step("attend", p, &Ops::attend); }
  [[nodiscard]] bool takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const override {
    return inner_.takes_encoded_rows(tokens, weight);
  }
  Result<bool> encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) override {
    return inner_.encodes_outputs(tokens, calls);
  }
  Result<bool> norms_queries(const AttendParams& p) override { return inner_.norms_queries(p); }
  Status flag_non_finite(const FlagNonFiniteParams& p) override {
    return run_step("flag_non_finite", p, &Ops::flag_non_finite);
  }
  Status write_kv(const WriteKvParams& p) override {
    return run("write_kv", [this, p](const StepHeader* counts) {
      WriteKvParams now = p;
      if (counts != nullptr) {
        now.window.step.counts = *counts;
        if (now.query) now.query->step.counts = *counts;
        if (now.index_query) now.index_query->step.counts = *counts;
        if (now.compress) now.compress->step.counts = *counts;
        if (now.index_compress) now.index_compress->step.counts = *counts;
      }
      return inner_.write_kv(now);
    });
  }
  // Steps of several ranks only, which are never captured.
  Status query(const QueryParams& p) override { return run_step("query", p, &Ops::query); }
  Status index_query(const IndexQueryParams& p) override { return run_step("index_query", p, &Ops::index_query); }
  Status swa_kv(const SwaKvParams& p) override { return run_step("swa_kv", p, &Ops::swa_kv); }
  Status compress(const CompressParams& p) override { return run_step("compress", p, &Ops::compress); }
  Status state_store(const StateStoreParams& p) override { return run_step("state_store", p, &Ops::state_store); }
  Status copy_finished_rows(RowDirection direction, const FinishedRowsParams& p) override {
    return run("copy_finished_rows",
               [this, direction, p](const StepHeader*) { return inner_.copy_finished_rows(direction, p); });
  }
  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override {
    if (fail) {
      if (Status status = fail("begin_step"); !status.ok()) return status;
    }
    return inner_.begin_step(step, tables);
  }
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override {
    if (fail) {
      if (Status status = fail("copy_slot"); !status.ok()) return status;
    }
    return inner_.copy_slot(source, target, tables, rings);
  }
  Status copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                            std::span<const BoundaryRows> rows, const BoundaryStates& states) override {
    return between_steps("copy_boundary_rows",
                         [&] { return inner_.copy_boundary_rows(direction, copies, rows, states); });
  }
  Status keep_boundary_rows(const KeepBoundaryParams& params) override {
    return between_steps("keep_boundary_rows", [&] { return inner_.keep_boundary_rows(params); });
  }
  Status write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                          std::span<const CacheTable> tables) override {
    return between_steps("write_table_rows", [&] { return inner_.write_table_rows(slot, ids, columns, tables); });
  }

 private:
  // Operations that are never part of a graph.
  template <class Call>
  Status between_steps(std::string_view name, const Call& call) {
    if (fail) {
      if (Status status = fail(name); !status.ok()) return status;
    }
    spoiled = spoiled || recording;
    return call();
  }
  template <class Params>
  Status run_step(std::string_view name, const Params& params, Status (Ops::*operation)(const Params&)) {
    return run(name, [this, params, operation](const StepHeader* counts) {
      Params now = params;
      if (counts != nullptr) now.step.counts = *counts;
      return (inner_.*operation)(now);
    });
  }
  template <class Work>
  Status run(std::string_view name, Work work) {
    if (fail) {
      if (Status status = fail(name); !status.ok()) return status;
    }
    if (!recording) return work(nullptr);
    if (spoiled) return {StatusCode::kFailedPrecondition, "the capture was spoiled"};
    recorded.emplace_back([work = std::move(work)](const StepHeader& counts) { return work(&counts); });
    return {};
  }

  Ops& inner_;
};

class CapturingBackend final : public Backend {
 public:
  explicit CapturingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)), ops_(inner_->ops()) {}

  // Answers of the next calls; taken once.
  Status next_upload_step;
  Status next_launch;
  std::size_t alignment = alignof(bf16);
  std::int64_t host_bytes_taken = 0;  // bytes that upload() and download() of a backend with memory of its own took
  bool own_memory = false;
  LinearPrecision precision = LinearPrecision::kExact;
  const void* foreign = nullptr;  // an address in memory of another device

  [[nodiscard]] CapturingOps& capturing_ops() noexcept { return ops_; }
  // What a caller does who waits in a hook.
  void spoil_capture() { ops_.spoiled = ops_.recording; }

  [[nodiscard]] std::string_view name() const noexcept override { return "capturing"; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return !own_memory; }
  [[nodiscard]] bool is_own_memory(const void* address) const noexcept override {
    return inner_->is_own_memory(address) && address != foreign;
  }
  [[nodiscard]] std::size_t row_alignment() const noexcept override { return alignment; }
  Result<Buffer> allocate(std::size_t bytes, std::string_view purpose) override {
    return inner_->allocate(bytes, purpose);
  }
  Status upload(void* target, const void* source, std::size_t bytes) override {
    host_bytes_taken += static_cast<std::int64_t>(bytes);
    return inner_->upload(target, source, bytes);
  }
  Status download(void* target, const void* source, std::size_t bytes) override {
    host_bytes_taken += static_cast<std::int64_t>(bytes);
    return inner_->download(target, source, bytes);
  }
  Status copy(void* target, const void* source, std::size_t bytes) override {
    enqueue([=, this] { static_cast<void>(inner_->copy(target, source, bytes)); });
    return {};
  }
  Status upload_step(void* target, const void* source, std::size_t bytes) override {
    if (Status status = std::exchange(next_upload_step, Status{}); !status.ok()) return status;
    metadata_ = static_cast<const std::byte*>(target);
    return inner_->upload_step(target, source, bytes);
  }
  [[nodiscard]] bool can_capture() const noexcept override { return true; }
  Status begin_capture() override {
    ops_.recording = true;
    ops_.recorded.clear();
    return {};
  }
  Result<std::unique_ptr<CapturedWork>> end_capture() override {
    ops_.recording = false;
    if (std::exchange(ops_.spoiled, false)) {
      return Status{StatusCode::kFailedPrecondition, "something was enqueued that cannot be captured"};
    }
    return std::unique_ptr<CapturedWork>(std::make_unique<Work>(std::move(ops_.recorded)));
  }
  Status launch(const CapturedWork& work) override {
    if (Status status = std::exchange(next_launch, Status{}); !status.ok()) return status;
    StepHeader counts;
    std::memcpy(&counts, metadata_, sizeof counts);
    for (const auto& operation : static_cast<const Work&>(work).operations) {
      if (Status status = operation(counts); !status.ok()) return status;
    }
    return {};
  }
  Result<std::unique_ptr<PackedLinear>> pack_linear(const HostLinear& weight) override {
    return inner_->pack_linear(weight);
  }
  [[nodiscard]] LinearPrecision linear_precision() const noexcept override { return precision; }
  [[nodiscard]] std::int64_t scratch_bytes(const StepShapes& shapes) const override {
    return inner_->scratch_bytes(shapes);
  }
  Status reserve_scratch(std::size_t bytes) override { return inner_->reserve_scratch(bytes); }
  Ops& ops() noexcept override { return ops_; }
  RowOps& row_ops() noexcept override { return inner_->row_ops(); }

  // Takes the work of a hook into the graph.
  void enqueue(std::function<void()> work) {
    if (!ops_.recording) return work();
    ops_.recorded.emplace_back([work = std::move(work)](const StepHeader&) {
      work();
      return Status{};
    });
  }

 private:
  struct Work final : CapturedWork {
    explicit Work(std::vector<std::function<Status(const StepHeader&)>> recorded) : operations(std::move(recorded)) {
      nodes_ = static_cast<std::int64_t>(operations.size());
    }
    std::vector<std::function<Status(const StepHeader&)>> operations;
  };
  void release(std::byte*, std::size_t) noexcept override {}  // buffers belong to the inner backend

  std::unique_ptr<Backend> inner_;
  CapturingOps ops_;
  const std::byte* metadata_ = nullptr;
};

// Puts a CapturingBackend around an engine's own.
class BackendSwap : public EngineInspector {
 public:
  explicit BackendSwap(Engine& engine) : EngineInspector(engine) {
    auto around = std::make_unique<CapturingBackend>(std::move(impl_.backend));
    backend_ = around.get();
    impl_.backend = std::move(around);
  }
  CapturingBackend* operator->() const { return backend_; }
  CapturingBackend& operator*() const { return *backend_; }

 private:
  CapturingBackend* backend_ = nullptr;
};

}  // namespace dsv4rt::test
