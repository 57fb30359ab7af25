// One attention layer of any kind, written once over Ops.
#pragma once

#include <memory>
#include <span>

#include "attention/context_split.h"
#include "attention/layer_weights.h"
#include "attention/stage_observer.h"
#include "attention/workspace.h"
#include "backend/boundary_state.h"
#include "dsv4rt/communicator.h"
#include "dsv4rt/model.h"

namespace dsv4rt {

// Where a layer's cache lies. Parts that the layer's kind does not have stay empty.
struct LayerCache {
  SwaRing window;
  PagedRows rows;  // compressed rows
  PagedRows index_keys;
  StateRing state;
  StateRing index_state;
};

// Settings that all layers of an engine share.
struct AttentionSettings {
  ModelConfig config;  // with the heads and groups of this rank (shard_config)
  Profile profile;
  RowFormat row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat index_format = IndexKeyFormat::kMxfp4;
  // The ranks among which heads and groups are dealt out, whose outputs add up to the layer's; null: one rank.
  Communicator* ranks = nullptr;
  // The ranks over which the rows of long steps are dealt out (ContextSplit); null: none. Steps of fewer rows than
  // context_min_tokens are computed by every rank.
  Communicator* context = nullptr;
  std::int32_t context_min_tokens = 0;
  bool context_share_outputs = true;  // false: rows of the output are those of this rank
  void* stream = nullptr;             // Backend::native_stream, for the communicator
};

// Boundaries inside a step whose states are kept, and where this layer's rows lie in a state. Only overlapping
// compressors have rows there.
struct BoundaryKeep {
  std::span<const BoundaryCapture> captures;
  BoundaryStates states;
  BoundaryRows window;
  BoundaryRows state;
  BoundaryRows index_state;
};

// How the rows of a step are dealt out over ranks, for those that are.
struct DealtStep {
  // The host's copy of StepView::sequence_first_token, [sequences + 1].
  std::span<const std::int32_t> first_tokens;
  // The rank that alone has the step's sequences afterwards; -1: every rank.
  std::int32_t hand_over_to = -1;
  // Whether the step is this rank's alone, whatever its length.
  bool alone = false;
  std::uint64_t number = 0;   // SharePlace::step
  std::uint64_t content = 0;  // SharePlace::content
  std::int32_t layer = -1;    // SharePlace::layer
};

class AttentionLayer {
 public:
  // `inverse_frequency` ([32] float, backend memory) is the layer's rope choice; ratio_class as in
  // the step's metadata. The settings and frequencies outlive the layer; weights may be those of several layers.
  AttentionLayer(const AttentionSettings& settings, const LayerSpec& spec, int ratio_class,
                 std::shared_ptr<const LayerWeights> weights, const LayerCache& cache, const float* inverse_frequency);

  // out[t] = attention(x[t]); x and out are [T, d] in backend memory and may not overlap. Appends
  // the step's tokens to the layer's cache. Stream-ordered. `observer` (or null) is told of the stages.
  // A call that failed may be repeated unless `cache_written` (or null) became true: rings that were written no longer
  // hold what the step's tokens read. `keep` (or null): the boundaries of the step that are kept; not in a captured
  // one. `dealt`: what steps take whose rows are dealt out over ranks.
  Status forward(Ops& ops, const StepView& step, const bf16* x, bf16* out, const Workspace& workspace,
                 StageObserver* observer = nullptr, bool* cache_written = nullptr, const BoundaryKeep* keep = nullptr,
                 const DealtStep& dealt = {}) const;

  [[nodiscard]] const LayerSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] const LayerWeights& weights() const noexcept { return *weights_; }
  [[nodiscard]] const LayerCache& cache() const noexcept { return cache_; }

 private:
  Status project(Ops& ops, const StepView& step, const bf16* x, const Workspace& ws) const;
  Status project_queries(Ops& ops, const StepView& step, const Workspace& ws) const;
  Status write_kv(Ops& ops, const StepView& step, bool norm_queries, const Workspace& ws) const;
  Status keep_boundaries(Ops& ops, const BoundaryKeep& keep, const Workspace& ws) const;
  Status indexer_topk(Ops& ops, const StepView& step, const Workspace& ws) const;
  Status store_window(Ops& ops, const StepView& step, const Workspace& ws) const;
  Status project_output(Ops& ops, const StepView& step, bf16* out, const Workspace& ws) const;
  Status add_ranks(const StepView& step, bf16* out, const Workspace& ws) const;

  // Context parallelism: divided_layer.cpp. Whether the step's rows are dealt out over ranks.
  struct Exchange;
  [[nodiscard]] bool divided(const StepView& step, const DealtStep& dealt) const noexcept;
  Status forward_divided(Ops& ops, const StepView& step, const bf16* x, bf16* out, const Workspace& workspace,
                         StageObserver* observer, bool* cache_written, const BoundaryKeep* keep,
                         const DealtStep& dealt) const;
  [[nodiscard]] Result<Exchange> plan_exchange(const StepView& step, bf16* out, const Workspace& ws,
                                               const BoundaryKeep* keep, const DealtStep& dealt) const;
  // work(step, x, out, workspace) of each of this rank's pieces.
  template <class Work>
  Status for_own_rows(const Exchange& exchange, const StepView& step, const bf16* x, bf16* out, const Workspace& ws,
                      const Work& work) const;
  [[nodiscard]] Workspace rows_of_workspace(Workspace ws, std::int32_t first) const;
  // Window rows and compressed rows that this rank makes of its own tokens alone, packed for the others.
  Status make_own_rows(Ops& ops, const StepView& step, const Workspace& ws, const Exchange& exchange) const;
  Status rotate_queries(Ops& ops, const StepView& step, const Workspace& ws) const;
  // The rest of the cache, of what has come from the others.
  Status take_rows(Ops& ops, const StepView& step, const Workspace& ws, const Exchange& exchange) const;
  // Rows and index keys that these tokens of the step complete.
  Status compress_tokens(Ops& ops, const StepView& step, RowRange tokens, const Workspace& ws) const;

  // Whether the step's window rows enter the ring before attention reads it.
  [[nodiscard]] bool stores_window_at_once(const StepView& step) const;
  [[nodiscard]] QueryParams query(const StepView& step, const Workspace& ws) const;
  [[nodiscard]] SwaKvParams window_rows(const StepView& step, const Workspace& ws) const;
  [[nodiscard]] IndexQueryParams index_query(const StepView& step, const Workspace& ws) const;
  [[nodiscard]] CompressParams compress_rows(const StepView& step, const Workspace& ws) const;
  [[nodiscard]] CompressParams compress_index_keys(const StepView& step, const Workspace& ws) const;
  [[nodiscard]] AttendParams attend_params(const Ops& ops, const StepView& step, const Workspace& ws) const;
  // Whether attention hands the step's outputs to wo_a as codes.
  [[nodiscard]] bool hands_on_codes(const Ops& ops, const StepView& step, const Workspace& ws) const;
  [[nodiscard]] CompressorInput main_input(const Workspace& ws) const;
  [[nodiscard]] CompressorInput index_input(const Workspace& ws) const;

  const AttentionSettings& settings_;
  LayerSpec spec_;
  int ratio_class_;
  std::shared_ptr<const LayerWeights> weights_;
  LayerCache cache_;
  RopeParams rope_;
};

}  // namespace dsv4rt
