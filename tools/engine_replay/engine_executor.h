// An engine behind the scheduler of replays: sequences, steps and snapshots are the engine's, time is what they took.
//
// The clock goes on by the measured time of every call that a serving stack would wait for: creating, preparing,
// running until the outputs are there, committing, moving to host memory and back, releasing. Making the hidden states
// of a step and digesting its outputs is not timed. Steps in which every sequence decodes are captured where the
// backend can.
//
// One thread at a time. Engine and clock outlive it, and nobody else uses the engine meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv4rt/engine.h"
#include "replay/clock.h"
#include "replay/replay_executor.h"
#include "tools/engine_replay/output_digests.h"
#include "tools/engine_replay/token_rows.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt {

struct EngineExecutorOptions {
  std::uint64_t seed = 0;  // decides the hidden states
  // Digest the answers. Outputs of the rows that matter are copied aside within the step, which is timed.
  bool digests = true;
  std::int32_t draft_tokens = 0;                         // in steps of the replay, which are captured before it begins
  replay::ExpertTimes experts;                           // added to every step
  std::int64_t snapshot_bytes = std::int64_t{16} << 30;  // host memory for sequences
  // What times are read from; null: steady_clock. Several engines have copies, called from their threads.
  std::function<std::int64_t()> now_ns;
};

class EngineExecutor : public replay::ReplayExecutor {
 public:
  // Where the backend captures, runs a prompt and decode steps of every shape first. Errors: of these; kInvalidArgument
  // for options; kResourceExhausted for the memory of the rows to digest, [layers, max_step_tokens, hidden_size] BF16.
  static Result<std::unique_ptr<EngineExecutor>> create(Engine& engine, const EngineExecutorOptions& options,
                                                        replay::VirtualClock& clock);

  Result<SequenceStart> create(std::span<const std::int32_t> token_ids, std::int64_t reserve_tokens) override;
  Status prepare(std::span<const replay::StepPart> parts) override;
  Status run(std::span<const replay::StepPart> parts) override;
  Status commit(std::span<const std::int32_t> accepted) override;
  Status rollback() override;
  Status release(SequenceId sequence) override;
  Result<replay::SavedSequence> save(SequenceId sequence) override;
  Result<SequenceId> restore(replay::SavedSequence saved, std::int64_t reserve_tokens) override;
  Status drop(replay::SavedSequence saved) override;

  [[nodiscard]] const MemoryPlan& memory_plan() const override { return engine_.memory().cache; }
  void occupancy(replay::CacheOccupancy& occupancy) const override;
  [[nodiscard]] PrefixStats prefix_stats() const override { return engine_.prefix_stats(); }
  [[nodiscard]] std::int64_t cached_tokens(std::span<const std::int32_t> token_ids) const override;
  [[nodiscard]] replay::ExecutorCounts counts() const override;
  [[nodiscard]] std::optional<replay::EngineOrigin> engine_origin() const override;
  [[nodiscard]] Status check() const override { return inspector_.cache_manager().check_invariants(); }
  std::string take_output_digest(std::int64_t request) override { return digests_.take(request); }

  // Rows of answers that were computed again after a preemption, and were the same.
  [[nodiscard]] std::int64_t repeated_rows() const noexcept { return digests_.repeated_rows(); }
  // Host memory that saved sequences have at present.
  [[nodiscard]] std::int64_t saved_bytes() const noexcept { return saved_bytes_; }

 private:
  // Rows of the step's x that belong to a request's answer.
  struct AnswerRows {
    std::int64_t request = 0;
    std::int64_t first_position = 0;
    std::int32_t first_row = 0;
    std::int32_t rows = 0;
    std::size_t part = 0;
    std::int32_t skipped = 0;  // rows of the part before them
  };
  struct RowRange {
    std::int32_t first = 0;
    std::int32_t rows = 0;
  };

  EngineExecutor(Engine& engine, const EngineExecutorOptions& options, replay::VirtualClock& clock);
  // Lets the clock go on by what `work` took.
  template <class Work>
  auto timed(Work&& work);
  Status warm_up();
  Status warm_up_with(std::span<const SequenceId> sequences);
  Status run_unasked(bool capture);
  Status upload_rows(std::span<const replay::StepPart> parts);
  void find_answers(std::span<const replay::StepPart> parts);
  Status run_step();
  Status keep_rows(const LayerOutput& output);
  Status digest_rows();
  [[nodiscard]] Bf16Bits* kept_row(std::size_t layer, std::int32_t row) const noexcept;

  Engine& engine_;
  EngineInspector inspector_;
  EngineExecutorOptions options_;
  replay::VirtualClock& clock_;
  std::int64_t hidden_size_;
  TokenRows token_rows_;
  Buffer kept_;                      // backend memory [layers, max_step_tokens, hidden_size]; empty without digests
  std::vector<Bf16Bits> host_rows_;  // [max_step_tokens, hidden_size]
  LayerHook hook_;

  std::vector<StepEntry> entries_;
  Step step_;
  bool capture_ = false;
  // Of the outstanding step.
  std::vector<AnswerRows> answers_;
  std::vector<RowRange> kept_rows_;  // copied aside in every layer
  std::vector<Sha256> row_digests_;  // one for each row of answers_, in their order
  std::vector<Sha256::Digest> row_values_;
  OutputDigests digests_;

  std::map<std::int64_t, std::vector<std::byte>> saved_;
  std::int64_t saved_bytes_ = 0;
  std::int64_t next_saved_ = 0;
  GraphStats stats_at_start_;
  replay::ExecutorCounts counts_;
};

}  // namespace dsv4rt
