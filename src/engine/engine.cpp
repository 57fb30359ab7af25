#include "dsv4rt/engine.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "attention/context_split.h"
#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {
namespace {

template <class Body>
Result<std::unique_ptr<Engine>> create_guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "no host memory");  // a text that takes none
  } catch (const std::exception& exception) {
    try {
      return Status(StatusCode::kInternal, std::string("create: ") + exception.what());
    } catch (...) {
      return Status(StatusCode::kInternal, "defect");
    }
  }
}

}  // namespace

Engine::Engine() : impl_(std::make_unique<Impl>()) {}

Engine::~Engine() {
  Impl& engine = *impl_;
  if (engine.guard == nullptr || !engine.latched.ok()) return;
  Status intact;
  try {
    intact = engine.guard->check();
  } catch (...) {
    return;  // no memory for the text of what it found
  }
  if (intact.code() != StatusCode::kInternal) return;  // a failed device is not the guard's business
  if (!engine.options.on_warning) CacheGuard::end_program(intact);
  engine.warn(intact.message());
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  return create_guarded([&]() -> Result<std::unique_ptr<Engine>> {
    std::unique_ptr<Engine> engine(new Engine());
    DSV4RT_RETURN_IF_ERROR(engine->impl_->load(options));
    return engine;
  });
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, const MemoryCheckpoint& checkpoint) {
  return create_guarded([&]() -> Result<std::unique_ptr<Engine>> {
    std::unique_ptr<Engine> engine(new Engine());
    DSV4RT_RETURN_IF_ERROR(engine->impl_->load(options, checkpoint));
    return engine;
  });
}

Result<std::unique_ptr<Engine>> Engine::create_sharing(const EngineOptions& options) const {
  return create_guarded([&]() -> Result<std::unique_ptr<Engine>> {
    std::unique_ptr<Engine> engine(new Engine());
    DSV4RT_RETURN_IF_ERROR(engine->impl_->load_sharing(options, *impl_));
    return engine;
  });
}

const ModelConfig& Engine::config() const noexcept {
  return impl_->config;
}
std::span<const LayerId> Engine::layers() const noexcept {
  return impl_->layer_ids;
}
const EngineMemory& Engine::memory() const noexcept {
  return impl_->memory;
}

// ---- Sequences ----------------------------------------------------------------------------------

Result<SequenceId> Engine::create_sequence(std::int64_t reserve_tokens) {
  return impl_->call("create_sequence", Impl::Use::kChange,
                     [&] { return impl_->manager->create_sequence(reserve_tokens); });
}

// The child's slot is nobody's until the manager makes the fork: a copy that fails has changed nothing.
Result<SequenceId> Engine::fork(SequenceId parent, std::int64_t reserve_tokens) {
  return impl_->call("fork", Impl::Use::kChange, [&]() -> Result<SequenceId> {
    DSV4RT_RETURN_IF_ERROR(impl_->check_held_here("fork", parent));
    DSV4RT_ASSIGN_OR_RETURN(const ForkResult fork, impl_->manager->can_fork(parent, reserve_tokens));
    DSV4RT_RETURN_IF_ERROR(impl_->latch_if_broken(impl_->backend->ops().copy_slot(
        fork.source.value, fork.target.value, impl_->cache.tables(), impl_->cache.rings())));
    DSV4RT_ASSIGN_OR_RETURN(const ForkResult made, impl_->manager->fork(parent, reserve_tokens));
    if (const Impl::SavedSequence* saved = impl_->saved_sequence(parent); saved != nullptr) {
      impl_->note_saved(made.child, saved->length, saved->digest);
    }
    if (const Impl::HeldSequence* held = impl_->held_sequence(parent); held != nullptr) {
      impl_->held[made.child.index] = {made.child, held->rank, held->step};
    }
    DSV4RT_RETURN_IF_ERROR(impl_->take_boundaries());
    return made.child;
  });
}

Status Engine::release(SequenceId sequence) {
  return impl_->call("release", Impl::Use::kChange, [&]() -> Status {
    const Result<StateSlotId> slot = impl_->manager->slot(sequence);
    DSV4RT_RETURN_IF_ERROR(impl_->manager->release(sequence));
    impl_->held[sequence.index] = {};
    return impl_->reclaim({&slot.value(), 1});
  });
}

