// A digest that tells checkpoints apart without reading all of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/attention_weights.h"

namespace dsv4rt {

// SHA-256 over every tensor of the layers: name, encoding, shape and bytes. Of tensors above 64 KiB, sixteen pages of
// 4 KiB are read, the first, the last and those at equal distances between: a gigabyte of weights costs milliseconds.
// Checkpoints that differ only between these pages have one digest; training and quantization leave no tensor's pages
// alone.
// The digest of a rank's parts is that of the whole matrices.
Sha256::Digest sampled_weights_digest(std::span<const HostAttentionWeights> layers);

// What of a tensor's bytes the digest reads: all of them, or the pages.
std::vector<std::span<const std::byte>> sampled_pages(std::span<const std::byte> bytes);

}  // namespace dsv4rt
