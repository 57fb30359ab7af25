// Steps whose rows are dealt out over ranks, and sequences that such a step hands over to one of them.
//
// Every rank makes the calls for a sequence that every rank has. One that was handed over is one rank's: steps with it
// are that rank's own, and ranks no longer prepare as many steps as each other. Hence what ranks compare is how many
// steps were dealt out, not a step's serial.
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {
namespace {

// FNV-1a.
constexpr std::uint64_t kDigestBasis = 0xcbf29ce484222325U;
void add_to_digest(std::uint64_t& digest, std::int64_t value) {
  digest = (digest ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
}

}  // namespace

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
  std::size_t own = 0;
  for (const StepEntry& entry : entries) {
    DSV4RT_RETURN_IF_ERROR(check_held_here(operation, entry.sequence));
    own += held_sequence(entry.sequence) != nullptr ? 1 : 0;
  }
  // The others would not have what the step adds to a sequence of theirs.
  if (own > 0 && own < entries.size()) {
    for (const StepEntry& entry : entries) DSV4RT_RETURN_IF_ERROR(manager->length(entry.sequence).status());
    return {StatusCode::kFailedPrecondition,
            std::string(operation) + ": " + std::to_string(own) + " of the step's " + std::to_string(entries.size()) +
                " sequences are this rank's alone, the others every rank's; accepted: steps of one kind (claim makes a "
                "sequence this rank's)"};
  }
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
  if (own == 0) return {};
  return {StatusCode::kFailedPrecondition,
          text + ": the sequences are this rank's alone already; accepted: steps of sequences that every rank has"};
}

Status Engine::claim(SequenceId sequence) {
  return impl_->call("claim", Impl::Use::kChange, [&]() -> Status {
    Impl& engine = *impl_;
    DSV4RT_RETURN_IF_ERROR(engine.no_step_outstanding("claim"));
    DSV4RT_RETURN_IF_ERROR(engine.manager->length(sequence).status());
    DSV4RT_RETURN_IF_ERROR(engine.check_held_here("claim", sequence));
    if (engine.settings.ranks != nullptr) {
      return {StatusCode::kInvalidArgument, "claim: with tensor parallelism every rank has every cache"};
    }
    if (engine.settings.context == nullptr || engine.held_sequence(sequence) != nullptr) return {};
    if (const std::int64_t states = engine.options.limits.boundary_states; states > 0) {
      return {StatusCode::kUnsupported, "claim with limits.boundary_states = " + std::to_string(states) +
                                            ": the ranks would find different prefixes; accepted: one of them"};
    }
    engine.held[sequence.index] = {.sequence = sequence, .rank = engine.peers->rank()};
    return {};
  });
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
  if (asked.hand_over_to) {
    // By what the step was given, not by what of it is accepted: of drafts the rank that goes on may know alone.
    for (const StepEntry& entry : entries) {
      std::uint64_t sequence = kDigestBasis;
      add_to_digest(sequence, dealt.hand_over_to);
      add_to_digest(sequence, manager->length(entry.sequence).value());
      step.hand_overs += sequence;
    }
  }
  if (dealt.alone || step.plan.counts.tokens < settings.context_min_tokens) return;
  dealt.number = dealt_steps + 1;
  dealt.content = kDigestBasis;
  add_to_digest(dealt.content, static_cast<std::int64_t>(hand_overs));
  add_to_digest(dealt.content, dealt.hand_over_to);
  for (const StepEntry& entry : entries) {
    add_to_digest(dealt.content, manager->length(entry.sequence).value());
    add_to_digest(dealt.content, entry.tokens);
  }
}

bool Engine::Impl::note_dealt_step() {
  if (step.dealt.number > 0) dealt_steps = step.dealt.number;
  if (step.dealt.hand_over_to < 0) return false;
  hand_overs += step.hand_overs;
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