Result<std::int64_t> Engine::length(SequenceId sequence) const {
  return impl_->call("length", Impl::Use::kRead, [&] { return impl_->manager->length(sequence); });
}

Status Engine::can_admit(std::int64_t tokens) const {
  return impl_->call("can_admit", Impl::Use::kSettle, [&] { return impl_->manager->can_admit(tokens); });
}

// ---- Steps --------------------------------------------------------------------------------------

// Nothing after the manager's begin can fail: a step that is not returned is not outstanding.
Result<Step> Engine::prepare(std::span<const StepEntry> entries, const StepOptions& options) {
  return impl_->call("prepare", Impl::Use::kStep, [&]() -> Result<Step> {
    DSV4RT_RETURN_IF_ERROR(impl_->poll_outputs());
    DSV4RT_RETURN_IF_ERROR(impl_->check_hand_over("prepare", entries, options));
    const bool capture = options.capture && impl_->captures(entries, options);
    StepOptions padded = options;
    if (capture) padded.pad_to_tokens = impl_->captured_tokens(entries, options);
    Impl::Outstanding& step = impl_->step;
    if (!impl_->runs_ahead()) DSV4RT_RETURN_IF_ERROR(impl_->settle_counts());
    DSV4RT_RETURN_IF_ERROR(impl_->late_counts.take_failure());
    Result<StepPlan> plan = impl_->manager->prepare_forward(entries, padded);
    if (!plan.ok() && impl_->late_counts.pending()) {
      // Without what the counts reject it may fit.
      DSV4RT_RETURN_IF_ERROR(impl_->settle_and_tell());
      plan = impl_->manager->prepare_forward(entries, padded);
    }
    if (!plan.ok()) return plan.status();
    step.plan = *plan;
    for (const StepEntry& entry : entries) step.entries.push_back({entry.sequence, entry.tokens});
    step.view = step_view(impl_->metadata.data(), impl_->manager->step_offsets(), step.plan.counts);
    // Boundaries that layers have to keep are this step's own: no graph of its shape knows them.
    step.capture = capture && impl_->manager->captures().empty();
    impl_->deal_step(entries, options);
    DSV4RT_RETURN_IF_ERROR(impl_->reclaim());
    return Step{.serial = plan->serial, .tokens = plan->counts.tokens, .valid_tokens = plan->counts.valid_tokens};
  });
}

Status Engine::forward_layer(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) {
  return impl_->call("forward_layer", Impl::Use::kStep, [&] { return impl_->forward_layer(step, layer, x, out); });
}

Status Engine::forward_layer_from_host(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) {
  return impl_->call("forward_layer_from_host", Impl::Use::kStep, [&]() -> Status {
    Impl& engine = *impl_;
    if (engine.backend->uses_host_memory()) return engine.forward_layer(step, layer, x, out);
    DSV4RT_RETURN_IF_ERROR(engine.check_outstanding(step));
    DSV4RT_RETURN_IF_ERROR(engine.check_rows("forward_layer_from_host", "x", x, Impl::RowsIn::kHost));
    DSV4RT_RETURN_IF_ERROR(engine.check_rows("forward_layer_from_host", "out", out, Impl::RowsIn::kHost));
    const std::size_t row_bytes = static_cast<std::size_t>(config().hidden_size) * sizeof(bf16);
    const std::size_t bytes = static_cast<std::size_t>(engine.step.plan.counts.tokens) * row_bytes;
    DSV4RT_RETURN_IF_ERROR(engine.latch_if_broken(engine.backend->upload(engine.layer_input.data(), x, bytes)));
    DSV4RT_RETURN_IF_ERROR(
        engine.forward_layer(step, layer, engine.layer_input.as<Bf16Bits>(), engine.layer_output.as<Bf16Bits>()));
    // Outputs that ranks share are there in whole. Of others, layer_output has old bytes outside the rank's own rows.
    std::array<StepRows, 2> parts{{{0, engine.step.plan.counts.tokens}, {}}};
    if (!engine.settings.context_share_outputs) parts = context_rows(step);
    for (const StepRows& part : parts) {
      if (part.count == 0) continue;
      const std::size_t first = static_cast<std::size_t>(part.first) * row_bytes;
      DSV4RT_RETURN_IF_ERROR(engine.latch_if_broken(
          engine.backend->download(reinterpret_cast<std::byte*>(out) + first, engine.layer_output.data() + first,
                                   static_cast<std::size_t>(part.count) * row_bytes)));
    }
    return engine.peers == nullptr ? Status{} : engine.latch_if_broken(engine.peers->state());
  });
}

