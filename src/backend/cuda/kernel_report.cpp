#include "backend/cuda/kernel_report.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "backend/attend_weights.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/write_kv/launch.h"
#include "backend/cuda/slow_path.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Stands for device memory that planning does not look into.
alignas(256) const std::byte kMemory[256] = {};
// Scratch memory that an engine plans for scores; it may have more.
constexpr std::size_t kScratchBytes = std::size_t{256} << 20;

template <class T>
T* memory() {
  return reinterpret_cast<T*>(const_cast<std::byte*>(kMemory));
}

// What serves steps of one size.
struct Served {
  std::string kernel;
  SlowPath slow = SlowPath::kNone;
  bool operator==(const Served&) const = default;
};

std::string count_of(std::int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

class Reporter {
 public:
  Reporter(const CudaDevice& device, const KernelQuestion& question) : device_(device), question_(question) {}

  Result<std::vector<KernelUse>> report() {
    DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(question_.config));
    for (const AttentionKind kind :
         {AttentionKind::kSlidingWindow, AttentionKind::kCompressedSparse, AttentionKind::kHeavilyCompressed}) {
      const auto layers = schedule.layers();
      const auto layer =
          std::find_if(layers.begin(), layers.end(), [&](const LayerSpec& spec) { return spec.kind == kind; });
      if (layer == layers.end()) continue;
      const std::string name(attention_kind_name(kind));
      DSV4RT_RETURN_IF_ERROR(
          add("attend " + name + ", decode", [&](std::int32_t tokens) { return attend(*layer, tokens, 1); }));
      DSV4RT_RETURN_IF_ERROR(
          add("attend " + name + ", prefill", [&](std::int32_t tokens) { return attend(*layer, tokens, tokens); }));
      if (layer->indexer) {
        DSV4RT_RETURN_IF_ERROR(
            add("indexer_topk, decode", [&](std::int32_t tokens) { return select(*layer, tokens, 1); }));
        DSV4RT_RETURN_IF_ERROR(
            add("indexer_topk, prefill", [&](std::int32_t tokens) { return select(*layer, tokens, tokens); }));
      }
      DSV4RT_RETURN_IF_ERROR(add("write_kv " + name, [&](std::int32_t tokens) { return update(*layer, tokens); }));
      DSV4RT_RETURN_IF_ERROR(add_linear("x " + name, inputs_of(*layer)));
    }
    const ModelConfig& config = question_.config;
    const std::int64_t values = config.num_attention_heads * kHeadDim;
    const LinearShape wo_a = fp8(config.o_lora_rank, values / config.o_groups, ActivationRounding::kNone);
    DSV4RT_RETURN_IF_ERROR(add_linear("wq_b", {fp8(values, config.q_lora_rank)}));
    const std::vector<LinearShape> groups(static_cast<std::size_t>(config.o_groups), wo_a);
    const LinearShape wo_b = fp8(config.hidden_size, config.o_groups * config.o_lora_rank);
    DSV4RT_RETURN_IF_ERROR(
        add("linear wo_a", [&](std::int32_t tokens) { return linear(encoded_groups(groups, tokens), tokens); }));
    DSV4RT_RETURN_IF_ERROR(add("linear wo_b", [&](std::int32_t tokens) -> Result<Served> {
      LinearShape shape = wo_b;
      DSV4RT_ASSIGN_OR_RETURN(shape.encoded, leaves_codes(encoded_groups(groups, tokens), tokens));
      return linear(std::span(&shape, 1), tokens);
    }));
    return std::move(uses_);
  }

 private:
  // Linears as the checkpoints have them: FP8 that rounds its inputs, and BF16.
  [[nodiscard]] LinearShape fp8(std::int64_t outputs, std::int64_t inputs,
                                ActivationRounding rounding = ActivationRounding::kFp8Block128) const {
    LinearShape shape{.outputs = outputs,
                      .inputs = inputs,
                      .tiles = tiles_of_shape(device_.has_sm90a(), WeightEncoding::kFp8Block128, rounding, outputs,
                                              inputs, question_.linear_precision)};
    shape.rounds = rounding != ActivationRounding::kNone || shape.tiles == TileKind::kFp8Products;
    return shape;
  }
  [[nodiscard]] LinearShape plain(std::int64_t outputs) const {
    const std::int64_t inputs = question_.config.hidden_size;
    return {.outputs = outputs,
            .inputs = inputs,
            .tiles =
                tiles_of_shape(device_.has_sm90a(), WeightEncoding::kBf16, ActivationRounding::kNone, outputs, inputs)};
  }

  // What a layer multiplies its input with, in one operation.
  [[nodiscard]] std::vector<LinearShape> inputs_of(const LayerSpec& layer) const {
    const ModelConfig& config = question_.config;
    std::vector<LinearShape> shapes{fp8(config.q_lora_rank, config.hidden_size), fp8(kHeadDim, config.hidden_size)};
    if (layer.ratio == 0) return shapes;
    const std::int64_t rows = layer.overlap ? 2 : 1;
    shapes.insert(shapes.end(), 2, plain(rows * kHeadDim));
    if (!layer.indexer) return shapes;
    shapes.insert(shapes.end(), 2, plain(rows * kIndexHeadDim));
    shapes.push_back(plain(config.index_n_heads));
    return shapes;
  }

  Status add_linear(const std::string& name, const std::vector<LinearShape>& shapes) {
    return add("linear " + name, [&](std::int32_t tokens) { return linear(shapes, tokens); });
  }

  // Most calls of a launch that has these.
  static std::size_t launch_calls(std::span<const LinearShape> shapes, std::int32_t tokens) {
    if (!shapes[0].tiles) return 1;
    const auto products = [](const LinearShape& shape) { return shape.tiles == TileKind::kFp8Products; };
    return static_cast<std::size_t>(most_problems(tokens, std::ranges::any_of(shapes, products)));
  }

  // The groups of wo_a: attention leaves codes where products take them.
  static std::vector<LinearShape> encoded_groups(std::vector<LinearShape> groups, std::int32_t tokens) {
    for (LinearShape& shape : groups) {
      shape.encoded = shape.tiles == TileKind::kFp8Products && tokens >= least_encoded_tokens();
    }
    return groups;
  }
  // Whether wo_a leaves codes for wo_b.
  Result<bool> leaves_codes(std::span<const LinearShape> groups, std::int32_t tokens) {
    if (!groups[0].encoded) return false;
    DSV4RT_ASSIGN_OR_RETURN(const LinearDevice device, linear_device(device_, tokens));
    const std::size_t count = std::min(launch_calls(groups, tokens), groups.size());
    DSV4RT_ASSIGN_OR_RETURN(const LinearPlan plan, plan_linear(device, tokens, groups.first(count)));
    return encodes_outputs(plan, groups[0]);
  }

  // The launches of one operation, grouped as LinearLauncher groups them; the kernel of several one behind the other of
  // one kind of weights is named once.
  Result<Served> linear(std::span<const LinearShape> shapes, std::int32_t tokens) {
    DSV4RT_ASSIGN_OR_RETURN(const LinearDevice device, linear_device(device_, tokens));
    Served served;
    std::optional<TileKind> last_kind;
    std::string last_kernel;
    for (std::size_t first = 0, count = 1; first < shapes.size(); first += count) {
      const LinearShape& shape = shapes[first];
      const auto joins = [&](const LinearShape& next) {
        const auto together = shapes.subspan(first, count + 1);
        return next.tiles && may_share_launch(shape, next, tokens) && together.size() <= launch_calls(together, tokens);
      };
      for (count = 1; first + count < shapes.size() && joins(shapes[first + count]);) ++count;
      DSV4RT_ASSIGN_OR_RETURN(const LinearPlan plan, plan_linear(device, tokens, shapes.subspan(first, count)));
      if (!shape.tiles) served.slow = slow_path_without_sm90a(device_.facts());
      const std::string kernel = name_of(plan.variant);
      if (kernel == last_kernel && shape.tiles == last_kind) continue;
      served.kernel += (first == 0 ? "" : "; ") + kernel;
      last_kernel = kernel;
      last_kind = shape.tiles;
    }
    return served;
  }

  // One line for every range of sizes that the same kernel serves.
  Status add(const std::string& operation, const std::function<Result<Served>(std::int32_t)>& serve) {
    DSV4RT_ASSIGN_OR_RETURN(Served served, serve(1));
    std::int32_t first = 1;
    const auto close = [&](std::int32_t last) {
      uses_.push_back({.operation = operation,
                       .steps = std::to_string(first) + "-" + std::to_string(last) + " tokens",
                       .kernel = served.kernel,
                       .slow = slow_path_text(served.slow)});
    };
    for (std::int32_t tokens = 2; tokens <= question_.max_step_tokens; ++tokens) {
      DSV4RT_ASSIGN_OR_RETURN(Served next, serve(tokens));
      if (next == served) continue;
      close(tokens - 1);
      first = tokens;
      served = std::move(next);
    }
    close(question_.max_step_tokens);
    return {};
  }

  [[nodiscard]] StepView step(std::int32_t tokens, std::int32_t longest_entry) const {
    StepView view;
    view.counts.tokens = tokens;
    view.counts.longest_entry = longest_entry;
    view.counts.sequences = ceil_div(tokens, longest_entry);
    view.counts.context_end = static_cast<std::int32_t>(std::max<std::int64_t>(question_.context_tokens, tokens));
    return view;
  }

  template <class Format>
  [[nodiscard]] PagedRows paged(Format format, const LayerSpec& layer) const {
    const std::int32_t rows = layer.indexer ? question_.csa_rows_per_block : question_.hca_rows_per_block;
    const std::int64_t context = std::max<std::int64_t>(question_.context_tokens, question_.max_step_tokens);
    return {.blocks = memory<std::byte>(),
            .shape = block_shape(format, rows),
            .block_table = memory<std::int32_t>(),
            .table_stride = ceil_div<std::int64_t>(context / layer.ratio + 1, rows)};
  }

  Result<Served> attend(const LayerSpec& layer, std::int32_t tokens, std::int32_t longest_entry) {
    AttendParams params;
    params.step = step(tokens, longest_entry);
    params.heads = static_cast<std::int32_t>(question_.config.num_attention_heads);
    params.window = static_cast<std::int32_t>(question_.config.sliding_window);
    params.ratio = layer.ratio;
    params.row_format = question_.row_format;
    params.ring.format = question_.row_format;
    params.ring.shape = block_shape(question_.row_format, params.window);
    params.staged_shape = block_shape(question_.row_format, question_.max_step_tokens);
    if (layer.ratio > 0) params.rows = paged(question_.row_format, layer);
    if (layer.indexer) {
      params.topk_indices = memory<std::int32_t>();
      params.topk_stride = question_.config.index_topk;
    }
    DSV4RT_ASSIGN_OR_RETURN(const AttendPlan plan, plan_attend(device_, params, kScratchBytes, kSelectStateBytes));
    Served served{.kernel = {}, .slow = plan.slow};
    if (plan.runs) {
      served.kernel = "runs of tokens, " + std::to_string(kTileHeads) + " heads each";
    }
    if (plan.warpgroup) {
      served.kernel = "warpgroup, " + count_of(plan.warpgroup->cluster_blocks, "block") + " a token, " +
                      std::to_string(std::min(plan.warpgroup->group_heads, params.heads)) + " heads each";
    }
    if (plan.dense) {
      served.kernel += "; of more than " + std::to_string(kMaximumRows) + " rows dense, at most " +
                       count_of(plan.dense->splits, "split") + " a token, " +
                       std::to_string(std::min(kTileHeads, params.heads)) + " heads each";
      if (plan.dense->run > 1) served.kernel += ", in runs of up to " + std::to_string(plan.dense->run);
    }
    if (plan.decoded) served.kernel += "; rows decoded before";
    if (plan.portable) {
      served.kernel = "portable, " + count_of(plan.portable->cluster_blocks, "block") + " a token, " +
                      std::to_string(std::min(16 * plan.portable->head_tiles, params.heads)) + " heads each";
    }
    return served;
  }

  Result<Served> select(const LayerSpec& layer, std::int32_t tokens, std::int32_t longest_entry) {
    const IndexerTopkParams params{.step = step(tokens, longest_entry),
                                   .heads = static_cast<std::int32_t>(question_.config.index_n_heads),
                                   .ratio = layer.ratio,
                                   .top_k = static_cast<std::int32_t>(question_.config.index_topk),
                                   .q = memory<bf16>(),
                                   .key_format = question_.index_format,
                                   .keys = paged(question_.index_format, layer)};
    const Scratch scratch(memory<std::byte>(), kScratchBytes, {memory<std::byte>(), kSelectStateBytes});
    DSV4RT_ASSIGN_OR_RETURN(const ScoreBatch batch, plan_scores(params, scratch));
    DSV4RT_ASSIGN_OR_RETURN(const SelectionPlan plan, plan_selection(device_, params, batch));
    Served served{.kernel = {}, .slow = plan.slow};
    if (plan.fused_blocks > 0) {
      served.kernel = "scores and selection in one, " + count_of(plan.fused_blocks, "block") + " a token";
    } else if (plan.counted_blocks == 1) {
      served.kernel = "warpgroup scores with counts, selection by the last block of a token";
    } else if (plan.counted_blocks > 1) {
      served.kernel =
          "warpgroup scores with counts, selection by " + count_of(plan.counted_blocks, "block") + " a token";
    } else if (plan.scores == ScoreKernel::kNone) {
      served.kernel = "none: all rows are taken";
    } else {
      served.kernel = plan.scores == ScoreKernel::kWgmma ? "warpgroup scores, selection" : "portable scores, selection";
    }
    return served;
  }

  // These are decode steps, whose rings keep what is pooled.
  [[nodiscard]] CompressParams compressor(const LayerSpec& layer, std::int32_t tokens, std::int32_t dim) const {
    CompressParams params;
    params.step = step(tokens, 1);
    params.input.ratio = layer.ratio;
    params.input.overlap = layer.overlap;
    params.input.dim = dim;
    params.state.ring_rows = layer.overlap ? 2 * layer.ratio : layer.ratio;
    return params;
  }

  Result<Served> update(const LayerSpec& layer, std::int32_t tokens) {
    WriteKvParams params;
    params.window.step = step(tokens, 1);
    std::string pooling;
    if (layer.ratio > 0) {
      params.compress = compressor(layer, tokens, kHeadDim);
      if (layer.indexer) params.index_compress = compressor(layer, tokens, kIndexHeadDim);
      pooling = ", rows pooled by single blocks";
      if (!pools_in_registers(*params.compress)) {
        DSV4RT_ASSIGN_OR_RETURN(const int at_once, pool_clusters(device_, kHeadDim));
        pooling = ", rows pooled by clusters (" + std::to_string(at_once) + " at once)";
      }
    }
    return Served{.kernel = (one_launch(params) ? "row kernel" : "row kernel, pooling apart") + pooling};
  }

  const CudaDevice& device_;
  const KernelQuestion& question_;
  std::vector<KernelUse> uses_;
};

}  // namespace

Result<std::vector<KernelUse>> kernel_uses(const CudaDevice& device, const KernelQuestion& question) {
  return Reporter(device, question).report();
}

}  // namespace dsv4rt::cuda

namespace dsv4rt {

Result<std::vector<KernelUse>> cuda_kernel_uses(int device, const KernelQuestion& question) {
  DSV4RT_ASSIGN_OR_RETURN(const auto known, cuda::CudaDevice::create(device));
  DSV4RT_ON_DEVICE(*known);
  return cuda::kernel_uses(*known, question);
}

}  // namespace dsv4rt
