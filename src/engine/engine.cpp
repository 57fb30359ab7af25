#include "dsv4rt/engine.h"

#include <algorithm>
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {

Engine::Engine() : impl_(std::make_unique<Impl>()) {}
Engine::~Engine() {
  if (impl_->guard != nullptr && impl_->fault.ok()) impl_->guard->require_intact();
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  DSV4RT_RETURN_IF_ERROR(engine->impl_->load(options));
  return engine;
}

const ModelConfig& Engine::config() const noexcept {
  return impl_->settings.config;
}
std::span<const LayerId> Engine::layers() const noexcept {
  return impl_->layer_ids;
}
const EngineMemory& Engine::memory() const noexcept {
  return impl_->memory;
}

Result<SequenceId> Engine::create_sequence(std::int64_t reserve_tokens) {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  return impl_->manager->create_sequence(reserve_tokens);
}

Result<SequenceId> Engine::fork(SequenceId parent, std::int64_t reserve_tokens) {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  DSV4RT_ASSIGN_OR_RETURN(const ForkResult fork, impl_->manager->fork(parent, reserve_tokens));
  impl_->fault = impl_->backend->ops().copy_slot(fork.source.value, fork.target.value, impl_->cache.tables(),
                                                 impl_->cache.rings());
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  return fork.child;
}

Status Engine::truncate(SequenceId sequence, std::int64_t new_length) {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  DSV4RT_RETURN_IF_ERROR(impl_->manager->truncate(sequence, new_length));
  return new_length == 0 ? impl_->reclaim(impl_->manager->slot(sequence).value()) : impl_->reclaim();
}

Status Engine::release(SequenceId sequence) {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  const Result<SlotId> slot = impl_->manager->slot(sequence);
  DSV4RT_RETURN_IF_ERROR(impl_->manager->release(sequence));
  return impl_->reclaim(*slot);
}

Result<std::int64_t> Engine::length(SequenceId sequence) const {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  return impl_->manager->length(sequence);
}

Status Engine::can_admit(std::int64_t tokens) const {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  return impl_->manager->can_admit(tokens);
}

Result<Step> Engine::prepare(std::span<const StepEntry> entries, const StepOptions& options) {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  const bool capture = options.capture && impl_->captures(entries);
  StepOptions padded = options;
  if (capture) padded.pad_to_tokens = impl_->captured_tokens(entries, options);
  DSV4RT_ASSIGN_OR_RETURN(const StepPlan plan, impl_->manager->prepare_forward(entries, padded));
  Impl::Outstanding& step = impl_->step;
  step.capture = capture;
  step.plan = plan;
  step.view = step_view(impl_->metadata.data(), impl_->manager->step_offsets(), plan.counts);
  step.entries.assign(entries.begin(), entries.end());
  step.layer_done.assign(impl_->layers.size(), false);
  step.started = false;
  return Step{.serial = plan.serial, .tokens = plan.counts.tokens, .valid_tokens = plan.counts.valid_tokens};
}

Status Engine::forward_layer(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) {
  static_assert(sizeof(bf16) == sizeof(Bf16Bits));
  DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_->local_layer(layer));
  if (x == nullptr || out == nullptr || x == out) {
    return {StatusCode::kInvalidArgument, "forward_layer: x and out must be two different buffers"};
  }
  if (!impl_->step.started) DSV4RT_RETURN_IF_ERROR(impl_->start_step());
  return impl_->forward_layer(local, x, out);
}

Status Engine::forward_layer_from_host(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) {
  if (impl_->backend->uses_host_memory()) return forward_layer(step, layer, x, out);
  DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
  const auto bytes =
      static_cast<std::size_t>(step.tokens) * static_cast<std::size_t>(config().hidden_size) * sizeof(bf16);
  impl_->fault = impl_->backend->upload(impl_->layer_input.data(), x, bytes);
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  DSV4RT_RETURN_IF_ERROR(
      forward_layer(step, layer, impl_->layer_input.as<Bf16Bits>(), impl_->layer_output.as<Bf16Bits>()));
  impl_->fault = impl_->backend->download(out, impl_->layer_output.data(), bytes);
  return impl_->fault;
}

Status Engine::step(const Step& step, const Bf16Bits* x, const LayerHook& hook, std::uint64_t hook_key) {
  DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
  if (!hook) return {StatusCode::kInvalidArgument, "step: hook is empty; it must fill the next layer's input"};
  if (x == nullptr) return {StatusCode::kInvalidArgument, "step: x is null"};
  if (impl_->step.capture) return impl_->run_captured(x, hook, hook_key);
  ++impl_->graph_stats.eager_steps;
  return impl_->run_eagerly(x, hook);
}

Bf16Bits* Engine::input() noexcept {
  return impl_->layer_input.as<Bf16Bits>();
}

GraphStats Engine::graph_stats() const noexcept {
  return impl_->graph_stats;
}

void* Engine::stream() const noexcept {
  return impl_->backend->native_stream();
}

Status Engine::synchronize() {
  DSV4RT_RETURN_IF_ERROR(impl_->fault);
  impl_->fault = impl_->backend->synchronize();
  return impl_->fault;
}

