#include "engine/stage_ranges.h"

namespace dsv4rt {

void StageRanges::begin_layer(LayerId layer, std::int32_t) {
  layer_ = layer;
  std::vector<std::string>& names = names_[layer];
  if (!names.empty()) return;
  for (int stage = 0; stage < kStageCount; ++stage) {
    names.push_back("layer " + std::to_string(layer.value) + " " + std::string(stage_name(static_cast<Stage>(stage))));
  }
}

void StageRanges::begin(Stage stage) {
  backend_.push_range(names_[layer_][static_cast<std::size_t>(stage)].c_str());
}

void StageRanges::end(Stage) {
  backend_.pop_range();
}

}  // namespace dsv4rt
