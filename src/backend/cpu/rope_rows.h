// The rotary embedding of one position, applied to the last kRopeDim values of vectors.
#pragma once

#include "backend/ops.h"
#include "base/bfloat16.h"
#include "base/sine_cosine.h"

namespace dsv4rt::cpu {

// Cosines and sines of one position; without frequencies an empty rotation that leaves values alone.
class RopeRotation {
 public:
  RopeRotation(const RopeParams& params, std::int32_t position) : active_(params.inverse_frequency != nullptr) {
    if (!active_) return;
    for (int i = 0; i < kPairs; ++i) {
      const SineCosine rotation = sine_cosine(static_cast<float>(position) * params.inverse_frequency[i]);
      cosine_[i] = rotation.cosine;
      sine_[i] = params.inverse ? -rotation.sine : rotation.sine;
    }
  }

  // tail: the kRopeDim values that rotate; results are rounded to BF16.
  void apply(float* tail) const {
    if (!active_) return;
    for (int i = 0; i < kPairs; ++i) {
      const float even = tail[2 * i];
      const float odd = tail[2 * i + 1];
      tail[2 * i] = round_to_bf16(even * cosine_[i] - odd * sine_[i]);
      tail[2 * i + 1] = round_to_bf16(even * sine_[i] + odd * cosine_[i]);
    }
  }

  void apply(bf16* tail) const {
    if (!active_) return;
    for (int i = 0; i < kPairs; ++i) {
      const float even = to_float(tail[2 * i]);
      const float odd = to_float(tail[2 * i + 1]);
      tail[2 * i] = to_bf16(even * cosine_[i] - odd * sine_[i]);
      tail[2 * i + 1] = to_bf16(even * sine_[i] + odd * cosine_[i]);
    }
  }

 private:
  static constexpr int kPairs = kRopeDim / 2;
  bool active_;
  float cosine_[kPairs];
  float sine_[kPairs];
};

}  // namespace dsv4rt::cpu
