#include "tools/lib/stage_timer.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/try.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/median.h"

namespace dsv4rt {

Result<std::unique_ptr<StageTimer>> StageTimer::create(Engine& engine) {
  EngineInspector inspector(engine);
  DSV4RT_ASSIGN_OR_RETURN(auto marks, inspector.backend().create_time_marks());
  std::unique_ptr<StageTimer> timer(new StageTimer(engine, std::move(marks)));
  timer->next_ = inspector.observe_stages(timer.get());
  return timer;
}

StageTimer::~StageTimer() {
  static_cast<void>(EngineInspector(engine_).observe_stages(next_));
}

void StageTimer::begin_layer(LayerId layer, std::int32_t tokens) {
  if (next_ != nullptr) next_->begin_layer(layer, tokens);
  const bool seen = std::any_of(step_.begin(), step_.end(), [&](const Span& span) { return span.layer == layer; });
  if (seen || tokens != tokens_) take_step();  // another step begins
  tokens_ = tokens;
  layer_ = layer;
}

void StageTimer::begin(Stage stage) {
  if (next_ != nullptr) next_->begin(stage);
  mark();
  step_.push_back({.layer = layer_, .stage = stage});
}

void StageTimer::end(Stage stage) {
  mark();
  if (next_ != nullptr) next_->end(stage);
}

void StageTimer::mark() {
  if (failure_.ok()) failure_ = marks_->mark();
}

void StageTimer::take_step() {
  if (step_.empty()) return;
  const auto times = marks_->take();
  if (failure_.ok()) failure_ = times.status();
  if (failure_.ok()) {
    for (std::size_t i = 0; i < step_.size(); ++i) {
      step_[i].begin_us = (*times)[2 * i];
      step_[i].end_us = (*times)[2 * i + 1];
      samples_[{tokens_, step_[i].layer, step_[i].stage}].push_back(step_[i].end_us - step_[i].begin_us);
    }
    last_steps_[tokens_] = step_;
  }
  step_.clear();
}

Status StageTimer::finish() {
  take_step();
  return failure_;
}

std::vector<StageTime> StageTimer::medians() const {
  std::vector<StageTime> times;
  for (const auto& [key, values] : samples_) {
    times.push_back({.tokens = key.tokens,
                     .layer = key.layer,
                     .stage = key.stage,
                     .microseconds = median(values),
                     .steps = static_cast<std::int64_t>(values.size())});
  }
  return times;
}

std::string StageTimer::chrome_trace() const {
  const auto nanoseconds = [](double us) { return std::round(us * 1e3) / 1e3; };
  auto events = nlohmann::ordered_json::array();
  if (!last_steps_.empty()) {
    const auto& [tokens, spans] = *last_steps_.begin();
    for (const Span& span : spans) {
      events.push_back({{"name", stage_name(span.stage)},
                        {"cat", "layer " + std::to_string(span.layer.value)},
                        {"ph", "X"},
                        {"ts", nanoseconds(span.begin_us)},
                        {"dur", nanoseconds(span.end_us - span.begin_us)},
                        {"pid", 0},
                        {"tid", 0},
                        {"args", {{"layer", span.layer.value}, {"tokens", tokens}}}});
    }
  }
  return events.dump(1) + "\n";
}

}  // namespace dsv4rt
