#include "replay/step_time_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "base/try.h"

namespace dsv4rt::replay {
namespace {

double log_axis(double value) {
  return std::log(std::max(value, 1.0));
}

Status check_expert_time(const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return {};
  return {StatusCode::kInvalidArgument,
          std::string(name) + " = " + std::to_string(value) + "; accepted: microseconds, 0 or more"};
}

}  // namespace

Status check_expert_times(const ExpertTimes& experts) {
  DSV4RT_RETURN_IF_ERROR(check_expert_time("moe_us_per_step", experts.us_per_step));
  return check_expert_time("moe_us_per_token", experts.us_per_token);
}

Result<StepTimeModel> StepTimeModel::create(const StepTable& table, const ExpertTimes& experts) {
  DSV4RT_RETURN_IF_ERROR(table.validate("step-time table"));
  DSV4RT_RETURN_IF_ERROR(check_expert_times(experts));
  StepTimeModel model;
  model.experts_ = experts;
  for (const StepPoint& point : table.points) {
    const double log_us = std::log(point.microseconds);
    const auto context = static_cast<double>(point.context_tokens);
    if (point.kind == StepKind::kDecode) {
      model.decode_[point.tokens][point.sequences].push_back({.at = log_axis(context), .log_us = log_us});
    } else {
      const auto tokens = static_cast<double>(point.tokens * point.sequences);
      model.prefill_[point.context_tokens].push_back({.at = log_axis(tokens), .log_us = log_us});
    }
  }
  const auto sort = [](Grid& grid) {
    for (auto& [outer, row] : grid) {
      std::sort(row.begin(), row.end(), [](const Point& a, const Point& b) { return a.at < b.at; });
      // Several prompts of one sum of tokens: the first counts.
      row.erase(std::unique(row.begin(), row.end(), [](const Point& a, const Point& b) { return a.at == b.at; }),
                row.end());
    }
  };
  for (auto& [tokens, grid] : model.decode_) sort(grid);
  sort(model.prefill_);
  return model;
}

// A StepTime whose microseconds are still a logarithm.
StepTime StepTimeModel::along(const Row& row, double at) {
  if (at <= row.front().at) return {.microseconds = row.front().log_us, .extrapolated = at < row.front().at};
  const bool beyond = at > row.back().at;
  if (row.size() == 1) return {.microseconds = row.back().log_us, .extrapolated = beyond};
  auto upper = std::lower_bound(row.begin(), row.end(), at, [](const Point& p, double value) { return p.at < value; });
  if (upper == row.end()) --upper;
  const Point& a = *(upper - 1);
  const Point& b = *upper;
  return {.microseconds = a.log_us + (b.log_us - a.log_us) * (at - a.at) / (b.at - a.at), .extrapolated = beyond};
}

// Interpolates within the two rows around `outer`, then between them: linear in the logarithms, or (kLinear) in what a
// row more or less of context costs.
StepTime StepTimeModel::at(const Grid& grid, Between between, double outer, double inner) {
  const double inner_at = log_axis(inner);
  const auto row_time = [&](Grid::const_iterator row) { return along(row->second, inner_at); };
  auto upper =
      std::find_if(grid.begin(), grid.end(), [&](const auto& row) { return static_cast<double>(row.first) >= outer; });
  const bool beyond = upper == grid.end();
  if (beyond) --upper;
  if (upper == grid.begin() || static_cast<double>(upper->first) == outer) {
    StepTime edge = row_time(upper);
    edge.microseconds = std::exp(edge.microseconds);
    edge.extrapolated |= static_cast<double>(upper->first) != outer;
    return edge;
  }
  const auto lower = std::prev(upper);
  const StepTime a = row_time(lower);
  const StepTime b = row_time(upper);
  const bool extrapolated = a.extrapolated || b.extrapolated || beyond;
  if (between == Between::kLinear) {
    const auto first = static_cast<double>(lower->first);
    const double a_us = std::exp(a.microseconds);
    const double b_us = std::exp(b.microseconds);
    const double share = (outer - first) / (static_cast<double>(upper->first) - first);
    return {.microseconds = std::max(a_us + (b_us - a_us) * share, std::min(a_us, b_us)), .extrapolated = extrapolated};
  }
  const double from = log_axis(static_cast<double>(lower->first));
  const double to = log_axis(static_cast<double>(upper->first));
  // Contexts 0 and 1 are one point of the axis.
  const double share = to > from ? (log_axis(outer) - from) / (to - from) : 1.0;
  return {.microseconds = std::exp(a.microseconds + (b.microseconds - a.microseconds) * share),
          .extrapolated = extrapolated};
}

StepTime StepTimeModel::decode_time(std::int64_t sequences, std::int64_t tokens, double context) const {
  // Near its end a request has fewer drafts; a step's tokens per sequence need be no whole number.
  const std::int64_t each = (tokens + sequences - 1) / sequences;
  const auto measured = decode_.find(each);
  if (measured != decode_.end())
    return at(measured->second, Between::kPowerLaw, static_cast<double>(sequences), context);
  StepTime time = at(decode_.at(1), Between::kPowerLaw, static_cast<double>(tokens), context);
  time.extrapolated = true;
  return time;
}

StepTime StepTimeModel::prefill_time(double tokens, double context) const {
  StepTime time = at(prefill_, Between::kLinear, context, tokens);
  // Rows may differ in the tokens they were measured with; the row that is used most decides what is out of range.
  auto row = prefill_.upper_bound(static_cast<std::int64_t>(context));
  if (row != prefill_.begin()) --row;
  const double least = std::exp(row->second.front().at);
  const double most = std::exp(row->second.back().at);
  if (tokens < least * (1 - 1e-9)) {
    const double proportional = at(prefill_, Between::kLinear, context, least).microseconds * tokens / least;
    time = {.microseconds = std::max(proportional, decode_time(1, 1, context).microseconds), .extrapolated = true};
  } else if (row->second.size() == 1 && tokens > most * (1 + 1e-9)) {
    time = {.microseconds = at(prefill_, Between::kLinear, context, most).microseconds * tokens / most,
            .extrapolated = true};
  }
  // Measured from empty only: a part takes what the prompt takes longer with it than without, but not less than by
  // itself.
  if (prefill_.size() == 1 && prefill_.begin()->first == 0 && context > 0) {
    const double with = at(prefill_, Between::kLinear, 0, context + tokens).microseconds;
    const double without = at(prefill_, Between::kLinear, 0, context).microseconds;
    time = {.microseconds = std::max(time.microseconds, with - without), .extrapolated = true};
  }
  return time;
}

StepTime StepTimeModel::time(const StepShapeTotals& step) const {
  StepTime total;
  const double tokens = static_cast<double>(step.decode_tokens + step.prefill_tokens);
  StepTime decode;
  double decode_context = 0;
  if (step.decode_sequences > 0) {
    decode_context = static_cast<double>(step.decode_context_tokens) / static_cast<double>(step.decode_sequences);
    decode = decode_time(step.decode_sequences, step.decode_tokens, decode_context);
  }
  StepTime prefill;
  if (step.prefill_tokens > 0) {
    const auto prompt_tokens = static_cast<double>(step.prefill_tokens);
    prefill = prefill_time(prompt_tokens, step.prefill_context_tokens / prompt_tokens);
  }
  total.microseconds = decode.microseconds + prefill.microseconds;
  total.extrapolated = decode.extrapolated || prefill.extrapolated;
  if (step.decode_sequences > 0 && step.prefill_tokens > 0) {
    const double shared = decode_time(1, 1, decode_context).microseconds;
    total.microseconds = std::max({total.microseconds - shared, decode.microseconds, prefill.microseconds});
  }
  total.microseconds += experts_.us_per_step + experts_.us_per_token * tokens;
  return total;
}

}  // namespace dsv4rt::replay
