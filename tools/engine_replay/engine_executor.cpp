#include "tools/engine_replay/engine_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "engine/step_shape.h"
#include "replay/cache_occupancy.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt {

using replay::SavedSequence;
using replay::StepPart;

namespace {

// The work that keep_rows enqueues depends on the rows of a captured step alone.
constexpr std::uint64_t kHookKey = 1;

std::int64_t steady_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

template <class Work>
auto EngineExecutor::timed(Work&& work) {
  const std::int64_t begin_ns = options_.now_ns();
  auto result = work();
  // A step takes time, whatever a clock says: a replay must end.
  clock_.advance(std::max<std::int64_t>(1, options_.now_ns() - begin_ns));
  return result;
}

EngineExecutor::EngineExecutor(Engine& engine, const EngineExecutorOptions& options, replay::VirtualClock& clock)
    : engine_(engine),
      inspector_(engine),
      options_(options),
      clock_(clock),
      hidden_size_(engine.config().hidden_size),
      token_rows_(options.seed, engine.config().hidden_size),
      host_rows_(static_cast<std::size_t>(engine.memory().cache.limits.max_step_tokens * hidden_size_)),
      hook_([this](const LayerOutput& output) { return keep_rows(output); }) {
  if (!options_.now_ns) options_.now_ns = steady_ns;
}

Result<std::unique_ptr<EngineExecutor>> EngineExecutor::create(Engine& engine, const EngineExecutorOptions& options,
                                                               replay::VirtualClock& clock) {
  if (options.snapshot_bytes < 0 || options.draft_tokens < 0) {
    return Status{StatusCode::kInvalidArgument, "snapshot_bytes = " + std::to_string(options.snapshot_bytes) +
                                                    ", draft_tokens = " + std::to_string(options.draft_tokens) +
                                                    "; accepted: 0 or more"};
  }
  DSV4RT_RETURN_IF_ERROR(replay::check_expert_times(options.experts));
  std::unique_ptr<EngineExecutor> executor(new EngineExecutor(engine, options, clock));
  if (options.digests) {
    const std::size_t bytes = engine.layers().size() * executor->host_rows_.size() * sizeof(Bf16Bits);
    DSV4RT_ASSIGN_OR_RETURN(executor->kept_,
                            executor->inspector_.backend().allocate(bytes, "outputs that a replay digests"));
  }
  if (executor->inspector_.backend().can_capture()) DSV4RT_RETURN_IF_ERROR(executor->warm_up());
  executor->stats_at_start_ = engine.graph_stats();
  executor->counts_.captured_steps = 0;
  executor->counts_.graph_captures = 0;
  return executor;
}

// ---- Warming up ---------------------------------------------------------------------------------

// The first steps of a process load code, and decode steps have a graph for every shape: serving stacks make these at
// their start, and so does this one. The contexts of its sequences are not computed.
Status EngineExecutor::warm_up() {
  const CacheLimits& limits = memory_plan().limits;
  std::vector<SequenceId> sequences;
  while (static_cast<std::int32_t>(sequences.size()) < limits.max_sequences) {
    const Result<SequenceId> more = engine_.create_sequence();
    if (!more.ok()) break;
    sequences.push_back(*more);
  }
  Status status = warm_up_with(sequences);
  // The pool or the context end before the shapes do: what there is of them is warm.
  if (status.code() == StatusCode::kResourceExhausted) status = {};
  for (const SequenceId sequence : sequences) DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
  DSV4RT_RETURN_IF_ERROR(status);
  return engine_.synchronize();
}

Status EngineExecutor::warm_up_with(std::span<const SequenceId> sequences) {
  const CacheLimits& limits = memory_plan().limits;
  const std::int64_t width = 1 + std::int64_t{options_.draft_tokens};
  const std::int64_t most_decoded =
      std::min<std::int64_t>({limits.max_sequences * width, limits.max_step_tokens, GraphOptions{}.max_tokens});
  entries_ = {{.sequence = sequences.front(),
               .tokens = static_cast<std::int32_t>(
                   std::min<std::int64_t>(limits.max_step_tokens, limits.max_context_tokens / 2))}};
  DSV4RT_RETURN_IF_ERROR(run_unasked(false));
  std::int64_t length = entries_.front().tokens;
  for (;;) {
    std::int64_t tokens = 1;
    for (bool last = false; !last; tokens = token_bucket(static_cast<std::int32_t>(tokens + 1))) {
      last = tokens >= most_decoded;
      tokens = std::min(tokens, most_decoded);
      entries_.clear();
      for (std::int64_t left = tokens; left > 0; left -= width) {
        entries_.push_back(
            {.sequence = sequences[entries_.size()], .tokens = static_cast<std::int32_t>(std::min(left, width))});
      }
      length += entries_.front().tokens;
      if (length > limits.max_context_tokens || engine_.graph_stats().evictions > 0) return {};
      DSV4RT_RETURN_IF_ERROR(run_unasked(true));
    }
    const std::int64_t next = context_bucket(static_cast<std::int32_t>(length)) + std::int64_t{1};
    if (next > limits.max_context_tokens) return {};
    DSV4RT_RETURN_IF_ERROR(EngineEditor(engine_).skip_tokens(sequences.first(1), next - length));
    length = next;
  }
}

// A step of entries_ that no request asked for.
Status EngineExecutor::run_unasked(bool capture) {
  capture_ = capture;
  DSV4RT_ASSIGN_OR_RETURN(step_, engine_.prepare(entries_, {.pad_to_tokens = 0, .capture = capture}));
  find_answers({});
  DSV4RT_RETURN_IF_ERROR(run_step());
  return engine_.commit(step_);
}

// ---- Sequences ----------------------------------------------------------------------------------

Result<SequenceStart> EngineExecutor::create(std::span<const std::int32_t> token_ids, std::int64_t reserve_tokens) {
  return timed([&]() -> Result<SequenceStart> {
    if (memory_plan().limits.boundary_states == 0) {
      DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence(reserve_tokens));
      return SequenceStart{.sequence = sequence};
    }
    SequenceOptions options;
    options.reserve_tokens = reserve_tokens;
    return engine_.create_sequence(token_ids, options);
  });
}

