// Scheduler: which requests run, and what each step is made of. Continuous batching with chunked prefill.
//
// A step has a budget of tokens. Sequences that decode come first, each with one token and its drafts; then prompts
// that are under way, oldest first; what is left admits waiting requests. So at most one prompt is partly run at a
// time, and every admitted request advances in every step but while it is preempted.
//
// Requests are served in the order of their arrival; a priority is worth SchedulerOptions::aging_ns of waiting, so no
// priority starves another. Who cannot be admitted keeps those after it waiting. Nothing grows beyond its limit:
// submit refuses what the queue has no place for.
//
// A request is preempted once at most: it comes back with blocks set aside for all that it may become, and with these
// it is no victim any more. Hence a request that was admitted finishes, whatever arrives later.
//
// The same calls give the same steps. Not thread-safe: one thread owns it. Executor and content outlive it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "dsv4rt/status.h"
#include "dsv4rt/types.h"
#include "replay/step_executor.h"

namespace dsv4rt::replay {

// Blocks that are set aside at admission.
enum class Reservation : std::uint8_t {
  kWhole,   // for prompt and outputs: nothing is ever preempted for want of blocks
  kPrompt,  // for the prompt: more requests run at a time, and some are preempted
};

// What happens to a preempted sequence.
enum class Preemption : std::uint8_t {
  kRecompute,  // released; its tokens are run again, but for what the prefix cache kept
  kSnapshot,   // moved to host memory and back; recomputed when there is no room
};

struct SchedulerOptions {
  std::int32_t max_sequences = 1;       // running at a time
  std::int64_t max_context_tokens = 0;  // prompt and outputs of one request
  std::int32_t step_tokens = 0;         // budget; at least max_sequences * (1 + draft_tokens)
  std::int32_t max_waiting = 1024;      // requests that submit keeps; preempted ones are not counted
  std::int32_t draft_tokens = 0;        // verified with every decoded token
  std::int64_t aging_ns = 10'000'000'000;
  Reservation reservation = Reservation::kWhole;
  Preemption preemption = Preemption::kRecompute;
};

struct SchedulerRequest {
  std::int64_t id = 0;  // the caller's; unique among requests that have not ended
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;  // 0: the prompt is run, nothing else
  std::int32_t priority = 0;       // larger first
  std::int64_t arrival_ns = 0;
};

// Where a scheduler learns what tokens are. Positions count from the prompt's first token; outputs follow the prompt.
class RequestContent {
 public:
  virtual ~RequestContent() = default;
  virtual void token_ids(std::int64_t request, std::int64_t first, std::span<std::int32_t> ids) const = 0;
  // Guesses for the outputs from position `first` on, one for each of `ids`; returns how many leading ones are right.
  virtual std::int32_t draft(std::int64_t request, std::int64_t first, std::span<std::int32_t> ids) const = 0;
};

// What happened to a request in a step.
struct SchedulerEvent {
  enum class Kind : std::uint8_t {
    kAdmitted,   // hit_tokens, recomputed_tokens
    kTokens,     // output_tokens
    kPreempted,  // snapshot
    kFinished,
    kAborted,
  };
  Kind kind = Kind::kAdmitted;
  std::int64_t request = 0;
  std::int64_t hit_tokens = 0;         // need not be run
  std::int64_t recomputed_tokens = 0;  // have to be run again after a preemption
  std::int32_t output_tokens = 0;
  bool snapshot = false;
};

// Tokens of a step. Events before the step ran (kAdmitted, kPreempted) come first.
struct StepReport {
  bool ran = false;  // false: nothing was runnable
  std::int32_t decode_sequences = 0;
  std::int32_t decode_tokens = 0;  // drafts included
  std::int32_t prefill_sequences = 0;
  std::int32_t prefill_tokens = 0;
  std::int32_t drafted_tokens = 0;
  std::int32_t accepted_drafts = 0;
  std::size_t events_before = 0;           // leading events that happened before the step ran
  std::span<const SchedulerEvent> events;  // until the next call
};

// Requests that a scheduler holds.
struct QueueState {
  std::int32_t running = 0;
  std::int32_t waiting = 0;  // preempted ones not counted
  std::int32_t preempted = 0;
};

class Scheduler {
 public:
  // kInvalidArgument naming the option, its value and what is accepted.
  static Result<Scheduler> create(const SchedulerOptions& options, StepExecutor& executor,
                                  const RequestContent& content);

