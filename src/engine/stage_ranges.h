// Profiler ranges named after the stages of every layer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attention/stage_observer.h"
#include "backend/backend.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// Pushes a range "layer 2 attend" of the backend's profiler around every stage.
class StageRanges final : public StageObserver {
 public:
  explicit StageRanges(Backend& backend) : backend_(backend) {}

  void begin_layer(LayerId layer, std::int32_t tokens) override;
  void begin(Stage stage) override;
  void end(Stage stage) override;

 private:
  Backend& backend_;
  LayerId layer_;
  std::map<LayerId, std::vector<std::string>> names_;  // [stage]
};

}  // namespace dsv4rt
