#include "stage_report.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <set>

#include "base/try.h"
#include "checkpoint/output_file.h"
#include "text_table.h"

namespace dsv4rt::cli {

namespace {

// One line per number of tokens: the stages' medians summed over all layers.
void print_table(const std::vector<StageTime>& times) {
  struct Sums {
    std::array<double, kStageCount> stages{};
    std::set<LayerId> layers;
    std::int64_t steps = 0;
  };
  std::map<std::int32_t, Sums> by_tokens;
  for (const StageTime& time : times) {
    Sums& sums = by_tokens[time.tokens];
    sums.stages[static_cast<std::size_t>(time.stage)] += time.microseconds;
    sums.layers.insert(time.layer);
    sums.steps = time.steps;
  }
  // One rank has nothing to add up.
  const bool ranks = std::any_of(by_tokens.begin(), by_tokens.end(), [](const auto& entry) {
    return entry.second.stages[static_cast<std::size_t>(Stage::kExchange)] > 0;
  });
  const int stages = ranks ? kStageCount : static_cast<int>(Stage::kExchange);
  std::vector<std::string> header{"tokens", "layers", "steps"};
  for (int stage = 0; stage < stages; ++stage) {
    header.push_back(std::string(stage_name(static_cast<Stage>(stage))) + " us");
  }
  header.emplace_back("sum us");
  TextTable table(std::move(header));
  for (const auto& [tokens, sums] : by_tokens) {
    std::vector<std::string> cells{std::to_string(tokens), std::to_string(sums.layers.size()),
                                   std::to_string(sums.steps)};
    double sum = 0;
    for (int stage = 0; stage < stages; ++stage) {
      const double microseconds = sums.stages[static_cast<std::size_t>(stage)];
      cells.push_back(fixed(microseconds, 1));
      sum += microseconds;
    }
    cells.push_back(fixed(sum, 1));
    table.add_row(std::move(cells));
  }
  std::cout << "stages, medians over steps, summed over layers:\n" << table.to_string();
}

}  // namespace

void StageReport::add_to(CLI::App& command) {
  command.add_flag("--stages", stages_, "Time the stages of every eagerly run layer; layers then take a little longer");
  command.add_option("--chrome-trace", chrome_trace_, "Write the stages of one step to a file, as Chrome trace JSON");
}

Result<std::unique_ptr<StageTimer>> StageReport::start(Engine& engine) const {
  if (!stages_ && chrome_trace_.empty()) return std::unique_ptr<StageTimer>();
  return StageTimer::create(engine);
}

Status StageReport::finish(StageTimer* timer, nlohmann::ordered_json& report, bool print) const {
  if (timer == nullptr) return {};
  DSV4RT_RETURN_IF_ERROR(timer->finish());
  if (stages_) {
    const std::vector<StageTime> times = timer->medians();
    for (const StageTime& time : times) {
      report["stages"].push_back({{"tokens", time.tokens},
                                  {"layer", time.layer.value},
                                  {"stage", stage_name(time.stage)},
                                  {"microseconds", time.microseconds},
                                  {"steps", time.steps}});
    }
    if (print) print_table(times);
  }
  if (chrome_trace_.empty()) return {};
  return write_text_file(chrome_trace_, timer->chrome_trace());
}

}  // namespace dsv4rt::cli
