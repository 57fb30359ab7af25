// Engine::commit_from_device: steps whose accepted counts only the device knows, and when they are applied.
//
// The cache manager counts such a step as accepted whole, and the next one is prepared from there: it has the blocks
// of both, and its positions are put right on the device before the first layer. What was rejected is taken back when
// that next step ends, or when a call needs to know how long sequences are. With a prefix cache, whose content depends
// on the counts, and with several ranks, the manager's step stays open instead and the next one waits for the counts.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {

bool Engine::Impl::runs_ahead() const noexcept {
  return peers == nullptr && options.limits.boundary_states == 0;
}

Status Engine::Impl::check_counts(std::span<const std::int32_t> accepted) const {
  if (!late_counts.on()) {
    return {StatusCode::kFailedPrecondition,
            "commit_from_device: draft_budget_tokens = 0, so that no token can be rejected; accepted: 1 or more"};
  }
  const std::int32_t entries = step.plan.counts.sequences;
  if (accepted.size() != static_cast<std::size_t>(entries)) {
    return {StatusCode::kInvalidArgument, "commit_from_device: accepted has " + std::to_string(accepted.size()) +
                                              " entries; accepted: the step's " + std::to_string(entries)};
  }
  const std::uintptr_t excess = reinterpret_cast<std::uintptr_t>(accepted.data()) % alignof(std::int32_t);
  if (excess != 0) {
    return {StatusCode::kInvalidArgument, "commit_from_device: accepted lies " + std::to_string(excess) +
                                              " bytes past a multiple of 4; accepted: multiples"};
  }
  if (!backend->is_own_memory(accepted.data())) {
    return {StatusCode::kInvalidArgument,
            std::string("commit_from_device: accepted is ") +
                (accepted.data() == nullptr ? "null" : "not memory of the engine's device") +
                "; accepted: memory of the engine's backend"};
  }
  return {};
}

// Of a step that is prepared, only once it has begun: its blocks are counted from where its sequences seemed to end.
Status Engine::Impl::settle_counts() {
  if (!late_counts.pending()) return {};
  const Result<LateCounts::Settled> settled = late_counts.settle();
  if (!settled.ok()) return latch(settled.status());
  const auto kept = std::accumulate(settled->accepted.begin(), settled->accepted.end(), std::int64_t{0});
  step_counts.accepted_tokens += kept;
  for (const LateRejection& rejection : settled->rejections) step_counts.rejected_tokens += rejection.tokens;
  // Nothing is refused here: the counts are within what rings and blocks hold.
  Status applied =
      runs_ahead() ? manager->reject_late(settled->rejections) : manager->commit(settled->serial, settled->accepted);
  if (!applied.ok()) return latch(Status(StatusCode::kInternal, applied.message()));
  if (!runs_ahead()) DSV4RT_RETURN_IF_ERROR(take_boundaries());
  return reclaim();
}

Status Engine::Impl::settle_and_tell() {
  DSV4RT_RETURN_IF_ERROR(settle_counts());
  return late_counts.take_failure();
}

// A question does not use up what somebody has to be told of a count: the next change is refused by it.
Status Engine::Impl::settle_for(Use use) {
  if (step.plan.serial != 0) return {};
  if (use == Use::kChange) return settle_and_tell();
  return use == Use::kSettle ? settle_counts() : Status{};
}

Status Engine::commit_from_device(const Step& step, std::span<const std::int32_t> accepted) {
  return impl_->call("commit_from_device", Impl::Use::kStep, [&]() -> Status {
    Impl& engine = *impl_;
    DSV4RT_RETURN_IF_ERROR(engine.check_complete("commit_from_device", step));
    if (engine.step.dealt.hand_over_to >= 0) {
      return {StatusCode::kFailedPrecondition, "commit_from_device: the step hands its sequences over to rank " +
                                                   std::to_string(engine.step.dealt.hand_over_to) +
                                                   "; accepted: commit"};
    }
    DSV4RT_RETURN_IF_ERROR(engine.check_counts(accepted));
    DSV4RT_RETURN_IF_ERROR(engine.settle_and_tell());
    if (engine.runs_ahead()) {
      if (Status status = engine.manager->commit(step.serial); !status.ok()) return engine.latch(std::move(status));
    }
    if (Status status = engine.late_counts.take(*engine.backend, step.serial, engine.step.view, engine.step.entries,
                                                accepted.data());
        !status.ok()) {
      return engine.latch(std::move(status));
    }
    ++engine.step_counts.committed;
    static_cast<void>(engine.note_dealt_step());
    const std::int32_t entries = engine.step.plan.counts.sequences;
    engine.clear_step();
    return engine.end_output_step(step.serial, entries);
  });
}

Result<AcceptedCounts> Engine::accepted_counts(const Step& step) {
  return impl_->call("accepted_counts", Impl::Use::kStep, [&]() -> Result<AcceptedCounts> {
    Result<AcceptedCounts> counts = impl_->late_counts.counts(step.serial);
    if (!counts.ok()) return impl_->latch_if_broken(counts.status());
    return counts;
  });
}

Status Engine::settle() {
  return impl_->call("settle", Impl::Use::kStep, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(impl_->no_step_outstanding("settle"));
    return impl_->settle_and_tell();
  });
}

}  // namespace dsv4rt