Status Engine::step(const Step& step, const Bf16Bits* x, const LayerHook& hook, std::uint64_t hook_key) {
  return impl_->call("step", Impl::Use::kStep, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
    if (!hook) return {StatusCode::kInvalidArgument, "step: hook is empty; it must fill the next layer's input"};
    DSV4RT_RETURN_IF_ERROR(impl_->check_rows("step", "x", x, Impl::RowsIn::kBackend));
    DSV4RT_RETURN_IF_ERROR(impl_->check_not_spoiled("step"));
    if (impl_->step.capture) return impl_->run_captured(x, hook, hook_key);
    ++impl_->graph_stats.eager_steps;
    return impl_->run_eagerly(x, hook);
  });
}

std::array<StepRows, 2> Engine::context_rows(const Step& step) const noexcept {
  const AttentionSettings& settings = impl_->settings;
  const DealtStep dealt = step.serial == impl_->step.plan.serial ? impl_->step.dealt : DealtStep{};
  if (settings.context == nullptr || dealt.alone || step.tokens < settings.context_min_tokens) {
    return {{{0, step.tokens}, {}}};
  }
  const ContextSplit split(step.tokens, settings.context->size(), std::max(dealt.hand_over_to, 0));
  std::array<StepRows, 2> rows{};
  for (std::size_t part = 0; part < rows.size(); ++part) {
    const RowRange range = split.of_rank(settings.context->rank())[part];
    rows[part] = {.first = range.first, .count = range.count};
  }
  return rows;
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
  return impl_->call("synchronize", Impl::Use::kRead, [&]() -> Status {
    if (impl_->capturing) {
      return {StatusCode::kFailedPrecondition,
              "synchronize: a step is being recorded; waiting would end the recording"};
    }
    DSV4RT_RETURN_IF_ERROR(impl_->latch_if_broken(impl_->backend->synchronize()));
    // Work that was given up ends too.
    return impl_->peers == nullptr ? Status{} : impl_->latch_if_broken(impl_->peers->state());
  });
}

Status Engine::commit(const Step& step, std::span<const std::int32_t> accepted) {
  return impl_->call("commit", Impl::Use::kStep, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(impl_->check_complete("commit", step));
    DSV4RT_RETURN_IF_ERROR(impl_->settle_and_tell());
    DSV4RT_RETURN_IF_ERROR(impl_->manager->commit(step.serial, accepted));
    const std::int32_t entries = impl_->step.plan.counts.sequences;
    const std::int64_t tokens = impl_->step.plan.counts.valid_tokens;
    const std::int64_t kept =
        accepted.empty() ? tokens : std::accumulate(accepted.begin(), accepted.end(), std::int64_t{0});
    ++impl_->step_counts.committed;
    impl_->step_counts.accepted_tokens += kept;
    impl_->step_counts.rejected_tokens += tokens - kept;
    const bool handed_over = impl_->note_dealt_step();
    impl_->clear_step();
    DSV4RT_RETURN_IF_ERROR(impl_->end_output_step(step.serial, entries));
    DSV4RT_RETURN_IF_ERROR(impl_->take_boundaries());
    DSV4RT_RETURN_IF_ERROR(impl_->reclaim());
    return handed_over ? impl_->give_back_held(step.serial) : Status{};
  });
}

