// One layer of a golden checkpoint over a CacheRig, driven through any Ops.
#pragma once

#include "attention/attention_layer.h"
#include "checkpoint/attention_loader.h"
#include "checkpoint/checkpoint.h"
#include "model/rope.h"
#include "support/backend_array.h"
#include "support/cache_rig.h"
#include "support/golden_case.h"
#include "support/test_backend.h"

namespace dsv4rt::test {

class LayerRig {
 public:
  // has_codes: whether the workspace has room for outputs of attention as codes.
  LayerRig(const GoldenCase& golden, int layer, const CacheLimits& limits, const Profile& profile = {},
           bool has_codes = false)
      : settings_{.config = one_layer(golden.config, layer),
                  .profile = profile,
                  .row_format = RowFormat::kFp8DsMla,
                  .index_format = IndexKeyFormat::kMxfp4},
        rig_(create_test_backend().value(), settings_.config, {}, limits) {
    const LayerSpec& spec = rig_.schedule().layer(LayerId(0));
    LayerSpec stored = spec;
    stored.id = LayerId(layer);
    const Checkpoint checkpoint = Checkpoint::open(golden.checkpoint).value();
    const HostAttentionWeights host = load_attention_weights(checkpoint, settings_.config, stored).value();
    const RopeFrequencies frequencies = rope_frequencies(settings_.config, spec.rope);
    frequencies_ = BackendArray<float>(rig_.backend(), std::span<const float>(frequencies));
    shape_ = WorkspaceShape::of(settings_.config, rig_.schedule(), settings_.row_format, limits.max_step_tokens);
    shape_.has_codes = has_codes;
    memory_ = rig_.backend().allocate(workspace_bytes(shape_), "workspace").value();
    workspace_ = workspace_at(shape_, memory_.data());
    layer_ = std::make_unique<AttentionLayer>(
        settings_, spec, rig_.schedule().ratio_class(spec.ratio),
        std::make_shared<const LayerWeights>(upload_layer_weights(rig_.backend(), settings_.config, host).value()),
        rig_.layer_cache(0), frequencies_.data());
  }

  [[nodiscard]] CacheRig& rig() { return rig_; }
  [[nodiscard]] const Workspace& workspace() const { return workspace_; }
  [[nodiscard]] const AttentionLayer& layer() const { return *layer_; }
  [[nodiscard]] const ModelConfig& config() const { return settings_.config; }
  [[nodiscard]] const float* frequencies() const { return frequencies_.data(); }

  // x and out are host memory; where the backend shares it, the operations see these very pointers.
  Status forward(Ops& ops, const StepView& step, const Bf16Bits* x, Bf16Bits* out, const BoundaryKeep* keep = nullptr,
                 bool* cache_written = nullptr) {
    if (rig_.backend().uses_host_memory()) return run(ops, step, x, out, keep, cache_written);
    const auto values = static_cast<std::size_t>(step.counts.tokens * settings_.config.hidden_size);
    const BackendArray<Bf16Bits> input(rig_.backend(), std::span(x, values));
    const BackendArray<Bf16Bits> output(rig_.backend(), values);
    const Status status = run(ops, step, input.data(), output.data(), keep, cache_written);
    if (status.ok()) std::ranges::copy(output.download(), out);
    return status;
  }

 private:
  static ModelConfig one_layer(ModelConfig config, int layer) {
    config.compress_ratios = {config.compress_ratios.at(static_cast<std::size_t>(layer))};
    config.num_hidden_layers = 1;
    return config;
  }

  Status run(Ops& ops, const StepView& step, const Bf16Bits* x, Bf16Bits* out, const BoundaryKeep* keep,
             bool* cache_written) {
    return layer_->forward(ops, step, reinterpret_cast<const bf16*>(x), reinterpret_cast<bf16*>(out), workspace_,
                           nullptr, cache_written, keep);
  }

  AttentionSettings settings_;
  CacheRig rig_;
  BackendArray<float> frequencies_;
  WorkspaceShape shape_;
  Buffer memory_;
  Workspace workspace_;
  std::unique_ptr<AttentionLayer> layer_;
};

}  // namespace dsv4rt::test
