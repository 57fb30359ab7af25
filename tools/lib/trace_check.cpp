#include "tools/lib/trace_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <span>

#include "base/message_text.h"
#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {
namespace {

constexpr int kFp8BlockValues = 64;
constexpr int kMxfp4BlockValues = 32;
constexpr int kRotatedPairValues = 2;

float largest_magnitude(std::span<const float> a, std::span<const bf16> b) {
  float amax = 0;
  for (const float value : a) amax = std::max(amax, std::fabs(value));
  for (const bf16 value : b) amax = std::max(amax, std::fabs(to_float(value)));
  return amax;
}

float power_of_two_floor(float value) {
  return value == 0 ? 0 : std::ldexp(1.0F, std::ilogb(value));
}

// Distance between neighbouring values of a grid with `mantissa_bits` explicit bits at `magnitude`.
float relative_step(float magnitude, int mantissa_bits) {
  return std::ldexp(power_of_two_floor(magnitude), -mantissa_bits);
}

// How far a value of `magnitude` in a block whose largest value is `amax` moves by one code.
using GridStep = float (*)(float magnitude, float amax);
// E4M3: 3 mantissa bits, subnormals of 2^-9 scale; the scale is at most 2 * amax / 448.
float e4m3_step(float magnitude, float amax) {
  return std::max(relative_step(magnitude, 3), std::ldexp(power_of_two_floor(amax), -9 - 7));
}
// E2M1: steps of 1/2, 1 and 2 scales; the scale is at most 2 * amax / 6.
float e2m1_step(float magnitude, float amax) {
  const float scale = std::ldexp(power_of_two_floor(amax), -1);
  return std::max(relative_step(magnitude, 1), scale / 2);
}
// Rotated BF16 pair whose largest value is `amax`: when the pair's length moves by one code, a value that the
// rotation brought near zero moves by far more than one of its own. The length is at most sqrt(2) * amax.
float rotated_pair_step(float, float amax) {
  constexpr float kSqrt2 = 1.41421356F;
  return relative_step(kSqrt2 * amax, 7);
}

// Columns [begin, end) of a row share one grid; blocks of `block` values share a scale or a rotation.
struct GridRange {
  int begin = 0;
  int end = 0;
  int block = 0;
  GridStep step = nullptr;
};

void compare_range(const GridRange& range, std::span<const float> ours, std::span<const bf16> recorded,
                   RowComparison& comparison) {
  for (int first = range.begin; first < range.end; first += range.block) {
    const auto at = static_cast<std::size_t>(first);
    const auto count = static_cast<std::size_t>(range.block);
    const float amax = largest_magnitude(ours.subspan(at, count), recorded.subspan(at, count));
    for (std::size_t i = at; i < at + count; ++i) {
      const float reference = to_float(recorded[i]);
      const float difference = std::fabs(ours[i] - reference);
      if (difference == 0) continue;
      const float step = range.step(std::max(std::fabs(ours[i]), std::fabs(reference)), amax);
      if (difference <= step) {
        ++comparison.off_by_one_code;
      } else {
        ++comparison.further_off;  // NaN lands here too
      }
    }
  }
}

RowComparison compare_rows(std::span<const GridRange> grid, int dim, std::span<const float> ours,
                           std::span<const bf16> recorded) {
  RowComparison comparison;
  comparison.values = static_cast<std::int64_t>(recorded.size());
  if (ours.size() != recorded.size()) {
    comparison.further_off = comparison.values;
    return comparison;
  }
  const auto width = static_cast<std::size_t>(dim);
  for (std::size_t row = 0; row < recorded.size(); row += width) {
    for (const GridRange& range : grid) {
      compare_range(range, ours.subspan(row, width), recorded.subspan(row, width), comparison);
    }
  }
  return comparison;
}

constexpr std::array<GridRange, 2> kMainGrid{
    {{0, kNopeDim, kFp8BlockValues, e4m3_step}, {kNopeDim, kHeadDim, kRotatedPairValues, rotated_pair_step}}};
constexpr std::array<GridRange, 1> kIndexGrid{{{0, kIndexHeadDim, kMxfp4BlockValues, e2m1_step}}};

// Tells which tokens chose other rows than recorded.
std::vector<bool> selection_differences(const LayerTrace& recorded, const LayerRun& run, std::int64_t tokens) {
  std::vector<bool> differs(static_cast<std::size_t>(tokens), false);
  if (!recorded.topk) return differs;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::set<std::int32_t> reference;
    for (std::int64_t i = 0; i < recorded.top_k; ++i) {
      const std::int32_t row = (*recorded.topk)[static_cast<std::size_t>(t * recorded.top_k + i)];
      if (row >= 0) reference.insert(row);
    }
    const auto* begin = run.topk_indices.data() + t * run.top_k;
    const std::set<std::int32_t> ours(begin, begin + run.selected_counts[static_cast<std::size_t>(t)]);
    differs[static_cast<std::size_t>(t)] = ours != reference;
  }
  return differs;
}

