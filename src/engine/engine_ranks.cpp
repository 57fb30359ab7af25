// Steps whose rows are dealt out over ranks, and sequences that such a step hands over to one of them.
//
// Every rank makes the calls for a sequence that every rank has. One that was handed over is one rank's: steps with it
// are that rank's own, and ranks no longer prepare as many steps as each other. Hence what ranks compare is how many
// steps were dealt out, not a step's serial.
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {

const Engine::Impl::HeldSequence* Engine::Impl::held_sequence(SequenceId sequence) const noexcept {
  if (sequence.index >= held.size()) return nullptr;
  const HeldSequence& found = held[sequence.index];
  return found.rank >= 0 && found.sequence == sequence ? &found : nullptr;
}

Status Engine::Impl::check_held_here(const char* operation, SequenceId sequence) const {
  const HeldSequence* const found = held_sequence(sequence);
  if (found == nullptr || found->rank == peers->rank()) return {};
  return {StatusCode::kFailedPrecondition, std::string(operation) + ": step " + std::to_string(found->step) +
                                               " handed the sequence over to rank " + std::to_string(found->rank) +
                                               "; this is rank " + std::to_string(peers->rank()) +
                                               ", which has nothing of it; accepted: release, length, sequence_state"};
}

Status Engine::Impl::check_hand_over(const char* operation, std::span<const StepEntry> entries,
                                     const StepOptions& asked) const {
  for (const StepEntry& entry : entries) DSV4RT_RETURN_IF_ERROR(check_held_here(operation, entry.sequence));
  if (!asked.hand_over_to) return {};
  const std::string text = std::string(operation) + ": hand_over_to = " + std::to_string(*asked.hand_over_to);
  if (settings.ranks != nullptr) {
    return {StatusCode::kInvalidArgument,
            text + "; accepted with tensor parallelism: none, every rank has every cache"};
  }
  const std::int32_t ranks = settings.context == nullptr ? 1 : settings.context->size();
  if (*asked.hand_over_to < 0 || *asked.hand_over_to >= ranks) {
    return {StatusCode::kInvalidArgument, text + "; accepted: ranks 0 to " + std::to_string(ranks - 1)};
  }
  if (settings.context == nullptr) return {};
  if (options.limits.boundary_states > 0) {
    return {StatusCode::kUnsupported,
            text + " with limits.boundary_states = " + std::to_string(options.limits.boundary_states) +
                ": the ranks would find different prefixes; accepted: one of them"};
  }
  for (const StepEntry& entry : entries) {
    if (const HeldSequence* const found = held_sequence(entry.sequence); found != nullptr) {
      return {StatusCode::kFailedPrecondition, text + ": step " + std::to_string(found->step) +
                                                   " handed a sequence of the step over already; accepted: steps of "
                                                   "sequences that every rank has"};
    }
  }
  return {};
}

bool Engine::Impl::alone(std::span<const StepEntry> entries) const noexcept {
  for (const StepEntry& entry : entries) {
    if (held_sequence(entry.sequence) != nullptr) return true;
  }
  return false;
}

void Engine::Impl::deal_step(std::span<const StepEntry> entries, const StepOptions& asked) {
  if (settings.context == nullptr) return;
  const StepView host = step_view(step.plan.metadata.data(), manager->step_offsets(), step.plan.counts);
  DealtStep& dealt = step.dealt;
  dealt.first_tokens = {host.sequence_first_token, static_cast<std::size_t>(step.plan.counts.sequences) + 1};
  dealt.hand_over_to = asked.hand_over_to.value_or(-1);
  dealt.alone = alone(entries);
  if (dealt.alone || step.plan.counts.tokens < settings.context_min_tokens) return;
  dealt.number = ++dealt_steps;
  dealt.content = 0xcbf29ce484222325U;  // FNV-1a
  const auto add = [&dealt](std::int64_t value) {
    dealt.content = (dealt.content ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
  };
  add(dealt.hand_over_to);
  for (const StepEntry& entry : entries) {
    add(manager->length(entry.sequence).value());
    add(entry.tokens);
  }
}

bool Engine::Impl::note_hand_over() noexcept {
  if (step.dealt.hand_over_to < 0) return false;
  for (const LateCounts::Entry& entry : step.entries) {
    held[entry.sequence.index] = {entry.sequence, step.dealt.hand_over_to, step.plan.serial};
  }
  return true;
}

Status Engine::Impl::give_back_held(std::uint64_t serial) {
  for (const HeldSequence& given : held) {
    if (given.step != serial || given.rank < 0 || given.rank == peers->rank()) continue;
    const StateSlotId slot = manager->slot(given.sequence).value();
    if (Status status = manager->clear_sequence(given.sequence); !status.ok()) return latch(std::move(status));
    forget_saved(given.sequence, 0);
    DSV4RT_RETURN_IF_ERROR(reclaim({&slot, 1}));
  }
  return {};
}

}  // namespace dsv4rt
