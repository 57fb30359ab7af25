#include "attention/layer_weights.h"

#include <span>

#include "base/try.h"

namespace dsv4rt {
namespace {

template <class T>
Result<Buffer> upload_vector(Backend& backend, std::span<const T> values, std::string_view purpose) {
  DSV4RT_ASSIGN_OR_RETURN(Buffer buffer, backend.allocate(values.size_bytes(), purpose));
  DSV4RT_RETURN_IF_ERROR(backend.upload(buffer.data(), values.data(), values.size_bytes()));
  return buffer;
}

Result<CompressorWeights> upload_compressor(Backend& backend, const HostCompressor& host) {
  CompressorWeights weights;
  DSV4RT_ASSIGN_OR_RETURN(weights.wkv, backend.pack_linear(host.wkv));
  DSV4RT_ASSIGN_OR_RETURN(weights.wgate, backend.pack_linear(host.wgate));
  DSV4RT_ASSIGN_OR_RETURN(weights.ape, upload_vector(backend, host.ape, "compressor.ape"));
  DSV4RT_ASSIGN_OR_RETURN(weights.norm, upload_vector(backend, host.norm, "compressor.norm"));
  return weights;
}

std::int64_t vector_bytes(const CompressorWeights& weights) {
  return static_cast<std::int64_t>(weights.ape.size() + weights.norm.size());
}

}  // namespace

std::vector<const PackedLinear*> LayerWeights::linears() const {
  std::vector<const PackedLinear*> all{wq_a.get(), wq_b.get(), wkv.get(), wo_b.get()};
  for (const auto& group : wo_a) all.push_back(group.get());
  if (compressor) all.insert(all.end(), {compressor->wkv.get(), compressor->wgate.get()});
  if (indexer) {
    all.insert(all.end(), {indexer->wq_b.get(), indexer->weights_proj.get(), indexer->compressor.wkv.get(),
                           indexer->compressor.wgate.get()});
  }
  return all;
}

std::int64_t LayerWeights::bytes() const {
  auto total = static_cast<std::int64_t>(attn_sink.size() + q_norm.size() + kv_norm.size());
  if (compressor) total += vector_bytes(*compressor);
  if (indexer) total += vector_bytes(indexer->compressor);
  for (const PackedLinear* linear : linears()) total += linear->bytes();
  return total;
}

Result<LayerWeights> upload_layer_weights(Backend& backend, const ModelConfig& config, const HostAttentionWeights& host,
                                          const TensorShard& shard) {
  LayerWeights weights;
  const auto heads = static_cast<std::size_t>(config.num_attention_heads);
  const auto sinks = host.attn_sink.subspan(static_cast<std::size_t>(shard.rank) * heads, heads);
  DSV4RT_ASSIGN_OR_RETURN(weights.attn_sink, upload_vector(backend, sinks, "attn_sink"));
  DSV4RT_ASSIGN_OR_RETURN(weights.wq_a, backend.pack_linear(host.wq_a));
  DSV4RT_ASSIGN_OR_RETURN(weights.q_norm, upload_vector(backend, host.q_norm, "q_norm"));
  DSV4RT_ASSIGN_OR_RETURN(weights.wq_b, backend.pack_linear(host.wq_b));
  DSV4RT_ASSIGN_OR_RETURN(weights.wkv, backend.pack_linear(host.wkv));
  DSV4RT_ASSIGN_OR_RETURN(weights.kv_norm, upload_vector(backend, host.kv_norm, "kv_norm"));
  for (std::int64_t group = 0; group < config.o_groups; ++group) {
    const HostLinear rows = host.wo_a.rows(group * config.o_lora_rank, config.o_lora_rank);
    DSV4RT_ASSIGN_OR_RETURN(auto packed, backend.pack_linear(rows));
    weights.wo_a.push_back(std::move(packed));
  }
  DSV4RT_ASSIGN_OR_RETURN(weights.wo_b, backend.pack_linear(host.wo_b));
  if (host.compressor) {
    DSV4RT_ASSIGN_OR_RETURN(weights.compressor, upload_compressor(backend, *host.compressor));
  }
  if (host.indexer) {
    IndexerWeights indexer;
    DSV4RT_ASSIGN_OR_RETURN(indexer.wq_b, backend.pack_linear(host.indexer->wq_b));
    DSV4RT_ASSIGN_OR_RETURN(indexer.weights_proj, backend.pack_linear(host.indexer->weights_proj));
    DSV4RT_ASSIGN_OR_RETURN(indexer.compressor, upload_compressor(backend, host.indexer->compressor));
    weights.indexer = std::move(indexer);
  }
  return weights;
}

}  // namespace dsv4rt