Status EngineExecutor::release(SequenceId sequence) {
  return timed([&] { return engine_.release(sequence); });
}

Result<SavedSequence> EngineExecutor::save(SequenceId sequence) {
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t bytes, engine_.snapshot_bytes(sequence));
  if (bytes > options_.snapshot_bytes - saved_bytes_) {
    return Status{StatusCode::kResourceExhausted,
                  "host memory for sequences: " + std::to_string(bytes) + " bytes are needed, " +
                      std::to_string(options_.snapshot_bytes - saved_bytes_) + " are left"};
  }
  DSV4RT_ASSIGN_OR_RETURN(std::vector<std::byte> snapshot, timed([&] { return engine_.save_sequence(sequence); }));
  DSV4RT_RETURN_IF_ERROR(release(sequence));
  saved_bytes_ += static_cast<std::int64_t>(snapshot.size());
  counts_.saves += 1;
  counts_.saved_bytes += static_cast<std::int64_t>(snapshot.size());
  counts_.peak_saved_bytes = std::max(counts_.peak_saved_bytes, saved_bytes_);
  saved_.emplace(next_saved_, std::move(snapshot));
  return SavedSequence(next_saved_++);
}

Result<SequenceId> EngineExecutor::restore(SavedSequence saved, std::int64_t reserve_tokens) {
  const auto found = saved_.find(saved.value);
  DSV4RT_CHECK(found != saved_.end());
  DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, timed([&]() -> Result<SequenceId> {
                            DSV4RT_ASSIGN_OR_RETURN(const SequenceId restored,
                                                    engine_.restore_sequence(found->second, reserve_tokens));
                            DSV4RT_RETURN_IF_ERROR(engine_.synchronize());
                            return restored;
                          }));
  DSV4RT_RETURN_IF_ERROR(drop(saved));
  return sequence;
}

