// A digest that tells checkpoints apart without reading all of them.
#pragma once

#include <span>

#include "base/sha256.h"
#include "checkpoint/attention_weights.h"

namespace dsv4rt {

// SHA-256 over every tensor of the layers: name, encoding, shape and bytes. Of tensors above 64 KiB, sixteen pages of
// 4 KiB are read, the first, the last and those at equal distances between: a gigabyte of weights costs milliseconds.
// Checkpoints that differ only between these pages have one digest; training and quantization leave no tensor's pages
// alone.
Sha256::Digest sampled_weights_digest(std::span<const HostAttentionWeights> layers);

}  // namespace dsv4rt
