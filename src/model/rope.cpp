#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dsv4rt {
namespace {

// Interpolation weight per pair: 0 keeps the frequency, 1 divides it by the factor.
using Ramp = std::array<float, kRopePairs>;

// The pair, as a real number, whose rotation makes `turns` full turns over `positions` tokens.
double pair_with_turns(double turns, double positions, double theta) {
  return kRopeDim * std::log(positions / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

Ramp yarn_ramp(const YarnScaling& yarn, double theta) {
  const auto positions = static_cast<double>(yarn.original_max_position_embeddings);
  const double low = std::max(std::floor(pair_with_turns(yarn.beta_fast, positions, theta)), 0.0);
  double high = std::min(std::ceil(pair_with_turns(yarn.beta_slow, positions, theta)), double{kRopeDim - 1});
  // An empty range is a step. The reference widens only low == high; settings that put the whole
  // range beyond the last pair make low > high, which must not turn the ramp around.
  if (high <= low) high = low + 0.001;
  Ramp ramp{};
  const auto span = static_cast<float>(high - low);
  for (int pair = 0; pair < kRopePairs; ++pair) {
    const float position = (static_cast<float>(pair) - static_cast<float>(low)) / span;
    ramp[static_cast<std::size_t>(pair)] = std::clamp(position, 0.0f, 1.0f);
  }
  return ramp;
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config, RopeChoice choice) {
  const bool compressed = choice == RopeChoice::kCompressed;
  const double theta = compressed ? config.compress_rope_theta : config.rope_theta;
  RopeFrequencies frequencies{};
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    // The power is rounded once to FP32, then inverted in FP32: two roundings, as the reference has.
    const double exponent = 2.0 * static_cast<double>(pair) / kRopeDim;
    const auto power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
    frequencies[pair] = 1.0f / power;
  }
  if (!compressed || !config.rope_scaling) return frequencies;

  const Ramp ramp = yarn_ramp(*config.rope_scaling, theta);
  const auto factor = static_cast<float>(config.rope_scaling->factor);
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    const float keep = 1.0f - ramp[pair];
    const float interpolated = frequencies[pair] / factor;
    frequencies[pair] = interpolated * (1.0f - keep) + frequencies[pair] * keep;
  }
  return frequencies;
}

}  // namespace dsv4rt
