// StepTimeModel: how long a step takes, from a step-time table.
//
// Decode. Points of one number of sequences are a row over the context, and rows are ordered by sequences. Between two
// points, and between two rows, the time follows the power law through both: it is linear in the logarithms (context 0
// counts as 1). The context is the mean over the step's sequences. Points of the step's tokens per sequence are used
// if there are any, otherwise those of one token with as many sequences as the step has decoded tokens.
//
// Prefill. The same with rows of one context over the tokens of the step; all prompts of a step count as one, with
// their mean context. Below the least tokens measured the time is proportional to the tokens, but not less than that
// of a decode step of one sequence.
//
// Both in one step: the sum, less the decode time of one sequence at the same context, because weights are read once;
// never less than the longer of both.
//
// Outside the points: below the least context or sequences the edge's time; above the most, the power law of the last
// two points of the row (or the last two rows) goes on, and with a single one the edge's time holds, for prefill
// tokens in proportion. Every such step counts as extrapolated.
//
// To that come what is no attention: moe_us_per_step and moe_us_per_token.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/step_table.h"

namespace dsv4rt::replay {

// A step as far as its time depends on it.
struct StepShapeTotals {
  std::int64_t decode_sequences = 0;
  std::int64_t decode_tokens = 0;          // all of them, drafts included
  std::int64_t decode_context_tokens = 0;  // sum over them
  std::int64_t prefill_sequences = 0;
  std::int64_t prefill_tokens = 0;
  double prefill_context_tokens = 0;  // sum over them, weighted by their tokens
};

struct StepTime {
  double microseconds = 0;
  bool extrapolated = false;
};

struct ExpertTimes {
  double us_per_step = 0;
  double us_per_token = 0;
};

// kInvalidArgument naming the value unless it is finite and 0 or more.
Status check_expert_times(const ExpertTimes& experts);

class StepTimeModel {
 public:
  // What StepTable::validate says; kInvalidArgument for expert times that are negative or not finite.
  static Result<StepTimeModel> create(const StepTable& table, const ExpertTimes& experts = {});

  [[nodiscard]] StepTime time(const StepShapeTotals& step) const;
  [[nodiscard]] const ExpertTimes& experts() const noexcept { return experts_; }

 private:
  struct Point {
    double at = 0;  // logarithm of the axis
    double log_us = 0;
  };
  using Row = std::vector<Point>;            // ascending
  using Grid = std::map<std::int64_t, Row>;  // outer axis -> row

  enum class Between : std::uint8_t { kPowerLaw, kLinear };  // rows of the outer axis

  static StepTime at(const Grid& grid, Between between, double outer, double inner);
  static StepTime along(const Row& row, double at);
  [[nodiscard]] StepTime decode_time(std::int64_t sequences, std::int64_t tokens, double context) const;
  [[nodiscard]] StepTime prefill_time(double tokens, double context) const;

  std::map<std::int64_t, Grid> decode_;  // tokens of each sequence; sequences -> row over context
  Grid prefill_;                         // context -> row over tokens
  ExpertTimes experts_;
};

}  // namespace dsv4rt::replay