Status EngineExecutor::drop(SavedSequence saved) {
  const auto found = saved_.find(saved.value);
  DSV4RT_CHECK(found != saved_.end());
  saved_bytes_ -= static_cast<std::int64_t>(found->second.size());
  saved_.erase(found);
  return {};
}

// ---- Steps --------------------------------------------------------------------------------------

Status EngineExecutor::prepare(std::span<const StepPart> parts) {
  entries_.clear();
  for (const StepPart& part : parts) entries_.push_back(part.entry);
  capture_ = std::none_of(parts.begin(), parts.end(), [](const StepPart& part) { return part.prefill; });
  DSV4RT_ASSIGN_OR_RETURN(step_,
                          timed([&] { return engine_.prepare(entries_, {.pad_to_tokens = 0, .capture = capture_}); }));
  return {};
}

Status EngineExecutor::run(std::span<const StepPart> parts) {
  note_occupancy();
  DSV4RT_RETURN_IF_ERROR(upload_rows(parts));
  find_answers(parts);
  DSV4RT_RETURN_IF_ERROR(timed([&] { return run_step(); }));
  const double expert_us =
      options_.experts.us_per_step + options_.experts.us_per_token * static_cast<double>(step_.valid_tokens);
  clock_.advance(std::llround(expert_us * replay::kNsPerUs));
  return digest_rows();
}

// Padding rows keep what they hold: any finite values.
Status EngineExecutor::upload_rows(std::span<const StepPart> parts) {
  std::int64_t row = 0;
  for (const StepPart& part : parts) {
    const std::span<const std::int32_t> ids(part.entry.token_ids, static_cast<std::size_t>(part.entry.tokens));
    token_rows_.gather(ids, host_rows_.data() + row * hidden_size_);
    row += part.entry.tokens;
  }
  DSV4RT_RETURN_IF_ERROR(inspector_.backend().upload(engine_.input(), host_rows_.data(),
                                                     static_cast<std::size_t>(row * hidden_size_) * sizeof(Bf16Bits)));
  return engine_.synchronize();
}

void EngineExecutor::find_answers(std::span<const StepPart> parts) {
  answers_.clear();
  kept_rows_.clear();
  if (!options_.digests) return;
  std::int32_t row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StepPart& part = parts[i];
    const std::int64_t skipped = std::max<std::int64_t>(0, part.prompt_tokens - 1 - part.context_tokens);
    if (skipped < part.entry.tokens) {
      const auto before = static_cast<std::int32_t>(skipped);
      answers_.push_back({.request = part.request,
                          .first_position = part.context_tokens + skipped,
                          .first_row = row + before,
                          .rows = part.entry.tokens - before,
                          .part = i,
                          .skipped = before});
    }
    row += part.entry.tokens;
  }
  if (capture_) {
    kept_rows_.push_back({.first = 0, .rows = step_.tokens});
    return;
  }
  for (const AnswerRows& answer : answers_) {
    if (!kept_rows_.empty() && kept_rows_.back().first + kept_rows_.back().rows == answer.first_row) {
      kept_rows_.back().rows += answer.rows;
    } else {
      kept_rows_.push_back({.first = answer.first_row, .rows = answer.rows});
    }
  }
}

Status EngineExecutor::run_step() {
  DSV4RT_RETURN_IF_ERROR(engine_.step(step_, engine_.input(), hook_, kHookKey));
  return engine_.synchronize();
}

// The layers' inputs stay what they are: there are no experts.
Status EngineExecutor::keep_rows(const LayerOutput& output) {
  const auto layer = static_cast<std::size_t>(output.layer.value - engine_.layers().front().value);
  for (const RowRange& range : kept_rows_) {
    DSV4RT_RETURN_IF_ERROR(
        inspector_.backend().copy(kept_row(layer, range.first), output.output + range.first * hidden_size_,
                                  static_cast<std::size_t>(range.rows * hidden_size_) * sizeof(Bf16Bits)));
  }
  return {};
}

Bf16Bits* EngineExecutor::kept_row(std::size_t layer, std::int32_t row) const noexcept {
  return kept_.as<Bf16Bits>() + layer * host_rows_.size() + row * hidden_size_;
}

