#include "checkpoint/finite_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/message_text.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

// Bytes that are looked at together: whole words, which every processor has vectors of.
constexpr std::size_t kChunkBytes = 4096;

// How a value that is not finite shows: its magnitude plus `carry` reaches the sign bit, in every lane of a word.
struct Lanes {
  std::uint64_t magnitudes;
  std::uint64_t carry;
};
constexpr Lanes kFloatLanes{0x7fffffff7fffffffU, 0x0080000000800000U};
constexpr Lanes kBf16Lanes{0x7fff7fff7fff7fffU, 0x0080008000800080U};
constexpr Lanes kE4m3Lanes{0x7f7f7f7f7f7f7f7fU, 0x0101010101010101U};

bool all_finite(const std::byte* bytes, std::size_t count, Lanes lanes) {
  std::uint64_t carried = 0;
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, sizeof word);
    carried |= (word & lanes.magnitudes) + lanes.carry;
  }
  return (carried & ~lanes.magnitudes) == 0;
}

// `finite(value)` says of one value what `lanes` says of a word of them.
template <class Value, class Finite>
std::optional<std::size_t> first_not(std::span<const Value> values, Lanes lanes, const Finite& finite) {
  constexpr std::size_t kChunk = kChunkBytes / sizeof(Value);
  for (std::size_t first = 0; first < values.size(); first += kChunk) {
    const auto chunk = values.subspan(first, std::min(kChunk, values.size() - first));
    const bool whole = chunk.size() == kChunk;
    if (whole && all_finite(reinterpret_cast<const std::byte*>(chunk.data()), kChunkBytes, lanes)) continue;
    const auto found = std::find_if_not(chunk.begin(), chunk.end(), finite);
    if (found != chunk.end()) return first + static_cast<std::size_t>(found - chunk.begin());
  }
  return std::nullopt;
}

Status bad_value(const HostLinear& linear, std::string_view part, std::size_t index, std::string_view value) {
  return {StatusCode::kBadInput, "tensor " + quote(linear.name) + std::string(part) + ": " + std::string(value) +
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
  return first_not(values, kFloatLanes, [](float value) { return std::isfinite(value); });
}

std::optional<std::size_t> first_non_finite(std::span<const bf16> values) {
  return first_not(values, kBf16Lanes, [](bf16 value) { return (value.bits & 0x7f80U) != 0x7f80U; });
}

std::optional<std::size_t> first_nan_e4m3(std::span<const std::byte> codes) {
  return first_not(codes, kE4m3Lanes, [](std::byte code) { return (code & std::byte{0x7f}) != std::byte{0x7f}; });
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
