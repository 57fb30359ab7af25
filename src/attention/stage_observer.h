// The stages of a layer, for whoever measures or marks them.
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// Listed in the order in which AttentionLayer::forward runs them; a kind of layer leaves out what it does not have.
enum class Stage : std::uint8_t {
  kProject,      // everything that reads x; of dealt out rows also the window rows and compressed rows of own tokens
  kQueries,      // latent norm and query projections; of dealt out rows also norm and rotation
  kWriteKv,      // query norm and rotation (or in kAttend: Ops::norms_queries), window rows, compressed rows and
                 // compressor state; what is left of them where rows are dealt out, the wait for other ranks included
  kIndexerTopk,  // indexer scores and choice of rows
  kAttend,       // attention over window and compressed rows
  kStoreWindow,  // window rows into the ring, where that has to wait for attention
  kOutput,       // output projections
  kExchange,     // the end of a layer of several ranks: the sum of their outputs, or the rows of each
};
inline constexpr int kStageCount = 8;

// "project", "queries", ...
std::string_view stage_name(Stage stage) noexcept;

// Told on the host where stages begin and end; work enqueued in between belongs to the stage. Stages do not
// nest. Must not fail: what goes wrong is the observer's to report.
class StageObserver {
 public:
  virtual ~StageObserver() = default;
  // Stages of this layer follow, in a step of `tokens` tokens.
  virtual void begin_layer(LayerId layer, std::int32_t tokens) = 0;
  virtual void begin(Stage stage) = 0;
  virtual void end(Stage stage) = 0;
};

// work(), told to `observer` (or null) as a stage.
template <class Work>
Status run_stage(StageObserver* observer, Stage stage, const Work& work) {
  if (observer == nullptr) return work();
  observer->begin(stage);
  const Status status = work();
  observer->end(stage);
  return status;
}

}  // namespace dsv4rt
