#include "checkpoint/weights_digest.h"

#include <cstdint>
#include <string_view>

namespace dsv4rt {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kPages = 16;

class SampledDigest {
 public:
  void add_number(std::int64_t value) { hash_.update(std::as_bytes(std::span(&value, 1))); }

  void add_bytes(std::span<const std::byte> bytes) {
    add_number(static_cast<std::int64_t>(bytes.size()));
    for (const auto page : sampled_pages(bytes)) hash_.update(page);
  }

  template <class Value>
  void add_values(std::span<const Value> values) {
    add_bytes(std::as_bytes(values));
  }

  void add(const HostLinear& linear) {
    add_bytes(std::as_bytes(std::span(linear.name.data(), linear.name.size())));
    for (const std::int64_t number :
         {static_cast<std::int64_t>(linear.encoding), static_cast<std::int64_t>(linear.activation),
          linear.stored ? linear.stored->out_features : linear.out_features,
          linear.stored ? linear.stored->in_features : linear.in_features,
          linear.stored ? std::int64_t{0} : linear.first_row}) {
      add_number(number);
    }
    add_bytes(linear.stored ? linear.stored->weight : linear.weight);
    add_bytes(linear.stored ? linear.stored->scale : linear.scale);
    const float scales[] = {linear.global_scale, linear.input_scale};
    add_values(std::span<const float>(scales));
  }

  void add(const HostCompressor& compressor) {
    add(compressor.wkv);
    add(compressor.wgate);
    add_values(compressor.ape);
    add_values(compressor.norm);
  }

  void add(const HostAttentionWeights& layer) {
    add_number(layer.spec.id.value);
    add_values(layer.attn_sink);
    add_values(layer.q_norm);
    add_values(layer.kv_norm);
    for (const HostLinear* linear : {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_a, &layer.wo_b}) add(*linear);
    add_number(layer.compressor ? 1 : 0);
    if (layer.compressor) add(*layer.compressor);
    add_number(layer.indexer ? 1 : 0);
    if (!layer.indexer) return;
    add(layer.indexer->wq_b);
    add(layer.indexer->weights_proj);
    add(layer.indexer->compressor);
  }

  [[nodiscard]] Sha256::Digest finish() { return hash_.finish(); }

 private:
  Sha256 hash_;
};

}  // namespace

std::vector<std::span<const std::byte>> sampled_pages(std::span<const std::byte> bytes) {
  if (bytes.size() <= kPages * kPageBytes) return {bytes};
  std::vector<std::span<const std::byte>> pages;
  for (std::size_t page = 0; page < kPages; ++page) {
    const std::size_t first = (bytes.size() - kPageBytes) / (kPages - 1) * page;
    pages.push_back(page + 1 == kPages ? bytes.last(kPageBytes) : bytes.subspan(first, kPageBytes));
  }
  return pages;
}

Sha256::Digest sampled_weights_digest(std::span<const HostAttentionWeights> layers) {
  SampledDigest digest;
  for (const HostAttentionWeights& layer : layers) digest.add(layer);
  return digest.finish();
}

}  // namespace dsv4rt
