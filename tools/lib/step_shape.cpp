#include "tools/lib/step_shape.h"

#include <cmath>

#include "base/try.h"

namespace dsv4rt {
namespace {

// So that sums over sequences are far from what 64 bits hold; engines have tighter limits.
constexpr std::int64_t kMostSequences = std::int64_t{1} << 24;
constexpr std::int64_t kMostContextTokens = (std::int64_t{1} << 31) - 1;

Status require_within(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + ": " + std::to_string(value) +
                                            "; accepted: " + std::to_string(least) + " to " + std::to_string(most)};
}

}  // namespace

std::int64_t context_of(const StepShape& shape, std::int32_t sequence) {
  if (shape.shortest_tokens == 0 || sequence == 0) return shape.context_tokens;
  // Multiples of the golden ratio, less what is whole, divide [0, 1) evenly however many there are.
  constexpr double kGoldenRatio = 0.6180339887498949;
  const double whole = sequence * kGoldenRatio;
  const double at = whole - std::floor(whole);
  const double shortest = std::log2(static_cast<double>(shape.shortest_tokens));
  const double longest = std::log2(static_cast<double>(shape.context_tokens));
  return std::llround(std::exp2(shortest + at * (longest - shortest)));
}

std::int64_t cached_tokens(const StepShape& shape) {
  if (shape.shortest_tokens == 0) return shape.batch * shape.context_tokens;
  std::int64_t tokens = 0;
  for (std::int32_t sequence = 0; sequence < shape.batch; ++sequence) tokens += context_of(shape, sequence);
  return tokens;
}

std::string context_text(const StepShape& shape) {
  const std::string longest = std::to_string(shape.context_tokens);
  return shape.shortest_tokens == 0 ? longest : std::to_string(shape.shortest_tokens) + ".." + longest;
}

Status check_step_shape(const StepShape& shape) {
  DSV4RT_RETURN_IF_ERROR(require_within("batch", shape.batch, 1, kMostSequences));
  DSV4RT_RETURN_IF_ERROR(require_within("context_tokens", shape.context_tokens, 1, kMostContextTokens));
  return require_within("shortest_tokens", shape.shortest_tokens, 0, shape.context_tokens);
}

}  // namespace dsv4rt