std::string percent(double fraction) {
  return std::to_string(fraction * 100.0) + " %";
}

void check_selection(const LayerTrace& recorded, const std::vector<bool>& differs, const TraceTolerance& tolerance,
                     LayerCheck& check) {
  check.selection_compared = true;
  for (std::size_t t = 0; t < differs.size(); ++t) {
    if (!differs[t]) continue;
    ++check.selection_differs;
    const bool nearly_tied = recorded.topk_margin && (*recorded.topk_margin)[t] < tolerance.selection_margin;
    if (!nearly_tied) ++check.selection_unexplained;
  }
  const double fraction = static_cast<double>(check.selection_differs) / static_cast<double>(differs.size());
  if (check.selection_unexplained > 0) {
    check.failures.push_back("topk: " + std::to_string(check.selection_unexplained) +
                             " tokens select other rows although the recorded margin is clear");
  }
  if (fraction > tolerance.selection_token_fraction) {
    check.failures.push_back("topk: " + percent(fraction) + " of tokens select other rows, allowed " +
                             percent(tolerance.selection_token_fraction));
  }
}

void check_output(const LayerTrace& recorded, const LayerRun& run, const std::vector<bool>& differs, std::int64_t width,
                  const TraceTolerance& tolerance, LayerCheck& check) {
  double error = 0;
  double reference_norm = 0;
  double our_norm = 0;
  double dot = 0;
  for (std::size_t t = 0; t < differs.size(); ++t) {
    if (differs[t]) continue;
    ++check.compared_tokens;
    for (std::size_t i = t * static_cast<std::size_t>(width); i < (t + 1) * static_cast<std::size_t>(width); ++i) {
      const double reference = to_float((*recorded.output)[i]);
      const double ours = to_float(run.output[i]);
      error += (ours - reference) * (ours - reference);
      reference_norm += reference * reference;
      our_norm += ours * ours;
      dot += ours * reference;
    }
  }
  check.output_compared = true;
  check.relative_error = reference_norm > 0 ? std::sqrt(error / reference_norm) : std::sqrt(error);
  check.cosine = reference_norm > 0 && our_norm > 0 ? dot / std::sqrt(reference_norm * our_norm) : 1.0;
  if (!(check.relative_error <= tolerance.output_relative_error)) {  // NaN fails
    check.failures.push_back("output: relative error " + std::to_string(check.relative_error) + ", allowed " +
                             std::to_string(tolerance.output_relative_error));
  }
  if (check.compared_tokens == 0) check.failures.push_back("output: no token has the recorded selection");
}

void check_rows(const char* name, const RowComparison& rows, const TraceTolerance& tolerance, LayerCheck& check) {
  const double fraction =
      rows.values == 0 ? 0.0 : static_cast<double>(rows.off_by_one_code) / static_cast<double>(rows.values);
  if (rows.further_off > 0) {
    check.failures.push_back(std::string(name) + ": " + std::to_string(rows.further_off) +
                             " values differ by more than one code");
  }
  if (fraction > tolerance.row_code_fraction) {
    check.failures.push_back(std::string(name) + ": " + percent(fraction) + " of values are one code off, allowed " +
                             percent(tolerance.row_code_fraction));
  }
}

