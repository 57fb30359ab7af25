// What a layer's weights take of a backend's memory, before any of them is packed.
#pragma once

#include <cstdint>

#include "checkpoint/attention_weights.h"

namespace dsv4rt {

// `packed_bytes(const HostLinear&)` is that of the backend. Data of matrices is not touched.
template <class PackedBytes>
std::int64_t planned_layer_bytes(const HostAttentionWeights& host, const PackedBytes& packed_bytes) {
  const auto of_compressor = [&](const HostCompressor& compressor) {
    return packed_bytes(compressor.wkv) + packed_bytes(compressor.wgate) +
           static_cast<std::int64_t>(compressor.ape.size_bytes() + compressor.norm.size_bytes());
  };
  auto total =
      static_cast<std::int64_t>(host.attn_sink.size_bytes() + host.q_norm.size_bytes() + host.kv_norm.size_bytes());
  for (const HostLinear* linear : {&host.wq_a, &host.wq_b, &host.wkv, &host.wo_a, &host.wo_b}) {
    total += packed_bytes(*linear);
  }
  if (host.compressor) total += of_compressor(*host.compressor);
  if (host.indexer) {
    total += packed_bytes(host.indexer->wq_b) + packed_bytes(host.indexer->weights_proj) +
             of_compressor(host.indexer->compressor);
  }
  return total;
}

}  // namespace dsv4rt