  // kResourceExhausted: the queue is full. kInvalidArgument: no tokens, or more than max_context_tokens. A refused
  // request leaves no trace.
  Status submit(const SchedulerRequest& request);
  // Runs the next step. A failure is the executor's: the step is rolled back, and only abort_all may follow.
  Result<StepReport> step();
  // Ends all requests; events say which. The first failure of the executor, after all were ended.
  Result<std::span<const SchedulerEvent>> abort_all();

  [[nodiscard]] bool idle() const noexcept { return running_.empty() && waiting_.empty(); }
  [[nodiscard]] std::int32_t running() const noexcept { return static_cast<std::int32_t>(running_.size()); }
  // Requests in the queue, preempted ones included; those are at most 2 * max_sequences.
  [[nodiscard]] std::int32_t waiting() const noexcept { return static_cast<std::int32_t>(waiting_.size()); }
  [[nodiscard]] std::int32_t preempted() const noexcept { return preempted_; }
  [[nodiscard]] QueueState queue() const noexcept { return {running(), waiting() - preempted_, preempted_}; }

 private:
  // Who comes first: the smaller one.
  struct Order {
    std::int64_t key_ns = 0;  // arrival, less what the priority is worth
    std::int64_t serial = 0;  // order of submission
    friend auto operator<=>(const Order&, const Order&) = default;
  };
  struct Entry {
    SchedulerRequest request;
    SequenceId sequence{};
    std::int64_t length = 0;       // tokens in the cache
    std::int64_t produced = 0;     // outputs; the last one is not in the cache yet
    std::int64_t lost_tokens = 0;  // tokens in the cache when it was preempted by recompute
    std::optional<SavedSequence> saved{};
    bool was_preempted = false;

    // Tokens whose ids are there.
    [[nodiscard]] std::int64_t known() const noexcept { return request.input_tokens + produced; }
    [[nodiscard]] bool decodes() const noexcept { return produced > 0 && known() - length == 1; }
  };
  using Entries = std::map<Order, Entry>;
  struct Planned {
    Entries::iterator entry;
    std::int32_t tokens = 0;
    std::int32_t drafts = 0;
    std::int32_t right_drafts = 0;
  };

  Scheduler(const SchedulerOptions& options, StepExecutor& executor, const RequestContent& content);
  void plan_running();
  void plan(Entries::iterator entry);
  Status admit_waiting();
  [[nodiscard]] Entries::iterator next_waiting();
  Result<bool> admit(Entries::iterator head);
  [[nodiscard]] std::int64_t reserve_tokens(const Entry& entry) const noexcept;
  // The last one that may be preempted; with `above`, among those that come after it and have a lower priority.
  [[nodiscard]] Entries::iterator victim(const Entries::value_type* above);
  Status preempt(Entries::iterator entry);
  Status prepare();
  void collect_token_ids();
  Status advance(StepReport& report);

  SchedulerOptions options_;
  StepExecutor* executor_;
  const RequestContent* content_;
  Entries waiting_;
  Entries running_;
  std::int32_t preempted_ = 0;  // preempted ones in waiting_
  std::int64_t next_serial_ = 0;
  bool room_may_be_there_ = true;  // something was released since an admission was refused
  std::int32_t budget_ = 0;        // tokens left in the step being planned
  std::vector<Planned> planned_;
  std::vector<StepPart> parts_;  // the same as planned_, for the executor
  std::vector<std::int32_t> accepted_;
  std::vector<std::int32_t> step_ids_;   // [step_tokens]
  std::vector<std::int32_t> known_ids_;  // ids of a request being admitted
  std::vector<SchedulerEvent> events_;
};

}  // namespace dsv4rt::replay
