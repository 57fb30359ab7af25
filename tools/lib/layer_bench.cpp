#include "tools/lib/layer_bench.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/arithmetic.h"
#include "base/bfloat16.h"
#include "base/try.h"
#include "checkpoint/synthetic_values.h"
#include "tools/lib/bench_check.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/median.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;

class LayerBench {
 public:
  LayerBench(Engine& engine, const LayerBenchOptions& options, WorkWatch* watch)
      : engine_(engine),
        options_(options),
        watch_(watch),
        prefill_chunk_(std::max<std::int64_t>(1, options.prefill_tokens / options.batch)),
        check_chunk_(std::max<std::int64_t>(1, options.prefill_tokens / options.batch * 7 / 8)),
        hidden_(engine.config().hidden_size),
        inputs_(options.seed, "layer bench input"),
        prefill_ms_(engine.layers().size()),
        decode_ms_(engine.layers().size()) {}

  Status run();
  [[nodiscard]] std::vector<LayerBenchResult> results() const;

 private:
  using Times = std::vector<std::vector<double>>;

  // Runs one step of `tokens` tokens of each sequence from their current end.
  Status step(std::span<const SequenceId> sequences, std::int64_t tokens, Times* times);
  // Appends up to `length` tokens in chunks.
  Status fill(std::span<const SequenceId> sequences, std::int64_t length, std::int64_t chunk);
  Status time_prefill();
  Status time_decode();
  Status check_last_token();

  [[nodiscard]] std::int64_t check_length() const { return options_.context_tokens + options_.decode_steps + 1; }
  // Layers of all steps.
  [[nodiscard]] std::int64_t all_layer_runs() const {
    const std::int64_t steps = options_.prefill_repeats + 1 + ceil_div(options_.context_tokens, prefill_chunk_) +
                               options_.decode_steps + 1 + ceil_div(check_length(), check_chunk_);
    return steps * static_cast<std::int64_t>(engine_.layers().size());
  }

  // Input of sequence `s` at `position`: the same whatever the chunking.
  void fill_input(std::size_t s, std::int64_t position, bf16* row) const {
    const auto first = (static_cast<std::uint64_t>(s) << 40) + static_cast<std::uint64_t>(position * hidden_);
    for (std::int64_t i = 0; i < hidden_; ++i) row[i] = to_bf16(inputs_.normal(first + static_cast<std::uint64_t>(i)));
  }

  Engine& engine_;
  const LayerBenchOptions& options_;
  WorkWatch* watch_;            // may be null
  std::int64_t prefill_chunk_;  // tokens of a sequence in one step
  std::int64_t check_chunk_;    // another cut of the same tokens
  std::int64_t layers_run_ = 0;
  std::int64_t hidden_;
  SyntheticStream inputs_;
  std::vector<bf16> x_;
  std::vector<bf16> out_;
  std::vector<std::vector<bf16>> last_rows_;  // per layer, the last row of the last step
  Times prefill_ms_;
  Times decode_ms_;
};

Status LayerBench::step(std::span<const SequenceId> sequences, std::int64_t tokens, Times* times) {
  std::vector<StepEntry> entries;
  const auto rows = static_cast<std::int64_t>(sequences.size()) * tokens;
  x_.resize(static_cast<std::size_t>(rows * hidden_));
  out_.resize(x_.size());
  bf16* row = x_.data();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    entries.push_back({sequences[s], static_cast<std::int32_t>(tokens)});
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t start, engine_.length(sequences[s]));
    for (std::int64_t t = 0; t < tokens; ++t, row += hidden_) fill_input(s, start + t, row);
  }
  DSV4RT_ASSIGN_OR_RETURN(const Step step, engine_.prepare(entries));
  last_rows_.clear();
  for (std::size_t i = 0; i < engine_.layers().size(); ++i) {
    DSV4RT_RETURN_IF_ERROR(check_watch(watch_));
    const Clock::time_point begin = Clock::now();
    DSV4RT_RETURN_IF_ERROR(engine_.forward_layer_from_host(step, engine_.layers()[i],
                                                           reinterpret_cast<const Bf16Bits*>(x_.data()),
                                                           reinterpret_cast<Bf16Bits*>(out_.data())));
    if (times != nullptr) {
      (*times)[i].push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    last_rows_.emplace_back(out_.end() - hidden_, out_.end());
    if (watch_ != nullptr) watch_->tell(++layers_run_, all_layer_runs());
  }
  return engine_.commit(step);
}