Result<std::vector<SequenceId>> Engine::cancel(const Step& step) {
  return impl_->call("cancel", Impl::Use::kStep, [&]() -> Result<std::vector<SequenceId>> {
    DSV4RT_RETURN_IF_ERROR(impl_->check_outstanding(step));
    // Memory for the answer first: without it the step is still there.
    std::vector<SequenceId> emptied;
    std::vector<StateSlotId> slots;
    emptied.reserve(static_cast<std::size_t>(impl_->step.plan.counts.sequences));
    slots.reserve(emptied.capacity());
    const StepProgress progress = impl_->step.started ? StepProgress::kStarted : StepProgress::kPrepared;
    // A step that has begun goes back to where its sequences really were. One that has not is undone first.
    if (impl_->step.started) DSV4RT_RETURN_IF_ERROR(impl_->settle_counts());
    DSV4RT_ASSIGN_OR_RETURN(const auto sequences, impl_->manager->rollback(step.serial, progress));
    emptied.assign(sequences.begin(), sequences.end());
    for (const SequenceId sequence : emptied) {
      slots.push_back(impl_->manager->slot(sequence).value());
      impl_->forget_saved(sequence, 0);
    }
    const std::int32_t entries = impl_->step.plan.counts.sequences;
    ++impl_->step_counts.cancelled;
    impl_->clear_step();
    DSV4RT_RETURN_IF_ERROR(impl_->end_output_step(step.serial, entries));
    DSV4RT_RETURN_IF_ERROR(impl_->reclaim(slots));
    return emptied;
  });
}

// ---- Behind them --------------------------------------------------------------------------------

Status Engine::Impl::check_outstanding(const Step& given) const {
  const StepHeader& counts = step.plan.counts;
  if (given.serial == 0 || given.serial != step.plan.serial) {
    return {StatusCode::kFailedPrecondition, "step " + std::to_string(given.serial) + " is not the outstanding step (" +
                                                 std::to_string(step.plan.serial) + "); 0 means none"};
  }
  if (given.tokens == counts.tokens && given.valid_tokens == counts.valid_tokens) return {};
  return {StatusCode::kInvalidArgument,
          "step " + std::to_string(given.serial) + ": tokens = " + std::to_string(given.tokens) +
              ", valid_tokens = " + std::to_string(given.valid_tokens) + "; prepare gave " +
              std::to_string(counts.tokens) + " and " + std::to_string(counts.valid_tokens)};
}

Status Engine::Impl::check_complete(const char* operation, const Step& given) const {
  DSV4RT_RETURN_IF_ERROR(check_outstanding(given));
  DSV4RT_RETURN_IF_ERROR(check_not_spoiled(operation));
  const auto missing = std::find(step.layer_done.begin(), step.layer_done.end(), false);
  if (missing == step.layer_done.end()) return {};
  const auto local = static_cast<std::size_t>(missing - step.layer_done.begin());
  return {StatusCode::kFailedPrecondition,
          std::string(operation) + ": layer " + std::to_string(layer_ids[local].value) + " has not run in this step"};
}

// Rows that a layer's tokens read may have been overwritten by its first try.
Status Engine::Impl::check_not_spoiled(const char* operation) const {
  if (!step.spoiled_by) return {};
  return {StatusCode::kFailedPrecondition,
          std::string(operation) + ": layer " + std::to_string(layer_ids[*step.spoiled_by].value) +
              " failed after it had begun to write the cache; the step can only be cancelled"};
}

Status Engine::Impl::no_step_outstanding(const char* operation) const {
  if (step.plan.serial == 0) return {};
  return {StatusCode::kFailedPrecondition, std::string(operation) + ": step " + std::to_string(step.plan.serial) +
                                               " is outstanding; commit or cancel it first"};
}

SnapshotIdentity Engine::Impl::snapshot_identity() const {
  return dsv4rt::snapshot_identity(options.profile, config, options.first_layer, weights->digest);
}

