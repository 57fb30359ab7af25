#include "model/tensor_shard.h"

#include <string>

namespace dsv4rt {
namespace {

Status not_even(const char* key, std::int64_t total, std::int32_t ranks) {
  return {StatusCode::kInvalidArgument,
          "tensor parallelism: " + std::string(key) + " = " + std::to_string(total) + " over " + std::to_string(ranks) +
              " ranks; accepted: numbers of ranks that divide num_attention_heads and o_groups"};
}

}  // namespace

Result<ModelConfig> shard_config(const ModelConfig& config, const TensorShard& shard) {
  if (shard.size < 1 || shard.rank < 0 || shard.rank >= shard.size) {
    return Status{StatusCode::kInvalidArgument, "tensor parallelism: rank " + std::to_string(shard.rank) + " of " +
                                                    std::to_string(shard.size) +
                                                    "; accepted: 0 up to the number of ranks, which is 1 or more"};
  }
  if (config.num_attention_heads % shard.size != 0) {
    return not_even("num_attention_heads", config.num_attention_heads, shard.size);
  }
  if (config.o_groups % shard.size != 0) return not_even("o_groups", config.o_groups, shard.size);
  ModelConfig part = config;
  part.num_attention_heads = shard.count(config.num_attention_heads);
  part.o_groups = shard.count(config.o_groups);
  return part;
}

}  // namespace dsv4rt
