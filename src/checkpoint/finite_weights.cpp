#include "checkpoint/finite_weights.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/try.h"

namespace dsv4rt {
namespace {

// Values whose largest magnitude is found before any is looked at: the loops below vectorize on every processor.
constexpr std::size_t kChunk = 4096;

// `magnitude(value)` orders like the magnitudes, and those from `limit` on are not finite.
template <class Value, class Magnitude, class Function>
std::optional<std::size_t> first_from(std::span<const Value> values, Magnitude limit, const Function& magnitude) {
  for (std::size_t first = 0; first < values.size(); first += kChunk) {
    const auto chunk = values.subspan(first, std::min(kChunk, values.size() - first));
    Magnitude most = 0;
    for (const Value value : chunk) most = std::max(most, magnitude(value));
    if (most < limit) continue;
    const auto found = std::find_if(chunk.begin(), chunk.end(), [&](Value value) { return magnitude(value) >= limit; });
    return first + static_cast<std::size_t>(found - chunk.begin());
  }
  return std::nullopt;
}

Status bad_value(const HostLinear& linear, std::string_view part, std::size_t index, std::string_view value) {
  return {StatusCode::kBadInput, "tensor '" + linear.name + "'" + std::string(part) + ": " + std::string(value) +
                                     " at index " + std::to_string(index) + "; accepted: " + kFiniteValuesAccepted};
}

Status check_matrix(const HostLinear& linear) {
  switch (linear.encoding) {
    case WeightEncoding::kBf16: {
      // The loader aligns BF16 weights.
      const std::span values(reinterpret_cast<const bf16*>(linear.weight.data()), linear.weight.size() / sizeof(bf16));
      const auto at = first_non_finite(values);
      if (at) return bad_value(linear, "", *at, (values[*at].bits & 0x7fffU) == 0x7f80U ? "infinity" : "NaN");
      break;
    }
    case WeightEncoding::kFp8Block128:  // scales are E8M0 and checked by the loader
      if (const auto at = first_nan_e4m3(linear.weight)) return bad_value(linear, "", *at, "NaN");
      break;
    case WeightEncoding::kNvfp4:  // E2M1 has neither NaN nor infinity
      if (const auto at = first_nan_e4m3(linear.scale)) return bad_value(linear, " (its scales)", *at, "NaN");
      break;
  }
  return {};
}

Status check_compressor(const HostCompressor& compressor) {
  DSV4RT_RETURN_IF_ERROR(check_matrix(compressor.wkv));
  return check_matrix(compressor.wgate);
}

}  // namespace

std::optional<std::size_t> first_non_finite(std::span<const float> values) {
  return first_from(values, std::int32_t{0x7f800000}, [](float value) {
    return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  });
}

std::optional<std::size_t> first_non_finite(std::span<const bf16> values) {
  return first_from(values, std::int16_t{0x7f80},
                    [](bf16 value) { return static_cast<std::int16_t>(value.bits & 0x7fffU); });
}

std::optional<std::size_t> first_nan_e4m3(std::span<const std::byte> codes) {
  return first_from(codes, std::uint8_t{0x7f}, [](std::byte code) {
    return static_cast<std::uint8_t>(std::to_integer<std::uint8_t>(code) & 0x7fU);
  });
}

Status check_finite_matrices(const HostAttentionWeights& layer) {
  for (const HostLinear* linear : {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_a, &layer.wo_b}) {
    DSV4RT_RETURN_IF_ERROR(check_matrix(*linear));
  }
  if (layer.compressor) DSV4RT_RETURN_IF_ERROR(check_compressor(*layer.compressor));
  if (!layer.indexer) return {};
  DSV4RT_RETURN_IF_ERROR(check_matrix(layer.indexer->wq_b));
  DSV4RT_RETURN_IF_ERROR(check_matrix(layer.indexer->weights_proj));
  return check_compressor(layer.indexer->compressor);
}

}  // namespace dsv4rt
