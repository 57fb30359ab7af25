// Times of the stages of every layer.
//
//   auto timer = StageTimer::create(engine);
//   ... eager steps of the engine ...
//   (*timer)->finish();
//   for (const StageTime& time : (*timer)->medians()) ...
//
// Marks lie in the backend's order of work, so that a stage's time is that of its kernels. A stage whose
// kernels are shorter than their launches shows the launches: the device waits for the host in between.
// Captured steps are not seen.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/stage_observer.h"
#include "backend/backend.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

// Over all steps of so many tokens.
struct StageTime {
  std::int32_t tokens = 0;
  LayerId layer;
  Stage stage = Stage::kProject;
  double microseconds = 0;  // median
  std::int64_t steps = 0;
};

class StageTimer final : public StageObserver {
 public:
  // Observes the engine, which outlives the timer, until the timer is destroyed.
  static Result<std::unique_ptr<StageTimer>> create(Engine& engine);
  ~StageTimer() override;

  // Takes in what has been marked; the first error of all marks.
  Status finish();
  // The times by tokens, layer and stage, in the order they run.
  [[nodiscard]] std::vector<StageTime> medians() const;
  // The last step of the fewest tokens as Chrome trace JSON (chrome://tracing, Perfetto).
  [[nodiscard]] std::string chrome_trace() const;

  void begin_layer(LayerId layer, std::int32_t tokens) override;
  void begin(Stage stage) override;
  void end(Stage stage) override;

 private:
  struct Span {
    LayerId layer;
    Stage stage = Stage::kProject;
    double begin_us = 0;  // time since the step's first mark
    double end_us = 0;
  };
  struct Key {
    std::int32_t tokens;
    LayerId layer;
    Stage stage;
    auto operator<=>(const Key&) const = default;
  };

  StageTimer(Engine& engine, std::unique_ptr<TimeMarks> marks) : engine_(engine), marks_(std::move(marks)) {}
  void mark();
  void take_step();

  Engine& engine_;
  std::unique_ptr<TimeMarks> marks_;
  StageObserver* next_ = nullptr;  // who observed before; told as well
  Status failure_;
  std::int32_t tokens_ = 0;  // tokens of the step being marked
  LayerId layer_;
  std::vector<Span> step_;  // two marks each
  std::map<Key, std::vector<double>> samples_;
  std::map<std::int32_t, std::vector<Span>> last_steps_;  // key: tokens of the step
};

}  // namespace dsv4rt