Status LayerBench::fill(std::span<const SequenceId> sequences, std::int64_t length, std::int64_t chunk) {
  for (std::int64_t done = 0; done < length;) {
    const std::int64_t tokens = std::min(chunk, length - done);
    DSV4RT_RETURN_IF_ERROR(step(sequences, tokens, nullptr));
    done += tokens;
  }
  return {};
}

Status LayerBench::time_prefill() {
  for (std::int32_t repeat = 0; repeat <= options_.prefill_repeats; ++repeat) {
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence());
    DSV4RT_RETURN_IF_ERROR(step({&sequence, 1}, options_.prefill_tokens, repeat == 0 ? nullptr : &prefill_ms_));
    DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
  }
  return {};
}

Status LayerBench::time_decode() {
  std::vector<SequenceId> sequences;
  for (std::int32_t s = 0; s < options_.batch; ++s) {
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence());
    sequences.push_back(sequence);
  }
  DSV4RT_RETURN_IF_ERROR(fill(sequences, options_.context_tokens, prefill_chunk_));
  DSV4RT_RETURN_IF_ERROR(step(sequences, 1, nullptr));
  for (std::int32_t i = 0; i < options_.decode_steps; ++i) {
    DSV4RT_RETURN_IF_ERROR(step(sequences, 1, &decode_ms_));
  }
  // The last row belongs to the last sequence; keep the others' slots free for the check.
  for (const SequenceId sequence : sequences) DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
  return {};
}

Status LayerBench::check_last_token() {
  const std::vector<std::vector<bf16>> decoded = last_rows_;
  std::vector<SequenceId> sequences;
  for (std::int32_t s = 0; s < options_.batch; ++s) {
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence());
    sequences.push_back(sequence);
  }
  DSV4RT_RETURN_IF_ERROR(fill(sequences, check_length(), check_chunk_));
  for (const SequenceId sequence : sequences) DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
  const bool deterministic = EngineInspector(engine_).deterministic();
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    if (agree(relative_distance(decoded[i], last_rows_[i]), deterministic, kTokenTolerance)) continue;
    return {StatusCode::kMismatch, "layer " + std::to_string(engine_.layers()[i].value) +
                                       ": the last decoded token differs from the same token prefilled in chunks"};
  }
  return {};
}

Status LayerBench::run() {
  DSV4RT_RETURN_IF_ERROR(time_prefill());
  DSV4RT_RETURN_IF_ERROR(time_decode());
  return check_last_token();
}

std::vector<LayerBenchResult> LayerBench::results() const {
  std::vector<LayerBenchResult> results;
  for (std::size_t i = 0; i < prefill_ms_.size(); ++i) {
    results.push_back(
        {.layer = engine_.layers()[i], .prefill_ms = median(prefill_ms_[i]), .decode_ms = median(decode_ms_[i])});
  }
  return results;
}

Status check_options(const LayerBenchOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) -> Status {
    if (value > 0) return {};
    return {StatusCode::kInvalidArgument, std::string(name) + ": " + std::to_string(value) + "; accepted: 1 or more"};
  };
  DSV4RT_RETURN_IF_ERROR(positive("prefill_tokens", options.prefill_tokens));
  DSV4RT_RETURN_IF_ERROR(positive("prefill_repeats", options.prefill_repeats));
  DSV4RT_RETURN_IF_ERROR(positive("context_tokens", options.context_tokens));
  DSV4RT_RETURN_IF_ERROR(positive("decode_steps", options.decode_steps));
  return positive("batch", options.batch);
}

}  // namespace

CacheLimits bench_limits(const LayerBenchOptions& options) {
  const std::int64_t context = options.context_tokens + options.decode_steps + 1;
  const std::int64_t step_tokens = std::max<std::int64_t>(options.prefill_tokens, options.batch);
  return {.max_sequences = options.batch,
          .max_context_tokens = std::max(context, options.prefill_tokens),
          .max_step_tokens = static_cast<std::int32_t>(std::clamp<std::int64_t>(step_tokens, 1, INT32_MAX)),
          .pool_tokens = 0};
}

Result<std::vector<LayerBenchResult>> bench_layers(Engine& engine, const LayerBenchOptions& options, WorkWatch* watch) {
  DSV4RT_RETURN_IF_ERROR(check_options(options));
  LayerBench bench(engine, options, watch);
  const Status status = bench.run();
  if (!status.ok() && (watch == nullptr || !watch->stopped())) return status;
  return bench.results();
}

}  // namespace dsv4rt
