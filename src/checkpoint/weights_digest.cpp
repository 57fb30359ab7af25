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
    if (bytes.size() <= kPages * kPageBytes) return hash_.update(bytes);
    for (std::size_t page = 0; page < kPages; ++page) {
      const std::size_t first = (bytes.size() - kPageBytes) / (kPages - 1) * page;
      hash_.update(page + 1 == kPages ? bytes.last(kPageBytes) : bytes.subspan(first, kPageBytes));
    }
  }

  template <class Value>
  void add_values(std::span<const Value> values) {
    add_bytes(std::as_bytes(values));
  }

  void add(const HostLinear& linear) {
    add_bytes(std::as_bytes(std::span(linear.name.data(), linear.name.size())));
    for (const std::int64_t number :
         {static_cast<std::int64_t>(linear.encoding), static_cast<std::int64_t>(linear.activation), linear.out_features,
          linear.in_features, linear.first_row}) {
      add_number(number);
    }
    add_bytes(linear.weight);
    add_bytes(linear.scale);
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

Sha256::Digest sampled_weights_digest(std::span<const HostAttentionWeights> layers) {
  SampledDigest digest;
  for (const HostAttentionWeights& layer : layers) digest.add(layer);
  return digest.finish();
}

}  // namespace dsv4rt