// Before the first layer: the metadata reaches the backend, tables and shared blocks are updated. Tables may be half
// updated when that fails, and neither commit nor cancel would be right.
Status Engine::Impl::start_step() {
  if (step.started) return {};
  DSV4RT_RETURN_IF_ERROR(
      latch_if_broken(backend->upload_step(metadata.data(), step.plan.metadata.data(), step.plan.metadata.size())));
  if (late_counts.pending()) {
    if (Status status = late_counts.shift(metadata.data(), manager->step_offsets(), step.plan.counts); !status.ok()) {
      return latch(std::move(status));
    }
  }
  if (Status status = backend->ops().begin_step(step.view, cache.tables()); !status.ok()) {
    return latch(std::move(status));
  }
  const StepView host = step_view(step.plan.metadata.data(), manager->step_offsets(), step.plan.counts);
  if (Status status = boundaries.begin_captures(*backend, manager->captures(), host); !status.ok()) {
    return latch(std::move(status));
  }
  step.started = true;
  return {};
}

Status Engine::Impl::forward_layer(const Step& given, LayerId layer, const Bf16Bits* x, Bf16Bits* out) {
  static_assert(sizeof(bf16) == sizeof(Bf16Bits));
  DSV4RT_RETURN_IF_ERROR(check_outstanding(given));
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, local_layer(layer));
  DSV4RT_RETURN_IF_ERROR(check_rows("forward_layer", "x", x, RowsIn::kBackend));
  DSV4RT_RETURN_IF_ERROR(check_rows("forward_layer", "out", out, RowsIn::kBackend));
  if (x == out) return {StatusCode::kInvalidArgument, "forward_layer: x and out must be two different buffers"};
  DSV4RT_RETURN_IF_ERROR(check_not_spoiled("forward_layer"));
  DSV4RT_RETURN_IF_ERROR(start_step());
  return run_layer(local, step.view, x, out);
}

Status Engine::Impl::run_layer(std::size_t local, const StepView& view, const Bf16Bits* x, Bf16Bits* out) {
  const auto* rows = reinterpret_cast<const bf16*>(x);
  auto* output = reinterpret_cast<bf16*>(out);
  // Recording changes nothing: neither the cache nor what is known of the step.
  if (capturing) {
    DSV4RT_RETURN_IF_ERROR(latch_if_broken(
        layers[local].forward(backend->ops(), view, rows, output, workspace, nullptr, nullptr, nullptr, step.dealt)));
    return latch_if_broken(flag_outputs(view, output));
  }
  if (step.layer_done[local]) {
    return {StatusCode::kFailedPrecondition,
            "layer " + std::to_string(layer_ids[local].value) + " already ran in this step"};
  }
  if (stage_observer != nullptr) stage_observer->begin_layer(layer_ids[local], view.counts.tokens);
  bool cache_written = false;
  Status status;
  try {
    DealtStep dealt = step.dealt;
    dealt.layer = layer_ids[local].value;
    const BoundaryKeep keep = boundaries.keep(layout, schedule.layers()[local]);
    status = layers[local].forward(backend->ops(), view, rows, output, workspace, stage_observer, &cache_written, &keep,
                                   dealt);
    if (status.ok()) status = flag_outputs(view, output);
  } catch (...) {
    status = of_exception("forward_layer", std::current_exception());
  }
  if (status.ok()) {
    step.layer_done[local] = true;
  } else if (cache_written) {
    step.spoiled_by = local;
  }
  // What was enqueued before a failure may wait for other ranks as well.
  Status watched = watch_ranks();
  return status.ok() ? watched : latch_if_broken(std::move(status));
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

Status Engine::Impl::reclaim(std::span<const StateSlotId> slots) noexcept {
  if (guard == nullptr) return {};
  try {
    Status status = guard->reclaim_blocks(manager->freed_blocks());
    for (std::size_t i = 0; i < slots.size() && status.ok(); ++i) status = guard->reclaim_slot(slots[i]);
    return status.ok() ? status : latch(std::move(status));
  } catch (...) {
    return latch(Status(StatusCode::kInternal, "cache unchecked"));  // a text that takes no memory
  }
}

void Engine::Impl::clear_step() noexcept {
  step.plan = {};
  step.entries.clear();
  step.layer_done.assign(step.layer_done.size(), false);
  step.spoiled_by.reset();
  step.started = false;
  step.capture = false;
  step.dealt = {};
  step.hand_overs = 0;
  boundaries.end_captures();
}

}  // namespace dsv4rt
