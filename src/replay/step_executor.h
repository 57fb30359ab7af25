// What a scheduler drives: something that holds sequences and runs steps of them. A model of a machine and an engine
// are two implementations.
//
// One thread calls it. A step is prepare -> run -> commit, or rollback after a failure; between prepare and its end
// nothing else is called.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4rt/prefix_cache.h"
#include "dsv4rt/status.h"
#include "dsv4rt/step.h"
#include "dsv4rt/types.h"

namespace dsv4rt::replay {

// One sequence's part of a step, and what the step's time depends on.
struct StepPart {
  StepEntry entry;                  // token_ids are set until the step ends
  std::int64_t context_tokens = 0;  // the sequence's length before the step
  bool prefill = false;             // tokens that are known; otherwise one sampled token and drafts after it
  std::int64_t request = 0;         // SchedulerRequest::id
  std::int64_t prompt_tokens = 0;   // the request's; outputs at positions from prompt_tokens - 1 on are its answer
};

// A sequence that was moved out of the cache.
using SavedSequence = StrongId<struct SavedSequenceTag, std::int64_t>;

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // A sequence that will hold these tokens; the first hit_tokens of them need not be run. Up to reserve_tokens its
  // steps cannot run out of blocks. kResourceExhausted: no room at present, nothing has changed.
  virtual Result<SequenceStart> create(std::span<const std::int32_t> token_ids, std::int64_t reserve_tokens) = 0;
  // Takes the blocks of a step. kResourceExhausted: they are short, nothing has changed.
  virtual Status prepare(std::span<const StepPart> parts) = 0;
  // Runs the prepared step; returns when its outputs are there.
  virtual Status run(std::span<const StepPart> parts) = 0;
  // Ends the step; accepted[i]: leading tokens of part i that stay.
  virtual Status commit(std::span<const std::int32_t> accepted) = 0;
  // Ends the step without any of its tokens.
  virtual Status rollback() = 0;
  virtual Status release(SequenceId sequence) = 0;

  // Moves a sequence to host memory and releases it. kResourceExhausted: no room there, nothing has changed.
  virtual Result<SavedSequence> save(SequenceId sequence) = 0;
  // The other way round; on kResourceExhausted it stays saved.
  virtual Result<SequenceId> restore(SavedSequence saved, std::int64_t reserve_tokens) = 0;
  virtual Status drop(SavedSequence saved) = 0;
};

}  // namespace dsv4rt::replay