Status EngineExecutor::digest_rows() {
  std::size_t rows = 0;
  for (const AnswerRows& answer : answers_) rows += static_cast<std::size_t>(answer.rows);
  if (row_digests_.size() < rows) row_digests_.resize(rows);
  for (std::size_t i = 0; i < rows; ++i) row_digests_[i].restart();
  const std::size_t row_bytes = static_cast<std::size_t>(hidden_size_) * sizeof(Bf16Bits);
  for (std::size_t layer = 0; layer < engine_.layers().size(); ++layer) {
    for (const RowRange& range : kept_rows_) {
      DSV4RT_RETURN_IF_ERROR(inspector_.backend().download(host_rows_.data() + range.first * hidden_size_,
                                                           kept_row(layer, range.first),
                                                           static_cast<std::size_t>(range.rows) * row_bytes));
    }
    std::size_t next = 0;
    for (const AnswerRows& answer : answers_) {
      for (std::int32_t i = 0; i < answer.rows; ++i) {
        const Bf16Bits* row = host_rows_.data() + (answer.first_row + i) * hidden_size_;
        row_digests_[next++].update({reinterpret_cast<const std::byte*>(row), row_bytes});
      }
    }
  }
  row_values_.clear();
  for (std::size_t i = 0; i < rows; ++i) row_values_.push_back(row_digests_[i].finish());
  return {};
}

Status EngineExecutor::commit(std::span<const std::int32_t> accepted) {
  Status status;
  std::size_t first = 0;
  for (const AnswerRows& answer : answers_) {
    const std::int32_t stay = std::clamp(accepted[answer.part] - answer.skipped, 0, answer.rows);
    for (std::int32_t i = 0; i < stay && status.ok(); ++i) {
      status =
          digests_.add(answer.request, answer.first_position + i, row_values_[first + static_cast<std::size_t>(i)]);
    }
    first += static_cast<std::size_t>(answer.rows);
  }
  if (status.ok()) {
    status = timed([&]() -> Status {
      DSV4RT_RETURN_IF_ERROR(engine_.commit(step_, accepted));
      return engine_.synchronize();
    });
  }
  // Nobody rolls back a commit that failed; what an engine that is latched answers to it says nothing new.
  if (!status.ok()) static_cast<void>(engine_.cancel(step_));
  return status;
}

Status EngineExecutor::rollback() {
  return engine_.cancel(step_).status();
}

// ---- Questions ----------------------------------------------------------------------------------

void EngineExecutor::occupancy(replay::CacheOccupancy& occupancy) const {
  replay::read_occupancy(inspector_.cache_manager(), inspector_.cache_layout(), memory_plan().limits, occupancy);
}

std::int64_t EngineExecutor::cached_tokens(std::span<const std::int32_t> token_ids) const {
  if (memory_plan().limits.boundary_states == 0) return 0;
  const auto found = inspector_.cache_manager().prefix_lookup(token_ids, {});
  return found.ok() ? found->hit_tokens : 0;
}

replay::ExecutorCounts EngineExecutor::counts() const {
  replay::ExecutorCounts counts = counts_;
  const GraphStats stats = engine_.graph_stats();
  counts.captured_steps = stats.replays - stats_at_start_.replays;
  counts.graph_captures = stats.captures - stats_at_start_.captures;
  return counts;
}

std::optional<replay::EngineOrigin> EngineExecutor::engine_origin() const {
  const EngineMemory& memory = engine_.memory();
  return replay::EngineOrigin{.backend = std::string(inspector_.backend().name()),
                              .layers = static_cast<std::int32_t>(engine_.layers().size()),
                              .linear_precision = inspector_.linear_precision(),
                              .experts = options_.experts,
                              .weight_bytes = memory.weight_bytes,
                              .workspace_bytes = memory.workspace_bytes,
                              .scratch_bytes = memory.scratch_bytes,
                              .graph_bytes = memory.graph_bytes,
                              .output_row_bytes = static_cast<std::int64_t>(kept_.size())};
}

}  // namespace dsv4rt