Status Engine::commit(const Step& step, std::span<const std::int32_t> accepted) {
  DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
  const auto missing = std::find(impl_->step.layer_done.begin(), impl_->step.layer_done.end(), false);
  if (missing != impl_->step.layer_done.end()) {
    const auto local = static_cast<std::size_t>(missing - impl_->step.layer_done.begin());
    return {StatusCode::kFailedPrecondition,
            "commit: layer " + std::to_string(impl_->layer_ids[local].value) + " has not run in this step"};
  }
  DSV4RT_RETURN_IF_ERROR(impl_->manager->commit(step.serial, accepted));
  impl_->clear_step();
  return impl_->reclaim();
}

Result<std::vector<SequenceId>> Engine::cancel(const Step& step) {
  DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
  KVCacheManager& manager = *impl_->manager;
  const std::vector<StepEntry> entries = impl_->step.entries;
  if (!impl_->step.started) {
    DSV4RT_RETURN_IF_ERROR(manager.abandon(step.serial));
    impl_->clear_step();
    return std::vector<SequenceId>{};
  }
  // Rolling back is possible while the rings still hold what the old length needs. Where they do
  // not, the tokens are kept for the moment and the sequence is emptied afterwards.
  const std::vector<std::int32_t> none(entries.size(), 0);
  std::vector<SequenceId> emptied;
  if (manager.commit(step.serial, none).ok()) {
    DSV4RT_RETURN_IF_ERROR(impl_->reclaim());
  } else {
    std::vector<std::int64_t> old_lengths;
    for (const StepEntry& entry : entries) {
      DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, manager.length(entry.sequence));
      old_lengths.push_back(length - entry.tokens);  // the outstanding step's tokens count already
    }
    DSV4RT_RETURN_IF_ERROR(manager.commit(step.serial));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (truncate(entries[i].sequence, old_lengths[i]).ok()) continue;
      DSV4RT_RETURN_IF_ERROR(truncate(entries[i].sequence, 0));
      emptied.push_back(entries[i].sequence);
    }
  }
  impl_->clear_step();
  return emptied;
}

Status Engine::Impl::check_outstanding(const Step& given) const {
  DSV4RT_RETURN_IF_ERROR(fault);
  if (given.serial == 0 || given.serial != step.plan.serial) {
    return {StatusCode::kFailedPrecondition, "step " + std::to_string(given.serial) + " is not the outstanding step (" +
                                                 std::to_string(step.plan.serial) + "); 0 means none"};
  }
  return {};
}

Status Engine::Impl::no_step_outstanding(const char* operation) const {
  if (step.plan.serial == 0) return {};
  return {StatusCode::kFailedPrecondition, std::string(operation) + ": step " + std::to_string(step.plan.serial) +
                                               " is outstanding; commit or cancel it first"};
}

SnapshotIdentity Engine::Impl::snapshot_identity() const {
  return dsv4rt::snapshot_identity(options.profile, settings.config, options.first_layer);
}

// Before the first layer: the metadata reaches the backend, tables and shared blocks are updated.
Status Engine::Impl::start_step() {
  fault = backend->upload_step(metadata.data(), step.plan.metadata.data(), step.plan.metadata.size());
  DSV4RT_RETURN_IF_ERROR(fault);
  fault = backend->ops().begin_step(step.view, cache.tables());
  step.started = true;
  return fault;
}

Status Engine::Impl::forward_layer(std::size_t local, const Bf16Bits* x, Bf16Bits* out) {
  if (step.layer_done[local]) {
    return {StatusCode::kFailedPrecondition,
            "layer " + std::to_string(layer_ids[local].value) + " already ran in this step"};
  }
  step.layer_done[local] = true;
  StageObserver* observer = capturing ? nullptr : stage_observer;
  if (observer != nullptr) observer->begin_layer(layer_ids[local], step.view.counts.tokens);
  fault = layers[local].forward(backend->ops(), step.view, reinterpret_cast<const bf16*>(x),
                                reinterpret_cast<bf16*>(out), workspace, observer);
  return fault;
}

Result<std::size_t> Engine::Impl::local_layer(LayerId layer) const {
  const auto local = static_cast<std::int64_t>(layer.value) - options.first_layer;
  if (local < 0 || local >= static_cast<std::int64_t>(layers.size())) {
    return Status{StatusCode::kInvalidArgument, "layer " + std::to_string(layer.value) + " is not loaded; loaded are " +
                                                    std::to_string(layer_ids.front().value) + " to " +
                                                    std::to_string(layer_ids.back().value)};
  }
  return static_cast<std::size_t>(local);
}

Status Engine::Impl::reclaim(std::optional<SlotId> slot) {
  if (guard == nullptr) return {};
  fault = guard->reclaim_blocks(manager->freed_blocks());
  if (fault.ok() && slot) fault = guard->reclaim_slot(*slot);
  return fault;
}

void Engine::Impl::clear_step() {
  step.plan = {};
  step.entries.clear();
  step.started = false;
  step.capture = false;
}

}  // namespace dsv4rt