// Recorded rows are in the default formats; others hold other values by design.
constexpr RowFormat kRecordedRows = RowFormat::kFp8DsMla;
constexpr IndexKeyFormat kRecordedKeys = IndexKeyFormat::kMxfp4;

}  // namespace

TraceTolerance default_tolerance(Engine& engine) {
  const EngineInspector inspector(engine);
  if (!inspector.quantized_linears()) return TraceTolerance::bf16_linears();
  if (inspector.linear_precision() == LinearPrecision::kFp8) return TraceTolerance::fp8_precision();
  return TraceTolerance::fp8_linears();
}

Result<std::vector<LayerCheck>> check_trace(Engine& engine, const AttentionTrace& trace, const TraceRun& run,
                                            const TraceTolerance& tolerance) {
  EngineInspector inspector(engine);
  const bool rows_comparable = inspector.row_format() == kRecordedRows;
  const bool keys_comparable = inspector.index_format() == kRecordedKeys;
  const auto* other_rows = "the cache's row format is not the recorded fp8_ds_mla";
  const auto* other_keys = "the cache's index key format is not the recorded mxfp4";

  std::vector<LayerCheck> checks;
  for (const LayerRun& layer : run.layers) {
    const LayerTrace& recorded = *trace.find(layer.layer);
    if (!recorded.output && !recorded.compressed_kv && !recorded.index_k && !recorded.topk &&
        !recorded.window_kv_last) {
      return Status{StatusCode::kBadInput, shown(trace.path) + ": layer " + std::to_string(layer.layer.value) +
                                               " has no recorded tensor to compare with (output, compressed_kv, ...)"};
    }
    LayerCheck check;
    check.layer = layer.layer;
    // A recorded array is compared, or the reason why not is reported.
    const auto compare = [&](const char* name, const std::optional<std::vector<bf16>>& reference, bool comparable,
                             const char* reason, std::span<const GridRange> grid, int dim, auto&& read,
                             std::optional<RowComparison>& target) -> Status {
      if (!reference) return {};
      if (!comparable) {
        check.not_compared.push_back(std::string(name) + ": " + reason);
        return {};
      }
      DSV4RT_ASSIGN_OR_RETURN(const std::vector<float> ours, read());
      target = compare_rows(grid, dim, ours, *reference);
      check_rows(name, *target, tolerance, check);
      return {};
    };
    const LayerSpec& spec = inspector.layer_spec(layer.layer);
    const CacheRole rows_role = compressor_roles(spec).rows;
    DSV4RT_RETURN_IF_ERROR(compare(
        "compressed_kv", recorded.compressed_kv, rows_comparable, other_rows, kMainGrid, kHeadDim,
        [&] { return inspector.paged_values(layer.layer, rows_role, run.sequence); }, check.compressed_kv));
    DSV4RT_RETURN_IF_ERROR(compare(
        "index_k", recorded.index_k, keys_comparable, other_keys, kIndexGrid, kIndexHeadDim,
        [&] { return inspector.paged_values(layer.layer, CacheRole::kIndexK, run.sequence); }, check.index_k));
    DSV4RT_RETURN_IF_ERROR(compare(
        "window_kv_last", recorded.window_kv_last, rows_comparable, other_rows, kMainGrid, kHeadDim,
        [&] { return inspector.window_values(layer.layer, run.sequence); }, check.window_kv));

    std::vector<bool> differs(static_cast<std::size_t>(trace.tokens()), false);
    if (recorded.topk && keys_comparable) {
      differs = selection_differences(recorded, layer, trace.tokens());
      check_selection(recorded, differs, tolerance, check);
    } else if (recorded.topk) {
      check.not_compared.push_back(std::string("topk: ") + other_keys);
    }
    if (recorded.output) {
      check_output(recorded, layer, differs, engine.config().hidden_size, tolerance, check);
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace dsv4rt
